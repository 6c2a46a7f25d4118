"""Writes the golden records, `record_*.cgv`, and their lines of INDEX.txt.   usage: python generate.py [--check | OUT_DIR]

Nothing else here is touched. Inputs are hashes of a seed, and the formulas are record_reference.py and group_reference.py, from
docs/math.md alone. The container is described in testdata/README.md. With --check the files that are there are compared: codes,
scales and rows must be the same, figures that a matrix library has summed nearly so. Exit code 1 where one differs.
"""
import os
import re
import sys
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import group_reference as G
import record_reference as R

TYPES = {"f64": "<f8", "f32": "<f4", "f16": "<u2", "bf16": "<u2", "i8": "<i1", "u8": "<u1", "str": "<u1"}


def to_bits(x, fmt):
    x = np.asarray(x, np.float64)
    assert np.array_equal(R.rn(x, fmt), x)
    if fmt == "f16":
        return x.astype(np.float16).view(np.uint16)
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def contents(items):
    head, blobs, at = ["CGV1"], [], 0
    for name, kind, value in items:
        if kind == "str":
            value = np.frombuffer(value.encode(), np.uint8)
        value = np.asarray(value)
        raw = (to_bits(value, kind) if kind in ("f16", "bf16") else value).astype(TYPES[kind]).tobytes()
        head.append(" ".join(map(str, [name, kind, value.ndim, *value.shape, at, len(raw)])))
        blobs.append(raw + bytes(-len(raw) % 16))
        at += len(blobs[-1])
    text = ("\n".join(head) + "\nEND\n").encode()
    return text + bytes(-len(text) % 16), blobs


def differs(path, items):
    """Names of the arrays that are not those of the file."""
    head, blobs = contents(items)
    with open(path, "rb") as f:
        there = f.read()
    if there[:len(head)] != head or len(there) != len(head) + sum(map(len, blobs)):
        return ["header"]
    found, at = [], len(head)
    for (name, kind, _), blob in zip(items, blobs):
        own, at = there[at:at + len(blob)], at + len(blob)
        near = kind == "f64" and name.startswith(("true_", "bound_", "k_hat"))
        if own != blob and not (near and np.allclose(np.frombuffer(own), np.frombuffer(blob), 1e-12, 1e-13)):
            found.append(name)
    return found


class Draw:
    """Numbers that no library version changes: hashes, and sums of twelve of them for a bell."""

    def __init__(self, seed):
        self.at = int(R.hash64(seed)) // 2
        self.loud = seed % 3 == 0

    def uniform(self, *shape):
        n = int(np.prod(shape))
        counts = (np.arange(n, dtype=np.uint64) + np.uint64(self.at)).reshape(shape)
        self.at = (self.at + n) % 2**63
        return (R.splitmix64(counts) >> np.uint64(11)) * 2.0**-53

    def normal(self, *shape):
        total = np.zeros(shape)
        for _ in range(12):
            total += self.uniform(*shape)
        return total - 6


