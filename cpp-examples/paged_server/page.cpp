#include "page.hpp"

#include <nlohmann/json.hpp>

namespace paged_server {
namespace {

constexpr std::size_t kept = 20;

using nlohmann::json;

json pages(const char *name, const certkv_page_use &use)
{
    return {{"name", name}, {"used", use.live + use.retiring}, {"of", use.live + use.retiring + use.free + use.worn}};
}

const char *const html = R"html(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>paged_server</title><style>
:root { color-scheme: light dark; font: 15px/1.4 system-ui, sans-serif; }
body { max-width: 60rem; margin: 1.5rem auto; padding: 0 1rem; }
h2 { font-size: 1rem; margin: 1.4rem 0 .4rem; }
.bar { display: flex; height: 1.1rem; background: #8883; border-radius: 3px; overflow: hidden; }
.bar i { display: block; height: 100%; }
.row { display: grid; grid-template-columns: 9rem 1fr 11rem; gap: .6rem; align-items: center; margin: .15rem 0; }
.row span:last-child { text-align: right; font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .1rem .5rem; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
#lost { color: #c33; }
</style></head><body>
<h1>paged_server</h1>
<p><span id="terms"></span> <span id="lost"></span></p>
<h2>Requests</h2><div id="requests"></div>
<h2>Cache</h2><div id="cache"></div>
<h2>Outputs of decode steps, by rung</h2><div id="rungs"></div>
<h2>Bound over tolerance, certified outputs</h2><div id="ratios"></div>
<h2>Last completions</h2><table><thead><tr><th>id</th><th>end</th><th>prompt</th><th>cached</th><th>sampled</th><th>seconds</th>
<th>preempted</th><th>certified</th><th>repaired</th><th>exact</th><th>worst bound / tolerance</th></tr></thead><tbody id="recent"></tbody></table>
<script>
const el = id => document.getElementById(id);
const colours = ['#3a7', '#7a3', '#da2', '#d62', '#c33'];
function row(name, parts, of, text) {
    const made = document.createElement('div'), bar = document.createElement('div');
    made.className = 'row'; bar.className = 'bar';
    const label = document.createElement('span'), value = document.createElement('span');
    label.textContent = name; value.textContent = text;
    parts.forEach((part, i) => {
        const piece = document.createElement('i');
        piece.style.width = (of ? 100 * part / of : 0) + '%';
        piece.style.background = colours[i];
        bar.append(piece);
    });
    made.append(label, bar, value);
    return made;
}
const share = (n, of) => of ? (100 * n / of).toFixed(2) + '%' : '-';
function show(s) {
    el('terms').textContent = `policy ${s.policy}, tolerance ${s.tolerance}; bars of rungs: packed, more keys, exact values, dense head, dense layer`;
    const r = s.requests;
    el('requests').replaceChildren(row('now', [r.running, r.swapped, r.waiting], Math.max(1, r.running + r.swapped + r.waiting),
        `${r.running} run, ${r.swapped} out, ${r.waiting} wait`), row('tokens', [], 1, `${s.tokens.sampled} sampled`),
        row('preemptions', [], 1, `${s.preemptions.swap_outs} swaps, ${s.preemptions.drops} drops`),
        row('prefixes', [s.prefixes.hits], s.prefixes.asked, `${s.prefixes.hits} of ${s.prefixes.asked} blocks`));
    el('cache').replaceChildren(...s.pages.map(p => row(p.name, [p.used], p.of, `${p.used} of ${p.of} pages`)));
    const total = s.rungs.reduce((a, b) => a + b, 0), o = s.outputs;
    el('rungs').replaceChildren(row('all', s.rungs, total, `${total} outputs`),
        row('certified', [o.certified], total, `${o.certified}, ${share(o.certified, total)}`),
        row('repaired', [o.repaired], total, `${o.repaired}, ${share(o.repaired, total)}`),
        row('exact', [o.exact], total, `${o.exact}, ${share(o.exact, total)}`),
        row('uncertified', [o.uncertified], total, `${o.uncertified}, ${share(o.uncertified, total)}`));
    const ratios = s.ratios.reduce((a, b) => a + b.count, 0);
    el('ratios').replaceChildren(...s.ratios.map(b => row(b.to, [b.count], ratios, share(b.count, ratios))));
    el('recent').replaceChildren(...s.recent.map(c => {
        const line = document.createElement('tr');
        for (const cell of [c.id, c.finish, c.prompt, c.cached, c.sampled, c.seconds.toFixed(2), c.preemptions, c.certified, c.repaired,
            c.exact, c.worst === null ? '-' : c.worst.toFixed(3)]) {
            const made = document.createElement('td');
            made.textContent = cell;
            line.append(made);
        }
        return line;
    }));
}
async function look() {
    try {
        show(await (await fetch('state')).json());
        el('lost').textContent = '';
    } catch (e) {
        el('lost').textContent = 'the server does not answer';
    }
    setTimeout(look, 1000);
}
look();
</script></body></html>
)html";

} // namespace

void Recent::add(const std::string &id, const Outcome &outcome)
{
    const std::lock_guard lock(mutex_);
    entries_.push_front({id, outcome});
    if (entries_.size() > kept) {
        entries_.pop_back();
    }
}

std::vector<Recent::Entry> Recent::newest_first() const
{
    const std::lock_guard lock(mutex_);
    return {entries_.begin(), entries_.end()};
}

std::string page()
{
    return html;
}

std::string state_json(const Scheduler &scheduler, const Terms &terms, const Recent &recent)
{
    static const char *const ends[] = {"stop", "length", "cancelled", "failed"};
    const Board b = scheduler.board();
    const Tally &t = b.tally;
    const certkv_snapshot s = scheduler.cache().snapshot().value_or({});
    json out = {{"policy", terms.policy}, {"tolerance", terms.tolerance}};
    out["requests"] = {{"running", b.running}, {"waiting", b.waiting}, {"swapped", b.swapped}, {"received", b.received}};
    out["tokens"] = {{"sampled", b.sampled_tokens}, {"prompt", b.prompt_tokens}, {"cached", b.cached_tokens}};
    out["preemptions"] = {{"swap_outs", b.swap_outs}, {"drops", b.drops}};
    out["prefixes"] = {{"hits", s.prefix_hits}, {"asked", s.prefix_asked}, {"units", s.prefix_units}};
    out["pages"] = {pages("codes", s.packed_pages), pages("open blocks", s.open_pages), pages("originals", s.host_pages),
                    pages("swapped out", s.swap_pages)};
    out["rungs"] = t.by_rung;
    out["outputs"] = {{"certified", t.by_status[CERTKV_CERTIFIED]},
                      {"exact", t.by_status[CERTKV_EXACT]},
                      {"uncertified", t.by_status[CERTKV_UNCERTIFIED]},
                      {"repaired", t.repaired()}};
    out["ratios"] = json::array();
    for (std::size_t i = 0; i < t.by_ratio.size(); i++) {
        char to[24] = "above";
        if (i < ratio_ends.size()) {
            std::snprintf(to, sizeof to, "to %g", ratio_ends[i]);
        }
        out["ratios"].push_back({{"to", to}, {"count", t.by_ratio[i]}});
    }
    out["recent"] = json::array();
    for (const Recent::Entry &entry : recent.newest_first()) {
        const Outcome &o = entry.outcome;
        out["recent"].push_back({{"id", entry.id},
                                 {"finish", ends[static_cast<std::size_t>(o.finish)]},
                                 {"prompt", o.prompt_tokens},
                                 {"cached", o.cached_tokens},
                                 {"sampled", o.completion_tokens},
                                 {"seconds", o.seconds},
                                 {"preemptions", o.preemptions},
                                 {"certified", o.tally.by_status[CERTKV_CERTIFIED]},
                                 {"repaired", o.tally.repaired()},
                                 {"exact", o.tally.by_status[CERTKV_EXACT]},
                                 {"worst", o.tally.by_status[CERTKV_CERTIFIED] > 0 ? json(o.tally.worst_ratio) : json(nullptr)}});
    }
    return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

} // namespace paged_server
