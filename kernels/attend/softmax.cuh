// Weights of one block, and the state of the running softmax.
//
// Base 2, with an integer running exponent m: a token's weight is the same real number for every m, and rescaling is exact. m
// stands 12 below the largest logit, so that weights as halves reach down 37 octaves below the largest before they thin out.
#pragma once
#include "bound.cuh"

struct State {
    float m[NT][2];
    // Sums of weights: every row of the product with ones. Paired: high parts in high columns, low parts in low ones.
    float l[NT][2];
    float o[NT][2 * CHUNKS][4];
#if CKV_VALUE == 2
    // How often that was rotated or turned back: it is rotated while this is even.
    u32 turns;
#endif
#if CKV_VALUE == 1
    // Sums of w z by group of channels: rows are groups.
    float offset[NT][4];
#endif
};

// Weights of a block for COLUMNS column tiles as operands of the matrix unit: pairs of halves. `own`: what the column stands for, the
// high halves or, in low columns, the low ones; `rest`: the other of the two.
struct Weights {
    u32 own[TILES][COLUMNS][2];
    u32 rest[TILES][COLUMNS][2];
};

// The high halves, in every column.
CKV_FN u32 high_weights(const Weights& w, int t, int nt, int i) {
    return PAIRED ? by_column(w.own[t][nt][i], w.rest[t][nt][i], low_columns()) : w.own[t][nt][i];
}
// The low halves; paired: in low columns only.
CKV_FN u32 low_weights(const Weights& w, int t, int nt, int i) {
    return PAIRED ? w.own[t][nt][i] & low_columns() : w.rest[t][nt][i];
}

CKV_FN void clear(State& s) {
#if CKV_VALUE == 2
    s.turns = 0;
#endif
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
#pragma unroll
        for (int i = 0; i < 2; i++) s.m[nt][i] = EMPTY, s.l[nt][i] = 0.0f;
#pragma unroll
        for (int c = 0; c < 2 * CHUNKS; c++) s.o[nt][c][0] = s.o[nt][c][1] = s.o[nt][c][2] = s.o[nt][c][3] = 0.0f;
#if CKV_VALUE == 1
        s.offset[nt][0] = s.offset[nt][1] = s.offset[nt][2] = s.offset[nt][3] = 0.0f;
#endif
    }
}

// The largest logit of column i of the lane's two, over the lane's tokens.
CKV_FN float largest(const Logits& s, int nt, int i) {
    float x = fmaxf(s.x[0][nt][i], s.x[0][nt][i + 2]);
#pragma unroll
    for (int t = 1; t < TILES; t++) x = fmaxf(x, fmaxf(s.x[t][nt][i], s.x[t][nt][i + 2]));
    return x;
}

// Moves m where a logit plus `lift` comes too close to the end of the halves. Here and below: column tiles from FIRST on.
template <int FIRST>
CKV_FN void follow(const Logits& s, const Query& q, float lift, State& st) {
    float most[COLUMNS][2], factor[COLUMNS][2];
    bool moves = false;
#pragma unroll
    for (int nt = 0; nt < COLUMNS; nt++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            most[nt][i] = fma_rn(largest(s, nt, i), q.unit[FIRST + nt][i], lift);
            moves |= most[nt][i] > st.m[FIRST + nt][i] + HEADROOM;
        }
    }
    if (!any(moves)) return;
#pragma unroll
    for (int nt = 0; nt < COLUMNS; nt++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float x = most[nt][i];
#pragma unroll
            for (int d = 4; d < 32; d <<= 1) x = fmaxf(x, shfl_xor(x, d));
            const float m = fmaxf(st.m[FIRST + nt][i], ceilf(x) - AIM);
            factor[nt][i] = power_of_two(st.m[FIRST + nt][i] - m);
            st.m[FIRST + nt][i] = m;
            st.l[FIRST + nt][i] *= factor[nt][i];
        }
#pragma unroll
        for (int c = 0; c < 2 * CHUNKS; c++) {
#pragma unroll
            for (int i = 0; i < 4; i++) st.o[FIRST + nt][c][i] *= factor[nt][i & 1];
        }
#if CKV_VALUE == 1
#pragma unroll
        for (int i = 0; i < 4; i++) st.offset[FIRST + nt][i] *= factor[nt][i & 1];
#endif
    }
}

// Logits to weights, and the block's sums: `mass[nt][0..1]` the block's sums of weights in rows 0..7 and `mass[nt][2..3]` its
// Gram matrix in rows 8..15, of which the diagonal is the sum of squares.
template <int FIRST>
CKV_FN void weigh(const Logits& s, const Query& q, const State& st, Weights& w, float (&mass)[COLUMNS][4]) {
    const bool low_half = PAIRED && (lane() & 2);
#pragma unroll
    for (int nt = 0; nt < COLUMNS; nt++) {
        mass[nt][0] = mass[nt][1] = mass[nt][2] = mass[nt][3] = 0.0f;
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            float p[4];
#pragma unroll
            for (int i = 0; i < 4; i++) p[i] = ex2(fma_rn(s.x[t][nt][i], q.unit[FIRST + nt][i & 1], -st.m[FIRST + nt][i & 1]));
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float p0 = p[2 * r], p1 = p[2 * r + 1];
                const u32 high = h2_pack(p0, p1);
                const u32 low = h2_pack(p0 - h_lo(high), p1 - h_hi(high));
                if constexpr (PAIRED) {
                    const u32 own = transpose8x8(low_half ? low : high);
                    w.own[t][nt][r] = own;
                    w.rest[t][nt][r] = shfl_xor(own, 16);
                } else {
                    w.own[t][nt][r] = transpose8x8(high);
                    w.rest[t][nt][r] = transpose8x8(low);
                }
            }
            const u32 b0 = w.own[t][nt][0], b1 = w.own[t][nt][1];
            mma_f16(mass[nt], H2_ONE, b0, H2_ONE, b1, b0, b1);
            if constexpr (!PAIRED) mma_f16(mass[nt], H2_ONE, 0u, H2_ONE, 0u, w.rest[t][nt][0], w.rest[t][nt][1]);
        }
    }
}

// Adds the block's sums of weights to those of the state.
template <int FIRST>
CKV_FN void count_mass(const float (&mass)[COLUMNS][4], State& st) {
#pragma unroll
    for (int nt = 0; nt < COLUMNS; nt++) st.l[FIRST + nt][0] += mass[nt][0], st.l[FIRST + nt][1] += mass[nt][1];
}
