// ckv_append: one new token of every sequence of a batch, all heads, one layer: rows to the open tail and to the host's
// originals; where a row fills its block, the block is coded at once.
//
// Everything that changes from step to step is read from device memory, so that one captured launch serves every step. A
// CTA of 256 threads with PACK_SHARED bytes of shared memory takes one head of one sequence at a time, both sides of it, or one
// where the row fills the block: keys and values are then coded side by side. So a side of a tail has one writer, and packing needs
// no other CTA. The grid strides over the work, first all heads, then the second sides: twice as many CTAs as there can be heads in
// a batch and not more than two per SM. A row of the tables is named once in a batch. Each CTA looks at all rows of its
// sequence and takes the same decision as the others: a sequence with a number that is not finite in any head writes
// nothing, math.md (0.4).
#include "pack.cuh"
#include "strides.cuh"

namespace ckv_append_bits {
// Bits of a sequence's error word.
constexpr u32 NONFINITE = 1;   // an input was NaN or infinite
constexpr u32 ROUNDING = 2;    // an input was finite and its rounding to the store type is not
constexpr u32 NO_PLACE = 4;    // the sequence has no tail, or its tables end before the block
// Bits of CkvAppendArgs::flags.
constexpr u32 ADVANCE = 1;      // count the row in `lens`: set in the last layer that shares them
constexpr u32 FIRST_CENTRE = 2; // a first block that fills row by row fixes the centre: the mean of its values
constexpr u32 HOST_ROWS = 4;    // host pages get each row at once, [token][channel]; else full blocks, in fragment order
constexpr u32 SETTLED = 8;      // no launch that may still run writes tables, lengths or the count: they are read meanwhile
constexpr u32 NONE = 0xffffffffu;
// In `arrived`, above the count of CTAs: one that found an error.
constexpr u32 REFUSED = 65536;
}  // namespace ckv_append_bits

// Tables hold slot numbers, NONE for no slot; the slot's address is base + number * stride. Bases belong to one layer. A
// tail or host slot holds [kv_head][keys, values], BLOCK x DIM each, tails in fragment order; a packed slot holds records, `record_stride` bytes apart.
// All addresses, and strides in bytes, are multiples of 16.
struct CkvAppendArgs {
    const void* keys;    // [batch][kv_heads][DIM] of type `key_input`, as `key_strides` has it
    const void* values;  // the same of its own
    const u32* count;    // sequences of the batch
    const u32* rows;     // per sequence of the batch, its row in the tables below, NONE: skip; null: its own number
    u32* lens;           // per row: tokens stored
    u32* arrived;        // per row: 0 between launches
    u32* errors;         // per row: bits are added, never cleared; a sequence with errors writes nothing
    const u32* tails;    // per row
    u8* tail_base;
    u64 tail_stride;
    const u32* hosts;    // [row][blocks]; null: no originals on the host
    u8* host_base;       // mapped pinned memory
    u64 host_stride;
    const u32* packed;   // [row][blocks]; null: never packs
    u8* packed_base;
    u64 packed_stride;
    u64 record_stride;
    float* centres;      // [row][kv_heads][DIM], value centres
    u32* status;         // OR of what pack_side says; null: not wanted
    u32* clear;          // a word that is set to 0: the count of a list that later launches of the step fill; null: none
    CkvStrides key_strides;  // a token is a sequence's
    CkvStrides value_strides;
    u32 blocks;          // entries per row of `hosts` and `packed`
    u32 kv_heads;
    u32 key_input;       // 0 f16, 1 bf16, 2 f32
    u32 value_input;
    u32 flags;
    const float* metrics; // of a variant whose keys are a calibration's: of each KV head their centre, then their balance scale, and more where those have groups: grouped.cuh; or their directions: directions.cuh
    const float* reaches;  // as in CkvPackArgs
    u64* saturated;
};

