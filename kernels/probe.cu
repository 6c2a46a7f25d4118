// ckv_probe: what records of one level say of their blocks, from their error summaries to where the losses of levels are made (losses.cu).
//
// CTAs of 128 threads, a block of one KV head a thread.
#include "probes.cuh"

struct CkvProbeArgs {
    const u8* records;  // [blocks][kv_heads]
    float* probes;      // of the first of them
    u64 page_bytes;     // from a block's records to the next's
    u32 record_bytes;
    u32 summary;        // where in a record its summary is
    u32 blocks;
    u32 kv_heads;
    u32 levels;
    u32 up;             // which level of the ladder
    u32 fresh;          // of the other levels nothing is known
    u32 unused;
};

extern "C" __global__ void __launch_bounds__(128) ckv_probe(const __grid_constant__ CkvProbeArgs a) {
    grid_dependency_wait();
    grid_dependency_launch();
    const u32 item = blockIdx.x * 128 + threadIdx.x;
    if (item >= a.blocks * a.kv_heads) return;
    const u32 block = item / a.kv_heads, head = item % a.kv_heads;
    // eps, eta, sop, R: places of a summary, `ErrorSummary`.
    const float* summary = (const float*)(a.records + block * a.page_bytes + (u64)head * a.record_bytes + a.summary);
    const float eps = summary[1], eta = summary[4], sop = summary[5], radius = summary[6];
    float* to = a.probes + probe_at(block, a.kv_heads, head, a.levels);
    if (a.fresh) {
        for (u32 i = 0; i < probe_floats(a.levels); ++i) to[i] = u32_as_float(0x7fc00000u);
    }
    // A side whose scales overflow has infinite errors.
    const float infinity = u32_as_float(0x7f800000u);
    if (fabsf(eps) < infinity && fabsf(eta) < infinity) {
        float* own = to + 1 + OF_LEVEL * a.up;
        to[0] = radius, own[0] = eps, own[1] = eta, own[2] = sop;
    }
}
