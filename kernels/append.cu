// ckv_append: one new token of every sequence of a batch, or several of each, all heads, one layer: rows to the open tail, and their norms. A block that they fill stays there
// until the step is over and close.cu has coded it.
//
// Everything that changes from step to step is read from device memory, so that one captured launch serves every step. A
// CTA of 256 threads takes one head of one sequence at a time, both sides of it; the grid strides over the heads of the batch. So a head
// has one writer. A row of the tables is named once in a batch, but with BY_PLACE once for each of its tokens. Each CTA looks at all rows of its sequence and takes the same decision
// as the others: a token with a number that is not finite in any head is refused, math.md (0.4). Its row is zeros, so that its block can be coded and nobody meets
// what memory held before, and the word of the sequence says so (refused.cuh).
#include "machine.cuh"
#include "codec/fragment.cuh"
#include "refused.cuh"
#include "row_norm.cuh"
#include "strides.cuh"
#include "summary.cuh"

namespace ckv_append_bits {
// Bits of CkvAppendArgs::flags.
constexpr u32 SETTLED = 1;     // no launch that may still run writes tables, lengths or the count: they are read meanwhile
constexpr u32 BY_PLACE = 2;    // lengths and tails are by place in the batch, not by row: of every new token, where a sequence has several
constexpr u32 NONE = 0xffffffffu;
}  // namespace ckv_append_bits

// Tables hold slot numbers, NONE for no slot; the slot's address is base + number * stride. Bases belong to one layer. A
// tail slot holds [kv_head][keys, values], BLOCK x DIM each, in fragment order. All addresses, and strides in bytes, are multiples of 16.
struct CkvAppendArgs {
    const void* keys;    // [batch][kv_heads][DIM] of type `key_input`, as `key_strides` has it
    const void* values;  // the same of its own
    const u32* count;    // sequences of the batch
    const u32* rows;     // per sequence of the batch, its row in the tables below, NONE: skip; null: its own number
    const u32* lens;     // per row, or by place: tokens before this one
    u32* errors;         // per row: refused.cuh; a token that is refused enters it, and none is taken out
    const u32* tails;    // per row, or by place
    u8* tail_base;
    u64 tail_stride;
    Vec2* row_norms;     // of the layer's tails: row_norm.cuh
    u32* clear;          // a word that is set to 0: the count of a list that later launches of the step fill; null: none
    CkvStrides key_strides;  // a token is a sequence's
    CkvStrides value_strides;
    u32 blocks;          // that a sequence can have
    u32 kv_heads;
    u32 key_input;       // 0 f16, 1 bf16, 2 f32
    u32 value_input;
    u32 flags;
};

namespace ckv_encode {

constexpr u32 DIM = CKV_DIM, BLOCK = CKV_BLOCK, COUNT = DIM * BLOCK;
constexpr int STORE = CKV_STORE;

// Eight elements from element `at`, rounded to the store type; the error bits of the rounding.
CKV_FN u32 load_rounded(const void* from, u64 at, u32 input, u32 (&two)[4]) {
    u32 bad = 0;
    if ((int)input == STORE) {
        const Vec4 v = ldg((const Vec4*)((const u16*)from + at));
        two[0] = v.x, two[1] = v.y, two[2] = v.z, two[3] = v.w;
#pragma unroll
        for (int i = 0; i < 4; ++i) bad |= has_nonfinite<STORE>(two[i]) ? ckv_refused::NONFINITE : 0;
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
        if (!finite) bad |= ckv_refused::NONFINITE;
        else if (has_nonfinite<STORE>(two[i])) bad |= ckv_refused::ROUNDING;
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

// A sequence of the batch: its row in the tables, its length and its tail.
struct Sequence {
    u32 row, len, tail;
};
CKV_FN Sequence sequence_of(const CkvAppendArgs& a, u32 sequence) {
    const u32 row = a.rows == nullptr ? sequence : ldg(a.rows + sequence);
    if (row == ckv_append_bits::NONE) return Sequence{row, 0, 0};
    const u32 at = (a.flags & ckv_append_bits::BY_PLACE) != 0 ? sequence : row;
    return Sequence{row, ldg(a.lens + at), ldg(a.tails + at)};
}

// One head of sequence i of the batch.
CKV_FN void take_row(const CkvAppendArgs& a, const Sequence& sequence, u32 i, u32 head, u32* slots) {
    using namespace ckv_refused;
    // All rows of the sequence are looked at, this CTA's own head is what it keeps. Half the CTA has the keys, half the values.
    const u32 half = threadIdx.x / (THREADS / 2), me = threadIdx.x % (THREADS / 2);
    const void* from = half == 0 ? a.keys : a.values;
    const CkvStrides& strides = half == 0 ? a.key_strides : a.value_strides;
    const u32 input = half == 0 ? a.key_input : a.value_input;
    u32 bad = 0, two[4];
    for (u32 e = me; e < a.kv_heads * DIM / 8; e += THREADS / 2) {
        bad |= load_rounded(from, row_at(strides, i, e / (DIM / 8)) + 8 * (e % (DIM / 8)), input, two);
    }
    if (sequence.tail == ckv_append_bits::NONE || sequence.len / BLOCK >= a.blocks) bad |= NO_PLACE;
    bad = cta_union(bad, slots);
    if (bad != 0 && threadIdx.x == 0) atomic_max(a.errors + sequence.row, word_of(sequence.len, bad));
    if ((bad & NO_PLACE) != 0) return;
    // One warp of each half has the row.
    if (me >= 32) return;
    const u32 token = sequence.len % BLOCK;
    u16* open = (u16*)(a.tail_base + sequence.tail * a.tail_stride) + (u64)(2 * head + half) * COUNT;
    two[0] = two[1] = two[2] = two[3] = 0;
    if (me < DIM / 8) {
        if (bad == 0) load_rounded(from, row_at(strides, i, head) + 8 * me, input, two);
        if (half == 0) {
            put_key(open, token, me, two);
        } else {
            put_value(open, token, me, two);
        }
    }
    const float square = row_square<STORE>(two);
    if (me == 0) ((float*)(a.row_norms + row_norm_at(sequence.tail, a.kv_heads, head, BLOCK, token)))[half] = square;
}

}  // namespace ckv_encode

extern "C" __global__ void __launch_bounds__(256, 2) ckv_append(const __grid_constant__ CkvAppendArgs a) {
    using namespace ckv_encode;
    using namespace ckv_append_bits;
    CKV_STATIC_SHARED(u32 slots[WARPS]);
    const bool settled = (a.flags & SETTLED) != 0;
    if (!settled) grid_dependency_wait();
    const u32 work = a.kv_heads * ldg(a.count);
    Sequence first = {NONE, 0, 0};
    if (blockIdx.x < work) first = sequence_of(a, blockIdx.x / a.kv_heads);
    if (settled) grid_dependency_wait();
    // Not before: measured, the step is slower when what comes next takes multiprocessors that early.
    grid_dependency_launch();
    if (a.clear != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *a.clear = 0;
    for (u32 item = blockIdx.x; item < work; item += gridDim.x) {
        const u32 i = item / a.kv_heads;
        const Sequence sequence = item == blockIdx.x ? first : sequence_of(a, i);
        if (sequence.row != NONE) take_row(a, sequence, i, item - i * a.kv_heads, slots);
    }
}