namespace ckv_encode {

// Eight elements from element `at`, rounded to the store type; the error bits of the rounding.
CKV_FN u32 load_rounded(const void* from, u64 at, u32 input, u32 (&two)[4]) {
    u32 bad = 0;
    if ((int)input == STORE) {
        const Vec4 v = ldg((const Vec4*)((const u16*)from + at));
        two[0] = v.x, two[1] = v.y, two[2] = v.z, two[3] = v.w;
#pragma unroll
        for (int i = 0; i < 4; ++i) bad |= has_nonfinite<STORE>(two[i]) ? ckv_append_bits::NONFINITE : 0;
        return bad;
    }
    float x[8];
    if (input == F32) {
        const Vec4 a = ldg((const Vec4*)((const float*)from + at)), b = ldg((const Vec4*)((const float*)from + at + 4));
        const u32 words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = u32_as_float(words[i]);
    } else {
        const Vec4 v = ldg((const Vec4*)((const u16*)from + at));
        const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            x[2 * i] = input == F16 ? h_lo(words[i]) : b_lo(words[i]);
            x[2 * i + 1] = input == F16 ? h_hi(words[i]) : b_hi(words[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        two[i] = STORE == F16 ? h2_pack(x[2 * i], x[2 * i + 1]) : b2_pack(x[2 * i], x[2 * i + 1]);
        bool finite = true;
#pragma unroll
        for (int j = 0; j < 2; ++j) finite = finite && (float_as_u32(x[2 * i + j]) & 0x7f800000u) != 0x7f800000u;
        if (!finite) bad |= ckv_append_bits::NONFINITE;
        else if (has_nonfinite<STORE>(two[i])) bad |= ckv_append_bits::ROUNDING;
    }
    return bad;
}

// Puts eight neighbours of a row into a side in fragment order. Keys: pairs lie along the channels, four words. Values:
// pairs lie along the tokens, eight halves of words.
CKV_FN void put_key(u16* side, u32 token, u32 eighth, const u32 (&two)[4]) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) *(u32*)(side + original_index<true, DIM>(token, 8 * eighth + 2 * i)) = two[i];
}
CKV_FN void put_value(u16* side, u32 token, u32 eighth, const u32 (&two)[4]) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        side[original_index<false, DIM>(token, 8 * eighth + 2 * i)] = (u16)(two[i] & 0xffffu);
        side[original_index<false, DIM>(token, 8 * eighth + 2 * i + 1)] = (u16)(two[i] >> 16);
    }
}

// Which head of the batch an item is, of 2 * heads.
CKV_FN u32 number_of(u32 item, u32 heads) { return item < heads ? item : item - heads; }

// A sequence of the batch: its row in the tables, and its length, which no launch moves before all CTAs of the sequence have counted
// themselves: an item may look it up before its turn.
struct Sequence {
    u32 row, len;
};
CKV_FN Sequence sequence_of(const CkvAppendArgs& a, u32 sequence) {
    const u32 row = a.rows == nullptr ? sequence : ldg(a.rows + sequence);
    return Sequence{row, row == ckv_append_bits::NONE ? 0 : a.lens[row]};
}
// Whether its next token is its block's last.
CKV_FN bool fills(const Sequence& s) { return s.len % BLOCK + 1 == BLOCK; }

