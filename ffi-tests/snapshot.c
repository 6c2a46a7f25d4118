/* What a cache and a configuration say of themselves: every wrong call, and figures that agree. */
#include "life.h"

static uint64_t words[128];

static void wrong(certkv_cache *cache)
{
    certkv_config config = small();
    certkv_snapshot seen;
    certkv_plan plan;
    memset(&seen, 0xee, sizeof seen);
    memset(&plan, 0xee, sizeof plan);
    EXPECT(CERTKV_STRUCT_SIZE, certkv_cache_snapshot(cache, &seen));
    EXPECT(CERTKV_STRUCT_SIZE, certkv_config_plan(&config, &plan));
    seen.struct_size = plan.struct_size = 4;
    EXPECT(CERTKV_STRUCT_SIZE, certkv_cache_snapshot(cache, &seen));
    EXPECT(CERTKV_STRUCT_SIZE, certkv_config_plan(&config, &plan));
    EXPECT(CERTKV_NULL_POINTER, certkv_cache_snapshot(cache, NULL));
    EXPECT(CERTKV_NULL_POINTER, certkv_config_plan(&config, NULL));
    EXPECT(CERTKV_MISALIGNED, certkv_cache_snapshot(cache, ODD(certkv_snapshot, words)));
    EXPECT(CERTKV_MISALIGNED, certkv_config_plan(&config, ODD(certkv_plan, words)));
    seen.struct_size = (uint32_t)sizeof seen;
    plan.struct_size = (uint32_t)sizeof plan;
    EXPECT(CERTKV_NULL_POINTER, certkv_cache_snapshot(NULL, &seen));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_snapshot(FOREIGN(certkv_cache), &seen));
    EXPECT(CERTKV_NULL_POINTER, certkv_config_plan(NULL, &plan));
    EXPECT(CERTKV_MISALIGNED, certkv_config_plan(ODD(const certkv_config, words), &plan));
    config.struct_size = 4;
    EXPECT(CERTKV_STRUCT_SIZE, certkv_config_plan(&config, &plan));
    config = small();
    config.max_tokens = UINT64_MAX;
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_config_plan(&config, &plan));
    config = small();
    config.format = "k8";
    EXPECT(CERTKV_FORMAT, certkv_config_plan(&config, &plan));
    config = small();
    config.tolerance = -1;
    EXPECT(CERTKV_POLICY, certkv_config_plan(&config, &plan));
    config = small();
    config.certificate_ring = 1;
    EXPECT(CERTKV_UNSUPPORTED, certkv_config_plan(&config, &plan));
    TRUE(seen.tokens == 0xeeeeeeeeeeeeeeeeu && plan.packed == 0xeeeeeeeeeeeeeeeeu && words[0] == 0);
    seen.struct_size = (uint32_t)offsetof(certkv_snapshot, tokens);
    plan.struct_size = (uint32_t)offsetof(certkv_plan, scratch);
    config = small();
    EXPECT(CERTKV_OK, certkv_cache_snapshot(cache, &seen));
    EXPECT(CERTKV_OK, certkv_config_plan(&config, &plan));
    TRUE(seen.tokens == 0xeeeeeeeeeeeeeeeeu && plan.scratch == 0xeeeeeeeeeeeeeeeeu); /* Nothing beyond the caller's struct. */
    TRUE(seen.sequences == 0 && plan.packed > 0);
}

static void figures(certkv_cache *cache)
{
    certkv_snapshot seen;
    certkv_plan plan;
    certkv_config config = small();
    certkv_step *step = NULL;
    certkv_sequence a = filled(cache), fork = 0;
    config.format = "k8-v4g32-b16";
    config.max_tokens = 256;
    config.swap_tokens = 64;
    config.prefix_units = 4;
    seen.struct_size = (uint32_t)sizeof seen;
    plan.struct_size = (uint32_t)sizeof plan;
    EXPECT(CERTKV_OK, certkv_config_plan(&config, &plan));
    EXPECT(CERTKV_OK, certkv_cache_snapshot(cache, &seen));
    TRUE(seen.packed.reserved == plan.packed && seen.scratch.reserved == plan.scratch);
    TRUE(seen.tables.reserved == plan.tables && seen.host.reserved == plan.host);
    TRUE(plan.packed + plan.scratch + plan.tables == plan.device_bytes && plan.host == plan.host_bytes);
    TRUE(seen.device_memory.reserved == plan.device_bytes && seen.host_memory.budget == UINT64_MAX);
    TRUE(plan.device_lacks == 0 && plan.host_lacks == 0 && plan.assumed == 0 && plan.later > 0);
    TRUE(seen.sequences == 1 && seen.busy == 0 && seen.tokens == TOKENS && seen.reserved == 0);
    TRUE(seen.packed_pages.live == 2 && seen.open_pages.live == 1 && seen.host_pages.live == 3);
    TRUE(seen.swap_pages.live == 0 && seen.swap_pages.free >= 4 && seen.prefix_capacity == 4);
    EXPECT(CERTKV_OK, certkv_sequence_fork(cache, a, &fork));
    EXPECT(CERTKV_OK, certkv_sequence_swap_out(cache, fork, NULL));
    EXPECT(CERTKV_OK, begin(cache, a, 1, &step));
    EXPECT(CERTKV_OK, certkv_cache_snapshot(cache, &seen)); /* Also while a step is open. */
    TRUE(seen.sequences == 2 && seen.busy == 1 && seen.tokens == TOKENS);
    TRUE(seen.swap_outs.done == 1 && seen.swap_outs.failed == 0 && seen.swap_ins.done == 0 && seen.copies.done > 0);
    EXPECT(CERTKV_OK, certkv_step_abort(step));
    config.device_budget = plan.device_bytes - 1;
    config.host_budget = plan.host_bytes - 2;
    EXPECT(CERTKV_OK, certkv_config_plan(&config, &plan));
    TRUE(plan.device_lacks == 1 && plan.host_lacks == 2 && plan.device_budget == plan.device_bytes - 1);
}

int main(void)
{
    certkv_cache *cache = open_cache(64, 4);
    certkv_snapshot seen;
    wrong(cache);
    figures(cache);
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
    seen.struct_size = (uint32_t)sizeof seen;
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_snapshot(cache, &seen));
    return report();
}
