#include "audit.hpp"

#include <cstdint>

namespace paged_server {
namespace {

class Findings {
public:
    void zero(const char *what, std::uint64_t value)
    {
        if (value != 0) {
            found.push_back(std::string(what) + ": " + std::to_string(value));
        }
    }
    void within(const char *what, std::uint64_t value, std::uint64_t least, std::uint64_t most)
    {
        if (value < least || value > most) {
            found.push_back(std::string(what) + ": " + std::to_string(value) + ", planned " + std::to_string(least) +
                            (most > least ? " to " + std::to_string(most) : ""));
        }
    }
    std::vector<std::string> found;
};

} // namespace

std::vector<std::string> leaks(const Scheduler &scheduler)
{
    const certkv::Cache &cache = scheduler.cache();
    const certkv_plan &plan = scheduler.plan();
    Findings f;
    const auto evicted = cache.evict_prefixes();
    if (!evicted && evicted.status() != CERTKV_UNSUPPORTED) {
        return {std::string("prefixes could not be evicted: ") + evicted.error().message()};
    }
    const auto memory = cache.memory();
    const auto snapshot = cache.snapshot();
    if (!memory || !snapshot) {
        return {"the cache says nothing of itself"};
    }
    const certkv_snapshot &s = *snapshot;
    f.zero("sequences", s.sequences);
    f.zero("tokens", s.tokens);
    f.zero("live pages", memory->live_pages);
    f.zero("prefix units", s.prefix_units);
    const std::pair<const char *, const certkv_page_use *> pages[] = {
        {"packed pages", &s.packed_pages}, {"open pages", &s.open_pages}, {"host pages", &s.host_pages}, {"swap pages", &s.swap_pages}};
    for (const auto &[name, use] : pages) {
        f.zero(name, use->live + use->retiring + use->worn);
    }
    f.zero("bytes of codes", s.packed.used);
    f.zero("bytes of open blocks", s.scratch.used);
    f.zero("bytes of originals", s.host.used);
    f.within("reserved for codes", s.packed.reserved, plan.packed, plan.packed);
    f.within("reserved for open blocks", s.scratch.reserved, plan.scratch, plan.scratch);
    f.within("reserved for tables", s.tables.reserved, plan.tables, plan.tables);
    f.within("reserved for originals", s.host.reserved, plan.host, plan.host);
    f.within("peak of device memory", s.device_memory.peak, plan.device_bytes, plan.device_bytes + plan.later);
    f.within("peak of host memory", s.host_memory.peak, plan.host_bytes, plan.host_bytes);
    return f.found;
}

} // namespace paged_server
