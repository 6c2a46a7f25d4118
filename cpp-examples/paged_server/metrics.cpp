#include "metrics.hpp"

#include <cstdio>
#include <initializer_list>
#include <tuple>
#include <utility>

namespace paged_server {
namespace {

class Page {
public:
    void family(const char *name, const char *kind, const char *help)
    {
        name_ = std::string("paged_server_") + name;
        text_ += "# HELP " + name_ + " " + help + "\n# TYPE " + name_ + " " + kind + "\n";
    }
    void value(const std::string &labels, std::uint64_t value) { line("", labels, std::to_string(value)); }
    void value(const std::string &labels, double value) { line("", labels, decimal(value)); }
    void one(const char *name, const char *kind, const char *help, std::uint64_t number)
    {
        family(name, kind, help);
        value("", number);
    }
    template <class Ends, class Counts>
    void histogram(const char *name, const char *help, const Ends &ends, const Counts &counts, double sum)
    {
        family(name, "histogram", help);
        std::uint64_t total = 0;
        for (std::size_t i = 0; i < counts.size(); i++) {
            total += counts[i];
            line("_bucket", "le=\"" + (i < ends.size() ? decimal(ends[i]) : "+Inf") + "\"", std::to_string(total));
        }
        line("_sum", "", decimal(sum));
        line("_count", "", std::to_string(total));
    }
    std::string take() { return std::move(text_); }

private:
    static std::string decimal(double value)
    {
        char digits[40];
        std::snprintf(digits, sizeof digits, "%.9g", value);
        return digits;
    }
    void line(const char *suffix, const std::string &labels, const std::string &value)
    {
        text_ += name_ + suffix + (labels.empty() ? "" : "{" + labels + "}") + " " + value + "\n";
    }

    std::string text_, name_;
};

using Named = std::initializer_list<std::pair<const char *, std::uint64_t>>;

void family(Page &page, const char *name, const char *kind, const char *help, const char *label, Named values)
{
    page.family(name, kind, help);
    for (const auto &[what, number] : values) {
        page.value(std::string(label) + "=\"" + what + "\"", number);
    }
}

void requests(Page &page, const Board &b)
{
    page.one("requests_received_total", "counter", "Requests that were accepted.", b.received);
    family(page, "requests_refused_total", "counter", "Requests that were understood and not accepted.", "reason",
           {{"length", b.refused_length}, {"queue", b.refused_queue}, {"stopping", b.refused_stopping}});
    family(page, "requests_ended_total", "counter", "Requests that are over.", "finish",
           {{"stop", b.ended[0]}, {"length", b.ended[1]}, {"cancelled", b.ended[2]}, {"failed", b.ended[3]}});
    family(page, "requests", "gauge", "Requests under way.", "state",
           {{"waiting", b.waiting}, {"running", b.running}, {"swapped", b.swapped}});
    family(page, "tokens_total", "counter",
           "Tokens: computed of prompts, found in cached prefixes, sampled, and computed again after pages were given up.", "kind",
           {{"prompt", b.prompt_tokens}, {"cached", b.cached_tokens}, {"sampled", b.sampled_tokens}, {"recomputed", b.recomputed_tokens}});
    family(page, "steps_total", "counter", "Steps: made, refused for want of pages, refused for another reason.", "result",
           {{"made", b.steps}, {"short", b.steps_short}, {"failed", b.steps_failed}});
    family(page, "preemptions_total", "counter", "Requests that gave up their pages: swapped out, back, and dropped to be computed again.",
           "kind", {{"swap_out", b.swap_outs}, {"swap_in", b.swap_ins}, {"drop", b.drops}});
    const auto seconds = [&](const char *name, const char *help, const Histogram &h) { page.histogram(name, help, h.ends, h.counts, h.sum); };
    seconds("step_seconds", "Time of a round with a step in it.", b.step_seconds);
    seconds("first_token_seconds", "From a request to its first token.", b.first_token_seconds);
    seconds("request_seconds", "From a request to its end.", b.request_seconds);
}

void outputs(Page &page, const Tally &t)
{
    page.one("decode_steps_total", "counter", "Tokens appended by themselves: steps with certificates.", t.steps);
    family(page, "outputs_total", "counter", "Outputs of decode steps, one per token, layer and query head.", "status",
           {{"uncertified", t.by_status[0]}, {"certified", t.by_status[1]}, {"exact", t.by_status[2]}, {"failed", t.by_status[3]}});
    family(page, "outputs_by_rung_total", "counter", "The same by where they were made.", "rung",
           {{"packed", t.by_rung[0]},
            {"more_keys", t.by_rung[1]},
            {"exact_values", t.by_rung[2]},
            {"dense_head", t.by_rung[3]},
            {"dense_layer", t.by_rung[4]}});
    page.one("outputs_beyond_tolerance_total", "counter", "Certified outputs whose bound is not within the tolerance: none, or a defect.",
             t.beyond);
    page.histogram("bound_over_tolerance", "Bound over tolerance of certified outputs, rounding included.", ratio_ends, t.by_ratio,
                   t.ratio_sum);
    page.family("worst_bound_over_tolerance", "gauge", "The largest of them so far.");
    page.value("", t.worst_ratio);
}

void cache(Page &page, const certkv_snapshot &s, const certkv_plan &plan)
{
    page.one("cache_sequences", "gauge", "Live sequences of the cache.", s.sequences);
    page.one("cache_tokens", "gauge", "Tokens of sequences that are in no step.", s.tokens);
    const std::pair<const char *, const certkv_page_use *> pages[] = {
        {"packed", &s.packed_pages}, {"open", &s.open_pages}, {"host", &s.host_pages}, {"swap", &s.swap_pages}};
    page.family("cache_pages", "gauge", "Pages of the cache.");
    for (const auto &[name, use] : pages) {
        const std::string label = std::string("class=\"") + name + "\",state=";
        page.value(label + "\"free\"", use->free);
        page.value(label + "\"live\"", use->live);
        page.value(label + "\"retiring\"", use->retiring);
        page.value(label + "\"worn\"", use->worn);
    }
    const std::tuple<const char *, const certkv_class_use *, std::uint64_t> classes[] = {
        {"packed", &s.packed, plan.packed},
        {"scratch", &s.scratch, plan.scratch},
        {"tables", &s.tables, plan.tables + plan.later}, // centres of cached prefixes come later
        {"host", &s.host, plan.host}};
    page.family("cache_bytes", "gauge", "Bytes: in use, reserved, the most that was reserved, and what the planner said.");
    for (const auto &[name, use, planned] : classes) {
        const std::string label = std::string("class=\"") + name + "\",kind=";
        page.value(label + "\"used\"", use->used);
        page.value(label + "\"reserved\"", use->reserved);
        page.value(label + "\"peak\"", use->peak);
        page.value(label + "\"planned\"", planned);
    }
    family(page, "prefix_units", "gauge", "Cached blocks.", "kind", {{"cached", s.prefix_units}, {"capacity", s.prefix_capacity}});
    family(page, "prefix_units_total", "counter", "Blocks of prompts: asked for, found, published, evicted.", "kind",
           {{"asked", s.prefix_asked}, {"hit", s.prefix_hits}, {"published", s.prefix_published}, {"evicted", s.prefix_evicted}});
}

} // namespace

std::string metrics(const Scheduler &scheduler)
{
    Page page;
    const Board board = scheduler.board();
    requests(page, board);
    outputs(page, board.tally);
    if (const auto snapshot = scheduler.cache().snapshot()) {
        cache(page, *snapshot, scheduler.plan());
    }
    return page.take();
}

} // namespace paged_server
