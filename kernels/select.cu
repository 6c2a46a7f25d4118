// ckv_select: which blocks the next attend reads as 16-bit originals, chosen from what the last one measured, math.md 6.4 and
// 6.6; and which of them come to scratch.
//
// One CTA of 256 threads takes a KV head of a sequence at a time; the grid strides over them. All lengths are read from
// device memory, so that one captured launch serves every step. What a plan chooses depends on masses, certificates and the
// row's own present set alone, a repair's choice also on what of it is in scratch; who gets the last free slot may depend on
// the order of CTAs. Within a step the choice for heads over tolerance is made by the launch that then reads them: ladder.cu.
#include "machine.cuh"
#include "attend/args.cuh"

constexpr u32 CHOOSERS = 256;
#include "select/choose.cuh"

// A mode that the ladder does not have: as FORGET, and what lay in the slots of the pages is overwritten.
constexpr u32 ERASE = 4;

// Forgets the sides of a page, and erases their slots: a warp to a side.
CKV_FN void erase(const CkvSelectArgs& a, u32 page) {
    for (u32 i = warp(); i < 2 * a.kv_heads; i += CHOOSERS / 32) {
        const CkvSlotPool& pool = i & 1 ? a.values : a.keys;
        const u32 item = page * 2 * a.kv_heads + i, there = a.resident[item] & ~choice::BUSY;
        const bool has = there != 0 && there <= pool.count && pool.owner[there - 1] == 1 + item;
        syncwarp();
        if (lane() == 0) choice::forget_item(a, pool, item);
        if (!has) continue;
        Vec4* slot = (Vec4*)(pool.base + (u64)(there - 1) * choice::SIDE_BYTES);
        for (u32 at = lane(); at < choice::SIDE_BYTES / 16; at += 32) slot[at] = Vec4{0, 0, 0, 0};
    }
}

// Nothing is known any more of what lies in a row's places of protected blocks; they are erased, too, where that is the mode.
CKV_FN void forget_places(const CkvSelectArgs& a, u32 row) {
    const u32 count = a.kv_heads * a.places, own = row * count;
    for (u32 i = threadIdx.x; i < count; i += CHOOSERS) a.held[own + i] = Vec2{0, 0};
    const CkvSides* of = a.sides + 2 * choice::items_of(a) + own;
    for (u32 i = warp(); i < 2 * count && a.mode == ERASE; i += CHOOSERS / 32) {
        const u64 at = i & 1 ? of[i / 2].values : of[i / 2].keys;
        for (u32 word = lane(); word < choice::SIDE_BYTES / 16 && at; word += 32) ((Vec4*)at)[word] = Vec4{0, 0, 0, 0};
    }
}

CKV_FN void forget(const CkvSelectArgs& a) {
    const u32 count = a.only[0];
    for (u32 e = blockIdx.x; e < count; e += gridDim.x) {
        const u32 entry = a.only[1 + e];
        if (entry & ROW_ENTRY) {
            const u64 line = (u64)a.kv_heads * a.table_stride;
            for (u64 i = threadIdx.x; i < line; i += CHOOSERS) a.promoted[(entry & ~ROW_ENTRY) * line + i] = 0;
            if (a.held) forget_places(a, entry & ~ROW_ENTRY);
        } else if (entry & BLOCK_ENTRY) {
            const u32 at = entry & ~BLOCK_ENTRY, row = at / a.table_stride, block = at % a.table_stride;
            for (u32 h = threadIdx.x; h < a.kv_heads; h += CHOOSERS) a.promoted[((u64)row * a.kv_heads + h) * a.table_stride + block] = 0;
        } else if (entry < a.pages && a.mode == ERASE) {
            erase(a, entry);
        } else if (entry < a.pages) {
            for (u32 i = threadIdx.x; i < 2 * a.kv_heads; i += CHOOSERS) {
                choice::forget_item(a, i & 1 ? a.values : a.keys, entry * 2 * a.kv_heads + i);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, 1) ckv_select(const __grid_constant__ CkvSelectArgs a) {
    CKV_STATIC_SHARED(choice::Work w);
    grid_dependency_wait();
    grid_dependency_launch();
    if (blockIdx.x == 0) clear_words(a);
    if (a.mode == FORGET || a.mode == ERASE) return forget(a);
    const bool listed = a.mode == REPAIR || a.mode == REFINE;
    const u32 heads = listed ? a.only[0] : a.seqs * a.kv_heads;
    if (blockIdx.x >= heads) return;
    const u32 step = *a.step;
    choice::begin(w);
    for (u32 e = blockIdx.x; e < heads; e += gridDim.x) choice::choose(a, listed ? a.only[1 + e] : e, w, step);
    choice::end(a, w);
}
