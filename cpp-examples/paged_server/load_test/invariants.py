"""What /metrics must say of itself at every moment, from one look to the next, and when nothing is under way."""
import re

LINE = re.compile(r"^paged_server_([a-z_]+)(?:\{([^}]*)\})? ([0-9.e+-]+|inf|nan)$")


def read(text):
    """Values by name, then by the values of its labels; types by name."""
    values, kinds = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE paged_server_"):
            name, kind = line.removeprefix("# TYPE paged_server_").split()
            kinds[name] = kind
        elif not line.startswith("#"):
            found = LINE.match(line)
            if found is None:
                raise ValueError(f"no line of Prometheus' text form: {line!r}")
            labels = tuple(re.findall(r'="([^"]*)"', found[2] or ""))
            values.setdefault(found[1], {})[labels] = float(found[3])
    return values, kinds


def one(values, name, *labels):
    return values[name][labels]


def total(values, name):
    return sum(values[name].values())


def of_histogram(values, name):
    """Violations of one histogram."""
    buckets = list(values[f"{name}_bucket"].values())
    if any(a > b for a, b in zip(buckets, buckets[1:])) or buckets[-1] != one(values, f"{name}_count"):
        yield f"{name}: buckets {buckets} of {one(values, f'{name}_count')}"


def at_any_time(values, policy, outputs_per_step):
    """Violations in one look."""
    under_way, ended = total(values, "requests"), total(values, "requests_ended_total")
    if one(values, "requests_received_total") != under_way + ended:
        yield f"received {one(values, 'requests_received_total')}, under way {under_way}, ended {ended}"
    outputs, rungs = total(values, "outputs_total"), total(values, "outputs_by_rung_total")
    steps = one(values, "decode_steps_total")
    if not outputs == rungs == steps * outputs_per_step:
        yield f"{steps} decode steps, {outputs} outputs, {rungs} by rung"
    if one(values, "outputs_beyond_tolerance_total") or one(values, "outputs_total", "failed"):
        yield "outputs beyond their tolerance, or failed ones"
    if policy in ("certified", "dense") and one(values, "outputs_total", "uncertified"):
        yield f"uncertified outputs under the policy {policy}"
    if one(values, "bound_over_tolerance_count") != one(values, "outputs_total", "certified"):
        yield "certified outputs without a bound"
    if policy == "dense" and one(values, "outputs_total", "exact") != outputs:
        yield "outputs of dense attention that are not exact"
    for name in ("step_seconds", "first_token_seconds", "request_seconds", "bound_over_tolerance"):
        yield from of_histogram(values, name)
    if one(values, "preemptions_total", "swap_in") > one(values, "preemptions_total", "swap_out"):
        yield "more sequences came back than left"
    if one(values, "steps_total", "failed"):
        yield f"{one(values, 'steps_total', 'failed')} steps failed"
    for name in ("packed", "scratch", "tables", "host"):
        use = {kind: one(values, "cache_bytes", name, kind) for kind in ("used", "reserved", "peak", "planned")}
        if not use["used"] <= use["reserved"] <= use["peak"] <= use["planned"]:
            yield f"bytes of {name}: {use}"
    if one(values, "prefix_units", "cached") > one(values, "prefix_units", "capacity"):
        yield "more prefixes than there is room for"


def pages(values, name):
    return sum(n for (kind, _), n in values["cache_pages"].items() if kind == name)


def from_to(before, after, kinds):
    """Violations between two looks: what counts never goes down, pages are neither made nor lost."""
    for name, kind in kinds.items():
        parts = [name] if kind == "counter" else [f"{name}_bucket", f"{name}_count"] if kind == "histogram" else []
        for part in parts:
            for labels, value in before[part].items():
                if after[part][labels] < value:
                    yield f"{part}{labels} went from {value} to {after[part][labels]}"
    for name in ("packed", "open", "host", "swap"):
        if pages(before, name) != pages(after, name):
            yield f"{name} pages: {pages(before, name)}, then {pages(after, name)}"


def at_rest(values):
    """Violations once nothing is under way and no prefix is cached."""
    for name in ("requests", "cache_sequences", "cache_tokens"):
        if total(values, name):
            yield f"{name} at rest: {values[name]}"
    for labels, value in values["cache_pages"].items():
        if labels[1] != "free" and value:
            yield f"{labels[0]} pages that are {labels[1]} at rest: {value}"
    for labels, value in values["cache_bytes"].items():
        if labels[1] == "used" and value:
            yield f"bytes of {labels[0]} in use at rest: {value}"
