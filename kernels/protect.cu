// ckv_protect: blocks that are read as originals whatever was measured, those that hold the first tokens of a sequence and the newest, in many layers at
// once. It comes before the first attention of a step, over blocks that have records then.
//
// Every head of a row has places of its own for their copies, in fast memory. A block has one place as long as it is protected, so that nobody takes
// another's and nothing is chosen. The word of a block that is protected names its place; what a place has not got is copied from wherever the originals
// are, before the launches that read it; and the word of a block that is protected no more is taken back.
//
// CTAs of 128 threads; the grid strides over the heads of the batch in all layers. In most steps nothing is missing, and a head costs a load of its row and its length, and one
// of each place and its word.
#include "machine.cuh"
#include "attend/args.cuh"
#include "select/args.cuh"

// Layers of a launch, at most: they are arguments.
constexpr u32 PROTECT_LAYERS = 32;

struct CkvProtectLayer {
    const u32* table;          // [rows][stride] page of the record of each full block
    const u32* hosts;          // [rows][stride] page of its originals, NO_PAGE for none
    const CkvSides* originals; // [host pages][kv_heads] where those are; 0 for nowhere near
    u32* promoted;             // [rows][kv_heads][stride]: see CkvAttendArgs
    const CkvSides* places;    // [rows][kv_heads][places] where they are; 0 for a side that has no codes
    Vec2* held;                // the same: {1 + page, number} of the block that lies there, {0, 0} for none
    u32* stats;                // [STATS] counted up: select/args.cuh
    u32 first;                 // word of a promoted block: 1 + this + the number of its place, from the first row's on
    u32 window;                // newest tokens that a query sees, its own among them
    u32 sinks;                 // and first tokens of the sequence
    u32 unused;
};

struct CkvProtectArgs {
    const u32* rows;     // [seqs] row of each sequence of the batch
    const u32* lens;     // [rows] tokens before the step's first
    const u32* recorded; // [rows] tokens of which full blocks have records
    u32 seqs;
    u32 kv_heads;
    u32 stride;
    u32 block;
    u32 side_bytes;
    u32 places;          // of a head: those of the first tokens, then at least as many as the newest can lie in
    u32 protect_sinks;
    u32 protect_recent;
    u32 alone;           // 1: nothing else is promoted
    u32 layers;
    CkvProtectLayer of[PROTECT_LAYERS];
};