// Where that token goes. No launch of this kernel writes the tables; lengths it may.
struct Spot {
    u32 tail, host, slot;
    bool placed;
};
CKV_FN Spot spot_of(const CkvAppendArgs& a, const Sequence& sequence) {
    using namespace ckv_append_bits;
    Spot s = {NONE, NONE, NONE, false};
    if (sequence.row == NONE) return s;
    s.tail = ldg(a.tails + sequence.row);
    const u32 block = sequence.len / BLOCK;
    s.placed = s.tail != NONE && ((a.hosts == nullptr && a.packed == nullptr) || block < a.blocks);
    if (!s.placed) return s;
    const u64 at = (u64)sequence.row * a.blocks + block;
    if (a.hosts != nullptr) s.host = ldg(a.hosts + at);
    if (a.packed != nullptr && fills(sequence)) s.slot = ldg(a.packed + at);
    return s;
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

// What follows a row that fills its block, for one side: the originals' copy on the host, and the codes. `open`: the side in the tail.
template <bool KEY>
CKV_FN void close_side(const CkvAppendArgs& a, const Sequence& sequence, u32 slot, u32 head, const u16* open, u16* page, u8* shared) {
    using namespace ckv_append_bits;
    // The tail is complete for this CTA: every other row was written by an earlier launch.
    sync_threads();
    if (page != nullptr && (a.flags & HOST_ROWS) == 0) {
        // Over the host link in whole lines, where single values of fragment order would go two bytes at a time.
        for (u32 j = threadIdx.x; j < COUNT / 8; j += THREADS) ((Vec4*)page)[j] = ((const Vec4*)open)[j];
    }
    if (slot == NONE) return;
    u8* record = a.packed_base + slot * a.packed_stride + head * a.record_stride;
    float* centre = a.centres + ((u64)sequence.row * a.kv_heads + head) * DIM;
    if (!KEY && sequence.len < BLOCK && (a.flags & FIRST_CENTRE) != 0) fix_centre(open, centre);
    const Fixed fixed = fixed_of(a.reaches, a.saturated, head);
#if CKV_METRIC > 0
    const u32 said = pack_side<KEY>(open, FRAGMENT, KEY ? a.metrics + (u64)head * CKV_METRIC : centre, record, shared, fixed);
#else
    const u32 said = pack_side<KEY>(open, FRAGMENT, centre, record, shared, fixed);
#endif
    if (said != 0 && a.status != nullptr && threadIdx.x == 0) atomic_or(a.status, said);
}

// One head of sequence i of the batch: its row, and its block if the row fills it. A row that fills a block is two CTAs' work, the keys'
// and, `second`, the values'. Returns what speaks against the sequence, which then writes nothing.
CKV_FN u32 take_row(const CkvAppendArgs& a, const Sequence& sequence, const Spot& spot, u32 i, u32 head, bool second, u8* shared) {
    using namespace ckv_append_bits;
    // All rows of the sequence are looked at, this CTA's own head is what it keeps.
    u32 bad = 0, two[4];
    for (u32 e = threadIdx.x; e < a.kv_heads * DIM / 8; e += THREADS) {
        const u32 h = e / (DIM / 8), at = 8 * (e % (DIM / 8));
        bad |= load_rounded(a.keys, row_at(a.key_strides, i, h) + at, a.key_input, two);
        bad |= load_rounded(a.values, row_at(a.value_strides, i, h) + at, a.value_input, two);
    }
    if (!spot.placed) bad |= NO_PLACE;
    bad = cta_union(bad, work_of(shared).flags);
    if (bad != 0) {
        if (threadIdx.x == 0) atomic_or(a.errors + sequence.row, bad);
        return bad;
    }
    const u32 token = sequence.len % BLOCK;
    const bool full = fills(sequence);
    const u64 at = (u64)(2 * head) * COUNT;
    u16* open = (u16*)(a.tail_base + spot.tail * a.tail_stride) + at;
    u16* page = spot.host == NONE ? nullptr : (u16*)(a.host_base + spot.host * a.host_stride) + at;
    // Half the CTA keeps the key, half the value.
    const u32 half = threadIdx.x / (THREADS / 2), eighth = threadIdx.x % (THREADS / 2);
    if (eighth < DIM / 8 && (!full || second == (half != 0))) {
        const u64 from = row_at(half == 0 ? a.key_strides : a.value_strides, i, head) + 8 * eighth;
        load_rounded(half == 0 ? a.keys : a.values, from, half == 0 ? a.key_input : a.value_input, two);
        if (half == 0) {
            put_key(open, token, eighth, two);
        } else {
            put_value(open + COUNT, token, eighth, two);
        }
        if (page != nullptr && (a.flags & HOST_ROWS) != 0) {
            ((Vec4*)(page + half * COUNT + token * DIM))[eighth] = Vec4{two[0], two[1], two[2], two[3]};
        }
    }
    if (full && !second) close_side<true>(a, sequence, spot.slot, head, open, page, shared);
    if (full && second) close_side<false>(a, sequence, spot.slot, head, open + COUNT, page == nullptr ? nullptr : page + COUNT, shared);
    return 0;
}

}  // namespace ckv_encode

extern "C" __global__ void __launch_bounds__(256, 2) ckv_append(const __grid_constant__ CkvAppendArgs a) {
    using namespace ckv_encode;
    using namespace ckv_append_bits;
    CKV_DYNAMIC_SHARED(shared);
    const bool settled = (a.flags & SETTLED) != 0;
    if (!settled) grid_dependency_wait();
    const u32 heads = a.kv_heads * ldg(a.count), work = 2 * heads;
    Sequence sequence = {NONE, 0};
    if (blockIdx.x < work) sequence = sequence_of(a, number_of(blockIdx.x, heads) / a.kv_heads);
    const Spot first = spot_of(a, sequence);
    if (settled) grid_dependency_wait();
    // Not before: measured, the step is slower when what comes next takes multiprocessors that early.
    grid_dependency_launch();
    if (a.clear != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *a.clear = 0;
    for (u32 item = blockIdx.x; item < work; item += gridDim.x) {
        const bool second = item >= heads;
        const u32 number = number_of(item, heads), i = number / a.kv_heads, head = number - i * a.kv_heads;
        // The next one's, meanwhile: most items are second sides of blocks that do not fill.
        const u32 following = item + gridDim.x;
        const Sequence here = sequence;
        if (following < work) sequence = sequence_of(a, number_of(following, heads) / a.kv_heads);
        if (here.row == NONE) continue;
        u32 bad = 0;
        if (!second || fills(here)) {
            bad = take_row(a, here, item == blockIdx.x ? first : spot_of(a, here), i, head, second, shared);
        }
        // The last CTA of the sequence counts the row: the others, idle ones too, have read the old length. Idle ones do not
        // know what the others found, so that goes with the count.
        sync_threads();
        if ((a.flags & ADVANCE) != 0 && threadIdx.x == 0) {
            const u32 before = atomic_add_acq_rel(a.arrived + here.row, bad == 0 ? 1 : 1 + REFUSED);
            if (before % REFUSED == 2 * a.kv_heads - 1) {
                a.arrived[here.row] = 0;
                if (before < REFUSED && bad == 0) a.lens[here.row] = here.len + 1;
            }
        }
    }
}
