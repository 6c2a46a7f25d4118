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
    const auto many = config.plan_requests(3, 100);
    TRUE(many && many->max_tokens == 3 * 112 && many->most > 3 && many->device_bytes > 0);
    REFUSED(CERTKV_INVALID_ARGUMENT, "requests->count", config.plan_requests(0, 100));
    REFUSED(CERTKV_INVALID_ARGUMENT, "requests->scratch", config.plan_requests(1, 100, 2));
    std::vector<char> text(65536);
    const auto bytes = cache.metrics("a", text);
    TRUE(bytes && *bytes == std::strlen(text.data()) && std::strstr(text.data(), "certkv_tokens{cache=\"a\"} 40\n") != nullptr);
    TRUE(*cache.metrics("a", {}) == *bytes);
    REFUSED(CERTKV_SHAPE, "text", cache.metrics("a", {text.data(), 5}));
    const auto machine = certkv::capabilities();
    TRUE(machine && machine->cpu >= CERTKV_CPU_GENERIC && machine->cpu <= CERTKV_CPU_AVX512);
    TRUE((machine->gpus > 0) <= (machine->cuda == CERTKV_OK));
    REFUSED(CERTKV_INVALID_ARGUMENT, "device", certkv::describe_gpu(CERTKV_DEVICE_HOST));
    if (machine->gpus == 0) {
        REFUSED(CERTKV_DEVICE, "", certkv::describe_gpu());
    } else {
        TRUE(certkv::describe_gpu()->memory > 0);
    }
    TRUE(config.prepare()->kernels == 0 && config.prepare()->compiled == 0);
    config.device_budget = plan->device_bytes - 1;
    TRUE(config.plan()->device_lacks == 1);
    config.tolerance = -1;
    REFUSED(CERTKV_POLICY, "tol", config.plan());
    REFUSED(CERTKV_POLICY, "tol", config.prepare());
    config = small();
    config.certificate_ring = 1;
    REFUSED(CERTKV_UNSUPPORTED, "certificate_ring", config.plan());
    return report();
}
