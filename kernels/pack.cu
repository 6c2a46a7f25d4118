// ckv_pack: codes full blocks of 16-bit originals as records in fragment order, with their error summaries.
//
// A list of blocks in device memory, its length too, so that a captured launch packs whatever is on the list when it runs.
// CTAs of 256 threads with PACK_SHARED bytes of shared memory; CTA 2i packs the keys of item i, CTA 2i + 1 its values,
// and so on in strides of the grid.
#include "pack.cuh"

// One block of one KV head. All addresses are multiples of 16; originals may lie in mapped pinned memory.
struct CkvPackItem {
    const u16* keys;      // BLOCK x DIM, in the launch's order
    const u16* values;    // the same
    const float* centre;  // [DIM], the head's value centre
    u8* record;
};

struct CkvPackArgs {
    const CkvPackItem* items;
    const u32* count;  // items on the list
    u32* status;       // OR of OVERFLOW and NONFINITE over all sides; null: not wanted
    u32 order;         // of the originals: 0 [token][channel], 1 fragment order
    u32 kv_heads;      // with metrics or fixed scales: item i is of head i % kv_heads; at least 1
    const float* metrics;  // of a variant whose keys are a calibration's: of each KV head their centre, then their balance scale, and more where those have groups: grouped.cuh; or their directions: directions.cuh
    const float* reaches;  // of sides with one scale per group: [kv_heads][2][CKV_DIM / 16] what fixed scales reach, keys then values; null: a block's own
    u64* saturated;        // elements beyond them are added; null: not wanted
};

extern "C" __global__ void __launch_bounds__(256, 2) ckv_pack(const __grid_constant__ CkvPackArgs a) {
    CKV_DYNAMIC_SHARED(shared);
    grid_dependency_wait();
    grid_dependency_launch();
    const u32 sides = 2 * *a.count;
    for (u32 i = blockIdx.x; i < sides; i += gridDim.x) {
        const CkvPackItem item = a.items[i / 2];
#if CKV_METRIC > 0
        const float* of_keys = a.metrics + (u64)(i / 2 % a.kv_heads) * CKV_METRIC;
#else
        const float* of_keys = item.centre;
#endif
        const ckv_encode::Fixed fixed = ckv_encode::fixed_of(a.reaches, a.saturated, i / 2 % a.kv_heads);
        const u32 bad = i % 2 == 0 ? ckv_encode::pack_side<true>(item.keys, a.order, of_keys, item.record, shared, fixed)
                                   : ckv_encode::pack_side<false>(item.values, a.order, item.centre, item.record, shared, fixed);
        if (bad != 0 && a.status != nullptr && threadIdx.x == 0) atomic_or(a.status, bad);
    }
}
