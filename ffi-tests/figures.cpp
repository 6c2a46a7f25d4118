// Config::plan, Cache::memory and Cache::snapshot: figures that agree.
#include "check.hpp"

int main()
{
    certkv::Config config = small();
    const auto plan = config.plan();
    const certkv::Cache cache = *certkv::Cache::create(config);
    const certkv::Sequence a = filled(cache);
    const auto seen = cache.snapshot();
    const auto memory = cache.memory();
    OK(plan);
    OK(seen);
    OK(memory);
    TRUE(plan->struct_size == sizeof(certkv_plan) && seen->struct_size == sizeof(certkv_snapshot));
    TRUE(memory->struct_size == sizeof(certkv_memory));
    TRUE(seen->packed.reserved == plan->packed && seen->tables.reserved == plan->tables && seen->host.reserved == plan->host);
    TRUE(memory->reserved_packed == plan->packed && memory->tokens == TOKENS && seen->tokens == TOKENS);
    TRUE(seen->sequences == 1 && seen->packed_pages.live == 2 && memory->live_pages > 0 && plan->device_lacks == 0);
    config.device_budget = plan->device_bytes - 1;
    TRUE(config.plan()->device_lacks == 1);
    config.tolerance = -1;
    REFUSED(CERTKV_POLICY, "tol", config.plan());
    config = small();
    config.certificate_ring = 1;
    REFUSED(CERTKV_UNSUPPORTED, "certificate_ring", config.plan());
    return report();
}
