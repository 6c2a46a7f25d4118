// The open block has no summary: what one would say of exact rows. And the two looks at a block that is promoted.
#pragma once
#include "row_norm.cuh"

// How far above 16 a block's values reach, in octaves: its weights are kept that much smaller, so that a weight times a scale
// stays a finite half (|sigma| <= 2.02 value_norm / (2^bits - 1); 64 radii of TurboQuant are at most 0.6 of it).
CKV_FN float lift_of(float value_norm) {
    constexpr i32 BITS = TURBO_VALUES ? 2 : CKV_VALUE_BITS;
    const i32 octave = (i32)(float_as_u32(value_norm) >> 23 & 0xffu) - 126 - BITS;
    return octave > 0 ? (float)octave : 0.0f;
}

// Rows past the end of the open block weigh nothing.
CKV_FN void mask_rows(Logits& s, int rows) {
    // Against constants: sums of a constant and the lane's row would be kept in registers through the whole pass.
    const int left = rows - (int)(lane() >> 2);
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int nt = 0; nt < COLUMNS; nt++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (left <= 16 * t + (i & 2) * 4) s.x[t][nt][i] = -u32_as_float(0x7f800000u);
            }
        }
    }
}

// Which rows of a block in flight a window hides: see Seen::hidden. Or what tokens of a draft do not see: see unseen_of.
CKV_FN u32 hidden_of(u32 tail) { return tail >> 8; }

// Rows that a window hides weigh nothing.
CKV_FN void hide_rows(Logits& s, u32 hidden) {
    if (hidden == 0) return;
    const int first = (int)(hidden & 0xffu) - (int)(lane() >> 2), end = (int)(hidden >> 8) - (int)(lane() >> 2);
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int nt = 0; nt < COLUMNS; nt++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = 16 * t + (i & 2) * 4;
                if (at >= first && at < end) s.x[t][nt][i] = -u32_as_float(0x7f800000u);
            }
        }
    }
}

// Which rows of a head's open block it hides.
CKV_FN u32 hidden_in_tail(const CkvAttendArgs& a, const Segment& seg) { return seen_of(a, seg.tokens).hidden(recorded_blocks(a, seg.tokens)); }

// The slot of the `which`-th of its blocks that lie in tails.
CKV_FN u32 tail_slot(const CkvAttendArgs& a, const Segment& seg, u32 which) {
    if (DRAFTED && which == 0 && seg.open > BLOCK) return draft_of(a, seg.seq).tail - 1;
    return ldg(a.tails + seg.row);
}

// That block: keys, then values.
CKV_FN const u8* tail_of(const CkvAttendArgs& a, const Segment& seg, u32 which) {
    return a.tail_base + tail_slot(a, seg, which) * a.tail_stride + (u64)seg.kv * (2 * SIDE_BYTES);
}

// Asks for a head's blocks that lie in tails: the tiles that have rows.
CKV_FN void prefetch_tail(const CkvAttendArgs& a, const Segment& seg) {
    for (u32 which = 0; which < (DRAFTED ? tails_of(seg) : 1); which++) {
        const u32 bytes = (tail_rows(seg, which) + 15) / 16 * (CHUNKS * 1024);
        const u8* tail = tail_of(a, seg, which);
        bulk_prefetch_l2(tail, bytes);
        bulk_prefetch_l2(tail + SIDE_BYTES, bytes);
    }
}

// As merge_partials, but for many heads, of which the function takes more registers than it spares.
#if CKV_DIM == 256 && CKV_GROUP <= 8
#define CKV_SUMMARISE __attribute__((noinline)) __device__
#else
#define CKV_SUMMARISE CKV_FN
#endif

// Writes the words of the summary of the `which`-th of a head's blocks that lie in tails to `to`. One warp.
CKV_SUMMARISE void tail_summary(const CkvAttendArgs& a, const Segment& seg, u32 which, u32* to) {
    // Squares of the norms of its rows that are seen, the largest.
    float key = 0.0f, value = 0.0f;
    const Vec2* norms = a.row_norms + ckv_encode::row_norm_at(tail_slot(a, seg, which), a.kv_heads, seg.kv, BLOCK, 0);
    const u32 hidden = WINDOWED ? hidden_in_tail(a, seg) : 0;
#pragma unroll
    for (u32 i = 0; i < (u32)BLOCK; i += 32) {
        const u32 row = i + (u32)lane();
        if (row < tail_rows(seg, which) && !(WINDOWED && hides(hidden, row))) {
            const Vec2 square = norms[row];
            key = most(key, u32_as_float(square.x)), value = most(value, u32_as_float(square.y));
        }
    }
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) key = most(key, shfl_xor(key, d)), value = most(value, shfl_xor(value, d));
    float centre = 0.0f;
    if (a.centres) {
        const float* c = a.centres + ((u64)seg.row * a.kv_heads + seg.kv) * D;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            const float x = ldg(c + 32 * i + lane());
            centre += x * x;
        }
        centre = warp_sum(centre);
    }
    const float up = 1.0001f;
    if (lane() == 0) {
        const float norm = sqrt_ru(value * up + LOST_SQUARES);
        to[0] = to[1] = to[2] = to[4] = to[5] = 0;
        if constexpr (REFINABLE) to[8] = to[9] = to[10] = to[11] = 0;
        to[3] = float_as_u32(sqrt_ru(key * up + LOST_SQUARES));
        to[6] = float_as_u32(add_ru(norm, sqrt_ru(centre * up + LOST_SQUARES)));
        to[7] = float_as_u32(norm);
    }
    syncwarp();
}

// (7.4) for one block: every token's two logits agree within Delta + zeta for the lane's pair of heads. The lane of row h, column
// h knows the sums of head h; the lanes that keep certificates know its reach and step.
template <int FIRST>
CKV_FN bool canary(const Aside& aside, const float* waiting, const Logits& coded, const Logits& exact, const KeySums& keys, const Summary& b,
                   const Query& q) {
    bool good = true;
#pragma unroll
    for (int nt = 0; nt < COLUMNS; nt++) {
        const int h = PAIRED ? (lane() >> 2) & 3 : 8 * (FIRST + nt) + (lane() >> 2);
        const float reach = shfl(take_reach(aside, q), h % HEADS), step = shfl(take_step(aside, q), h % HEADS);
        const LogitBound bound = bound_of_codes(b, q, h % HEADS, reach, step, keys.square[nt]);
        const float mine = (bound.delta + bound.zeta + row_zeta(b.key_norm, reach, step)) * 1.4426951f * UP;
        const int first = PAIRED ? 2 * (lane() & 1) : 2 * (lane() & 3);
        float limit[2];
        limit[0] = shfl(mine, 4 * first + (first >> 1));
        limit[1] = shfl(mine, 4 * (first + 1) + (first >> 1));
#pragma unroll
        for (int t = 0; t < TILES; t++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                // Heads that do not exist have no logits to disagree on.
                const bool there = PAIRED || 8 * (FIRST + nt) + first + (i & 1) < GROUP;
                good = good && (!there || fabsf(take_logit(waiting, coded, t, nt, i) - exact.x[t][nt][i]) * q.unit[FIRST + nt][i & 1] <= limit[i & 1]);
            }
        }
    }
    return !any(!good);
}