def rows(draw, n, d, store):
    """Channels of unlike size, some far from 0, and the edge cases of scales."""
    size = 2.0 ** np.rint(1.5 * draw.normal(d))
    x = draw.normal(n, d) * size + 3 * draw.normal(d) * (draw.uniform(d) < 0.2)
    x[:, 0] = 1.5                                          # constant: exact
    x[:, 1] = 100 + np.floor(4 * draw.uniform(n)) / 16     # far from 0, a few grid points wide
    x[:, 3] *= 2.0**-20                                    # scales below the normal halves
    if draw.loud:
        x[:, 4] = 10000 * np.sign(draw.normal(n))          # louder than all others together
    x[:, 5] = np.where(np.arange(n) == n // 2, 40.0, 0.01 * x[:, 5])   # one loud token
    x[:, 6] = 3 * 2.0**-26 if store == "bf16" else 0.0     # below the least half, where that can be
    x = R.rn(x, store)
    x[:, 2] = -0.0                                         # -0 is written as 0 (0.1)
    return x


def value_rows(draw, n, d, store, group):
    """Tokens of unlike size; a constant group, a token of zeros, and a constant that is no half where that can be."""
    x = R.rn(rows(draw, n, d, store) * 2.0 ** np.minimum(np.rint(draw.normal(n, 1)), 1) + 0.25, store)
    x[0, :group], x[2], x[1, group:2 * group] = 0.75, 0.0, 3 * 2.0**-26 if store == "bf16" else -0.0
    return x


def coded(x, text):
    """The side that a format's part names; None where the originals are kept."""
    kind, *numbers = re.findall(r"[a-z]+|\d+", text)
    if kind in ("k", "c"):
        return R.channel(x, int(numbers[0]))
    return R.affine(x, int(numbers[0]), int(numbers[2])) if kind == "v" else None


def side_items(name, side, signed):
    items = [] if side["codes"] is None else [(f"{name}_codes", "i8" if signed else "u8", side["codes"])]
    return items + [(f"{name}_sigma", "f16", side["sigma"]), (f"{name}_z", "f16", side["z"]), (f"{name}_hat", "f64", side["hat"])]


def plain(case, draw):
    """Keys by channel, values by channel or affine, residuals of both."""
    text, d, store = case
    key, value, block, *refine = text.split("-")
    n = int(block[1:])
    k, v = rows(draw, n, d, store), value_rows(draw, n, d, store, 32)
    if value[0] == "c":
        v = rows(draw, n, d, store)
    centre = R.rn(v.mean(0), "f32")
    ks, vs = coded(k, key), coded(v, value)
    items = [("format", "str", text), ("keys", store, k), ("values", store, v), ("centre", "f32", centre)]
    items += side_items("k", ks, True) + side_items("v", vs, value[0] == "c")
    ref, refined = None, {}
    if refine:
        bits = [int(b) for b in refine[0][1:].split(".")]
        (kr, kref), (vr, ref) = R.residual(k, ks, bits[0]), R.residual(v, vs, bits[1])
        items += [("k_residual", "i8", kr), ("v_residual", "i8", vr), ("k_refined", "f64", kref), ("v_refined", "f64", ref)]
        refined = R.refined_figures(k, kref, ks["sigma"], v, ref)
    figures = R.key_figures(k, ks) | R.value_figures(v, vs, value[0], centre, ref) | refined
    return items, figures


def calibrated(case, draw):
    """Keys of a calibration beside values that are kept."""
    text, d, store, scheme = case
    key, _, block = text.split("-")
    n = int(block[1:])
    k, v = rows(draw, n, d, store), rows(draw, n, d, store)
    centre = R.rn(v.mean(0), "f32")
    items, figures = G.keys(draw, key, k, store, scheme)
    items = [("format", "str", text), ("keys", store, k), ("values", store, v), ("centre", "f32", centre)] + items
    kept = {"true_eta": 0, "true_sop": 0, "bound_sop": 0, "true_radius": R.row_norm(v - centre), "true_value_norm": R.row_norm(v)}
    return items, figures | kept


PLAIN = [
    ("k3-c4-b16", 64, "f16"), ("k4-c6-b16", 128, "bf16"), ("k6-c4-b32", 64, "bf16"), ("k3-c6-b16", 96, "f16"),
    ("k2-c8-b16", 64, "f16"), ("k5-c2-b16", 64, "bf16"), ("k7-c5-b16", 64, "f16"),
    ("k4-v4g32-b16-r4.4", 64, "f16"), ("k8-v4g32-b16-r8.4", 64, "bf16"), ("k3-c7-b16-r5.3", 64, "f16"),
    ("k0-c0-b64", 64, "f16"), ("k0-c0-b32", 128, "bf16"), ("k0-c3-b16", 64, "f16"),
]
# Widths of a head's tiles, channels that positions turn, and how these are paired.
CALIBRATED = [
    ("s1-f16-b16", 64, "f16", None), ("s2-f16-b16", 64, "f16", None), ("s3-bf16-b16", 64, "bf16", None),
    ("gtq3-f16-b32", 64, "f16", ([2, 3, 3, 4], 64, "half")), ("gtq2.5-bf16-b16", 128, "bf16", ([1, 2, 2, 5], 64, "half")),
    ("gtq3-f16-b16", 96, "f16", ([3, 3, 3], 96, "inter")),
]


def records():
    """Name, format, store and arrays of every file."""
    for number, case in enumerate(PLAIN + CALIBRATED):
        text, d, store = case[:3]
        items, figures = (plain if case in PLAIN else calibrated)(case, Draw(number))
        yield "_".join(["record", *re.split("[-.]", text), f"d{d}", store]), text, store, items + [(k, "f64", v) for k, v in figures.items()]


def changed(items, at):
    name, kind, value = items[at]
    value = np.array(value, np.float64)
    value.flat[0] = 1.0 if value.flat[0] != 1.0 else 2.0
    return items[:at] + [(name, kind, value)] + items[at + 1:]


def check():
    arrays, wrong = 0, []
    for name, _, _, items in records():
        arrays += len(items)
        wrong += [f"{name}: {array}" for array in differs(os.path.join(HERE, name + ".cgv"), items)]
    # The control: one element changed, of each of the last file's arrays that are numbers.
    planted = [i for i, (_, kind, _) in enumerate(items) if kind != "str"]
    caught = sum(bool(differs(os.path.join(HERE, name + ".cgv"), changed(items, i))) for i in planted)
    print("\n".join(wrong + [f"GATE golden-records executed={arrays} failed={len(wrong)} controls={caught}/{len(planted)} seed=0x0"]))
    return int(bool(wrong) or caught < len(planted))


def main(out):
    lines = []
    for name, text, store, items in records():
        head, blobs = contents(items)
        with open(os.path.join(out, name + ".cgv"), "wb") as f:
            f.write(head + b"".join(blobs))
        lines.append(f"{name}.cgv\ta block of one head as format {text}, {store} cache, and the true figures of its summary")
    index = os.path.join(HERE, "INDEX.txt")
    with open(index) as f:
        lines += [line for line in f.read().splitlines() if not line.startswith("record_")]
    with open(os.path.join(out, "INDEX.txt"), "w") as f:
        f.write("\n".join(sorted(lines)) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(check())
    main(sys.argv[1] if len(sys.argv) > 1 else HERE)