namespace ckv_protected {

constexpr u32 THREADS = 128, NO_BLOCK = 0xffffffffu;

struct Shared {
    u32 found;
    u32 block[THREADS], place[THREADS];
};

// What is protected of one sequence, by its blocks: the first `fixed` and those from `recent` on, of `blocks`; of which `hidden`..`seen` are not read.
struct Range {
    u32 blocks, fixed, recent, hidden, seen;
};
CKV_FN Range range_of(const CkvProtectArgs& a, const CkvProtectLayer& layer, u32 len, u32 recorded) {
    Range r;
    // The step's first query sees one token more.
    const u32 tokens = len + 1;
    r.blocks = recorded / a.block < a.stride ? recorded / a.block : a.stride;
    r.fixed = (a.protect_sinks + a.block - 1) / a.block;
    r.recent = a.protect_recent == 0 ? NO_BLOCK : tokens > a.protect_recent ? (tokens - a.protect_recent) / a.block : 0;
    const u32 start = tokens > layer.window ? tokens - layer.window : 0;
    r.hidden = (layer.sinks + a.block - 1) / a.block;
    r.seen = start > layer.sinks ? start / a.block : 0;
    return r;
}

// The block that belongs in a place, or none.
CKV_FN u32 block_of(const CkvProtectArgs& a, const Range& r, u32 place) {
    u32 block = place;
    if (place >= r.fixed) {
        // The first from `recent` on whose distance from `fixed` has the rest `place - fixed`.
        const u32 ring = a.places - r.fixed, from = r.recent > r.fixed ? r.recent : r.fixed, rest = (from - r.fixed) % ring, want = place - r.fixed;
        if (r.recent == NO_BLOCK) return NO_BLOCK;
        block = from + (want >= rest ? want - rest : want + ring - rest);
    }
    return block < r.blocks && (block < r.hidden || block >= r.seen) ? block : NO_BLOCK;
}

// Copies a side to its place, if it has one. All threads of the CTA.
CKV_FN void copy_side(u64 from, u64 to, u32 bytes) {
    if (to == 0) return;
#pragma unroll 4
    for (u32 i = threadIdx.x; i < bytes / 16; i += THREADS) ((Vec4*)to)[i] = ((const Vec4*)from)[i];
}

// One head of one row in one layer.
CKV_FN void protect_head(const CkvProtectArgs& a, const CkvProtectLayer& layer, u32 row, u32 head, Shared& shared) {
    const Range range = range_of(a, layer, a.lens[row], a.recorded[row]);
    const u32 entry = row * a.kv_heads + head, own = entry * a.places;
    u32* words = layer.promoted + (u64)entry * a.stride;
    Vec2* held = layer.held + own;
    if (a.alone) {
        for (u32 i = threadIdx.x; i < range.blocks; i += THREADS) {
            const u32 word = words[i];
            if (word != 0 && word <= layer.first) words[i] = 0;
        }
    }
#pragma unroll 1
    for (u32 start = 0; start < a.places; start += THREADS) {
        if (threadIdx.x == 0) shared.found = 0;
        sync_threads();
        const u32 place = start + threadIdx.x;
        if (place < a.places) {
            const u32 block = block_of(a, range, place), word = 1 + layer.first + own + place;
            const Vec2 there = held[place];
            // A row has as many blocks as it had, or more: one that was cut is forgotten (select.cu).
            if (there.x != 0 && there.y != block && words[there.y] == word) words[there.y] = 0;
            if (block != NO_BLOCK) {
                const u32 page = layer.table[(u64)row * a.stride + block];
                if (there.x != 1 + page || there.y != block) {
                    const u32 at = atomic_add(&shared.found, 1);
                    shared.block[at] = block, shared.place[at] = place;
                } else if (words[block] != word) {
                    words[block] = word;
                }
            } else if (there.x != 0) {
                held[place] = Vec2{0, 0};
            }
        }
        sync_threads();
        const u32 found = shared.found;
#pragma unroll 1
        for (u32 i = 0; i < found; i++) {
            const u32 block = shared.block[i], at = shared.place[i];
            const u64 number = (u64)row * a.stride + block;
            const u32 host = layer.hosts[number];
            const CkvSides to = layer.places[own + at];
            const CkvSides from = host == NO_PAGE ? CkvSides{0, 0} : layer.originals[(u64)host * a.kv_heads + head];
            const bool there = (to.keys == 0 || from.keys != 0) && (to.values == 0 || from.values != 0);
            if (there) copy_side(from.keys, to.keys, a.side_bytes), copy_side(from.values, to.values, a.side_bytes);
            if (threadIdx.x == 0) {
                // What is out of reach is read from its codes.
                words[block] = there ? 1 + layer.first + own + at : 0;
                held[at] = there ? Vec2{1 + layer.table[number], block} : Vec2{0, 0};
                atomic_add(layer.stats + (there ? STAT_COPIES : STAT_REFUSED), (u32)(to.keys != 0) + (u32)(to.values != 0));
            }
        }
        sync_threads();
    }
}

}  // namespace ckv_protected

extern "C" __global__ void __launch_bounds__(128, 8) ckv_protect(const __grid_constant__ CkvProtectArgs a) {
    using namespace ckv_protected;
    CKV_STATIC_SHARED(Shared shared);
    grid_dependency_wait();
    grid_dependency_launch();
    const u32 heads = a.seqs * a.kv_heads, items = heads * a.layers;
#pragma unroll 1
    for (u32 item = blockIdx.x; item < items; item += gridDim.x) {
        const u32 entry = item % heads, row = a.rows[entry / a.kv_heads];
        protect_head(a, a.of[item / heads], row, entry % a.kv_heads, shared);
    }
}
