// ckv_close: the blocks that a step's tokens have filled, of many layers at once: their codes, and the value centre that a first block fixes. Their
// originals stay in the tails; a copy engine takes them to the host from there.
//
// To code a block takes one CTA 15 us, and few blocks fill in a step. One layer behind the other, every layer would wait for that; all layers
// of a step together take little longer than one. So append.cu leaves a full block in its tail, attention of the step reads it there, and
// this launch ends the step. Which blocks are full follows from lengths in device memory: a captured launch serves every step, and one of a step that
// fills nothing looks at the lengths and ends.
//
// Where a sequence has several tokens in a step, a block fills that is not its last: such are named one by one, with BY_PLACE.
//
// CTAs of 256 threads with PACK_SHARED bytes of shared memory, at most two to a multiprocessor; the grid strides over the sides of all heads.
#include "pack.cuh"

// Layers of a launch, at most: they are arguments.
constexpr u32 CLOSE_LAYERS = 32;

// One layer. Tables hold slot numbers, NONE for no slot; the slot's address is base + number * stride.
struct CkvCloseLayer {
    const u32* tails;    // per row, or by place
    const u8* tail_base; // a tail slot: [kv_head][keys, values], BLOCK x DIM each, in fragment order
    const u32* packed;   // [row][blocks]
    u8* packed_base;     // a page: [kv_head] records, `record_stride` bytes apart
    float* centres;      // [row][kv_heads][DIM], value centres
    const float* metrics; // of a variant whose keys are a calibration's: of each KV head their centre, then their balance scale, and more where those have groups: grouped.cuh; or their directions: directions.cuh
    const float* reaches; // as in CkvPackArgs
};

// Addresses, and strides in bytes, are multiples of 16.
struct CkvCloseArgs {
    const u32* count;    // sequences of the batch
    const u32* rows;     // per sequence of the batch, its row in the tables, NONE: skip; null: its own number
    const u32* lens;     // per row: tokens, the step's included; or by place: tokens up to the end of a full block
    u64 tail_stride;
    u64 packed_stride;
    u64 record_stride;
    u32* status;         // OR of what pack_side says; null: not wanted
    u64* saturated;      // as in CkvPackArgs
    u32 blocks;          // entries per row of `packed`
    u32 kv_heads;
    u32 layers;
    u32 flags;           // BY_PLACE or 0
    CkvCloseLayer of[CLOSE_LAYERS];
};

namespace ckv_encode {

constexpr u32 NONE = 0xffffffffu;
// Bit of `flags`: lengths and tails are by place in the batch, not by row.
constexpr u32 BY_PLACE = 1;

CKV_FN u32 row_of(const CkvCloseArgs& a, u32 place) { return a.rows == nullptr ? place : a.rows[place]; }
// Where lengths and tails are.
CKV_FN u32 index_of(const CkvCloseArgs& a, u32 place) { return (a.flags & BY_PLACE) != 0 ? place : row_of(a, place); }

// The place of the batch, if it has a block to be closed, or NONE.
CKV_FN u32 full_place(const CkvCloseArgs& a, u32 place) {
    const u32 row = row_of(a, place);
    if (row == NONE) return NONE;
    const u32 len = a.lens[index_of(a, place)];
    return len > 0 && len % BLOCK == 0 && len / BLOCK <= a.blocks ? place : NONE;
}

// The `which`-th of those places, NONE if they are fewer. Every warp for itself.
CKV_FN u32 find_place(const CkvCloseArgs& a, u32 which) {
    const u32 seqs = *a.count;
#pragma unroll 1
    for (u32 first = 0; first < seqs; first += 32) {
        const u32 place = first + (u32)lane() < seqs ? full_place(a, first + (u32)lane()) : NONE;
        u32 full = ballot(place != NONE);
        const u32 here = popc(full);
        if (which < here) {
#pragma unroll 1
            for (; which > 0; --which) full &= full - 1;
            return shfl(place, (int)popc((full & (0u - full)) - 1));
        }
        which -= here;
    }
    return NONE;
}

// The mean of the block's values, the sums in token order as in centre.rs; in step at the end.
CKV_FN void fix_centre(const u16* values, float* centre) {
    if (threadIdx.x < DIM) {
        double sum = 0.0;
        for (u32 t = 0; t < BLOCK; ++t) sum += (double)original<STORE>(values[original_index<false, DIM>(t, threadIdx.x)]);
        centre[threadIdx.x] = (float)(sum / (double)BLOCK);
    }
    sync_threads();
}

// One side of one head of the full block of a place.
template <bool KEY> CKV_FN void close_side(const CkvCloseArgs& a, const CkvCloseLayer& layer, u32 place, u32 head, u8* shared) {
    const u32 row = row_of(a, place), index = index_of(a, place), block = a.lens[index] / BLOCK - 1;
    const u64 entry = (u64)row * a.blocks + block;
    const u32 tail = layer.tails[index], slot = layer.packed[entry];
    if (tail == NONE || slot == NONE) return;
    const u16* open = (const u16*)(layer.tail_base + tail * a.tail_stride) + (u64)(2 * head + !KEY) * COUNT;
    float* centre = layer.centres + ((u64)row * a.kv_heads + head) * DIM;
    if (!KEY && block == 0) fix_centre(open, centre);
#if CKV_METRIC > 0
    const float* coded_by = KEY ? layer.metrics + (u64)head * CKV_METRIC : centre;
#else
    const float* coded_by = centre;
#endif
    u8* record = layer.packed_base + slot * a.packed_stride + head * a.record_stride;
    const u32 said = pack_side<KEY>(open, FRAGMENT, coded_by, record, shared, fixed_of(layer.reaches, a.saturated, head));
    if (said != 0 && a.status != nullptr && threadIdx.x == 0) atomic_or(a.status, said);
}

}  // namespace ckv_encode

extern "C" __global__ void __launch_bounds__(256, 2) ckv_close(const __grid_constant__ CkvCloseArgs a) {
    using namespace ckv_encode;
    CKV_DYNAMIC_SHARED(shared);
    grid_dependency_wait();
    grid_dependency_launch();
    const u32 sides = 2 * a.kv_heads * a.layers;
#pragma unroll 1
    for (u32 item = blockIdx.x;; item += gridDim.x) {
        const u32 place = find_place(a, item / sides);
        if (place == NONE) return;
        const u32 side = item % sides, head = side / 2 % a.kv_heads;
        const CkvCloseLayer& layer = a.of[side / 2 / a.kv_heads];
        if (side % 2 == 0) close_side<true>(a, layer, place, head, shared);
        else close_side<false>(a, layer, place, head, shared);
    }
}
