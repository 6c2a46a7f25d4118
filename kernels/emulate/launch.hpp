// Launching an emulated kernel from C. A program for one kernel source is
//     #include "attend.cu"
//     #include "emulate/launch.hpp"
//     CKV_EMULATED(ckv_attend)
// compiled as C++17 with -DCKV_EMULATE into a shared object; ckv_emulate_launch is what it exports.
#pragma once
#include "machine.hpp"

namespace ckv_emulate {

// A launch; the twin of `Request` in the test helper that calls it.
struct Launch {
    const char* kernel;
    const void* args;
    u64 args_bytes;
    const Range* ranges;  // the buffers the kernel may touch through the machine's operations; none: not checked
    u64 range_count;
    u64 seed;
    u32 grid, block, shared, options;
    char* error;
    u64 error_bytes;
    const Range* late;  // what a thread may read through the machine's operations behind its grid_dependency_wait only
    u64 late_count;
    u8** stacks;  // see fiber.hpp; nobody else's while the launch runs
};

struct Kernel {
    const char* name;
    void (*entry)(const void*);
    size_t args_bytes;
    const Kernel* next;
};
static const Kernel* kernels = nullptr;

template <class Args> static constexpr size_t bytes_of(void (*)(Args)) { return sizeof(Args); }
template <class Args> static inline void call(void (*kernel)(Args), const void* args) { kernel(*(const Args*)args); }

struct Listed {
    explicit Listed(Kernel* k) {
        k->next = kernels;
        kernels = k;
    }
};

static void run_grid(const Launch& launch) {
    const Kernel* k = kernels;
    while (k && strcmp(k->name, launch.kernel)) k = k->next;
    if (!k) return fail("no kernel %s in this source", launch.kernel);
    if (k->args_bytes != launch.args_bytes)
        return fail("%s takes %zu bytes of arguments, not %llu", k->name, k->args_bytes, launch.args_bytes);
    if (launch.block == 0 || launch.block % 32 || launch.block > MAX_THREADS)
        return fail("block of %u threads: a multiple of 32 up to %u is needed", launch.block, MAX_THREADS);
    if (launch.shared + static_shared_bytes() > MAX_SHARED)
        return fail("%u bytes of dynamic and %zu of static shared memory", launch.shared, static_shared_bytes());
    alignas(64) static u8 args[4096];
    if (launch.args_bytes > sizeof(args)) return fail("more than %zu bytes of arguments", sizeof(args));
    memcpy(args, launch.args, launch.args_bytes);
    entry = k->entry;
    arguments = args;
    ranges = launch.ranges;
    range_count = launch.range_count;
    last_range = 0;
    late = launch.late;
    late_count = launch.late_count;
    stacks = launch.stacks;
    options = launch.options;
    launch_seed = order_state = launch.seed;
    noise_state = launch.seed + 1;
    shared_bytes = launch.shared;
    warp_count = launch.block / 32;
    blockDim = {launch.block, 1, 1};
    gridDim = {launch.grid, 1, 1};
    std::vector<u32> order(launch.grid);
    for (u32 i = 0; i < launch.grid; ++i) order[i] = i;
    for (u32 i = launch.grid; launch.seed && i > 1; --i) std::swap(order[i - 1], order[mix(order_state) % i]);
    for (u32 i = 0; i < launch.grid && !failed; ++i) {
        blockIdx = {order[i], 0, 0};
        run_cta();
    }
}

static std::mutex one_launch;

}  // namespace ckv_emulate

#define CKV_EMULATED(name)                                                                                              \
    static void ckv_call_##name(const void* args) { ckv_emulate::call(name, args); }                                     \
    static ckv_emulate::Kernel ckv_kernel_##name{#name, ckv_call_##name, ckv_emulate::bytes_of(name), nullptr};          \
    static const ckv_emulate::Listed ckv_listed_##name(&ckv_kernel_##name);

// Runs a grid to its end: 0, or 1 with a message that says which thread did what on which line of the kernel.
extern "C" __attribute__((visibility("default"))) int ckv_emulate_launch(const ckv_emulate::Launch* launch) {
    using namespace ckv_emulate;
    const std::lock_guard<std::mutex> guard(one_launch);
    failed = false;
    current = nullptr;
    message[0] = 0;
    run_grid(*launch);
    if (failed && launch->error_bytes) snprintf(launch->error, launch->error_bytes, "%s", message);
    return failed;
}
