// A warp's running softmax over blocks: rows are queries, 16 to a tile.
//
// Units in fragment order (core::fragment) are operands of either side of a product: of the 16 x 16 that attend multiplies from the left, the registers of
// tokens 0..7 (of channels 0..7 for values) and those of the other eight are two columns' worth from the right. So weights leave one product where the
// next wants them, and nothing is shuffled or transposed. Base 2, with an integer running exponent, as in attend/softmax.cuh.
#pragma once
#include "bound.cuh"

// Channels in tiles of eight.
constexpr int EIGHTHS = D / 8;
constexpr u32 H2_ONE = 0x3c003c00u;

struct State {
    float m[MT][2];
    float l[MT][2];
    // Tile n: channels 8 n + 2 (lane % 4), + 1; [0..1] of row lane / 4, [2..3] of row lane / 4 + 8.
    float o[MT][EIGHTHS][4];
};

CKV_FN void clear(State& s) {
#pragma unroll
    for (int mt = 0; mt < MT; mt++) {
        s.m[mt][0] = s.m[mt][1] = EMPTY;
        s.l[mt][0] = s.l[mt][1] = 0.0f;
#pragma unroll
        for (int n = 0; n < EIGHTHS; n++) s.o[mt][n][0] = s.o[mt][n][1] = s.o[mt][n][2] = s.o[mt][n][3] = 0.0f;
    }
}

// Logits of SUB tiles of 16 tokens: tile n of eight of them, as State::o.
struct Logits {
    float x[MT][2 * SUB][4];
};

// A block's sums: of weights by the matrix unit, every column alike, and of their squares, the lane's own.
struct Mass {
    float weight[MT][4];
    float square[MT][2];
};

CKV_FN void clear(Mass& s) {
#pragma unroll
    for (int mt = 0; mt < MT; mt++) {
        s.weight[mt][0] = s.weight[mt][1] = s.weight[mt][2] = s.weight[mt][3] = 0.0f;
        s.square[mt][0] = s.square[mt][1] = 0.0f;
    }
}

// Logits of SUB tiles of keys from tile `first` on, of those that are operands.
CKV_FN void score(const u8* keys, int first, const Query& q, Logits& s) {
#pragma unroll
    for (int mt = 0; mt < MT; mt++) {
#pragma unroll
        for (int n = 0; n < 2 * SUB; n++) s.x[mt][n][0] = s.x[mt][n][1] = s.x[mt][n][2] = s.x[mt][n][3] = 0.0f;
    }
#pragma unroll
    for (int j = 0; j < CHUNKS; j++) {
        u32 x[MT][2][4];
#pragma unroll
        for (int mt = 0; mt < MT; mt++) load_query(q, mt, j, 0, x[mt][0]), load_query(q, mt, j, 1, x[mt][1]);
#pragma unroll
        for (int t = 0; t < SUB; t++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const Vec4 h = operands_at(keys, (first + t) * CHUNKS + j, e);
#pragma unroll
                for (int mt = 0; mt < MT; mt++) {
                    const u32(&a)[4] = x[mt][e];
                    mma_f16(s.x[mt][2 * t], a[0], a[1], a[2], a[3], h.x, h.y);
                    mma_f16(s.x[mt][2 * t + 1], a[0], a[1], a[2], a[3], h.z, h.w);
                }
            }
        }
    }
}

// What a row does not see weighs nothing. `at`: the first of the logits' tokens.
CKV_FN void mask(const CkvExtendArgs& a, const Query& q, i32 at, Logits& s) {
#pragma unroll
    for (int mt = 0; mt < MT; mt++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const i32 own = position_of(q, mt, half);
#pragma unroll
            for (int n = 0; n < 2 * SUB; n++) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    if (!sees(a, own, at + 8 * n + 2 * (i32)(lane() & 3) + i)) s.x[mt][n][2 * half + i] = -u32_as_float(0x7f800000u);
                }
            }
        }
    }
}

// The running exponents move where a logit comes too close to the end of the halves.
CKV_FN void follow(const Query& q, const Logits& s, State& st, Mass& mass) {
    float most[MT][2];
    bool moves = false;
#pragma unroll
    for (int mt = 0; mt < MT; mt++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float x = s.x[mt][0][2 * half];
#pragma unroll
            for (int n = 0; n < 2 * SUB; n++) x = fmaxf(x, fmaxf(s.x[mt][n][2 * half], s.x[mt][n][2 * half + 1]));
            most[mt][half] = x * unit_of(q, mt, half);
            moves |= most[mt][half] > st.m[mt][half] + HEADROOM;
        }
    }
    if (!any(moves)) return;
#pragma unroll
    for (int mt = 0; mt < MT; mt++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float x = most[mt][half];
            x = fmaxf(x, shfl_xor(x, 1));
            x = fmaxf(x, shfl_xor(x, 2));
            const float m = fmaxf(st.m[mt][half], ceilf(x) - AIM), factor = power_of_two(st.m[mt][half] - m);
            st.m[mt][half] = m;
            st.l[mt][half] *= factor;
            mass.weight[mt][2 * half] *= factor, mass.weight[mt][2 * half + 1] *= factor;
            mass.square[mt][half] *= factor * factor;
#pragma unroll
            for (int n = 0; n < EIGHTHS; n++) st.o[mt][n][2 * half] *= factor, st.o[mt][n][2 * half + 1] *= factor;
        }
    }
}

// Weights of SUB tiles as operands: tile t of rows 16 mt.
struct Weights {
    u32 w[MT][SUB][4];
};
CKV_FN void weigh(const Query& q, const Logits& s, const State& st, bool certify, Weights& w, Mass& mass) {
#pragma unroll
    for (int mt = 0; mt < MT; mt++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float unit = unit_of(q, mt, half), m = -st.m[mt][half];
#pragma unroll
            for (int n = 0; n < 2 * SUB; n++) {
                const float p0 = ex2_flushed(fma_rn(s.x[mt][n][2 * half], unit, m)), p1 = ex2_flushed(fma_rn(s.x[mt][n][2 * half + 1], unit, m));
                w.w[mt][n / 2][2 * (n & 1) + half] = h2_pack(p0, p1);
                if (certify) mass.square[mt][half] = fma_rn(p0, p0, fma_rn(p1, p1, mass.square[mt][half]));
            }
        }
#pragma unroll
        for (int t = 0; t < SUB; t++) mma_f16(mass.weight[mt], w.w[mt][t][0], w.w[mt][t][1], w.w[mt][t][2], w.w[mt][t][3], H2_ONE, H2_ONE);
    }
}

// Adds the values of those tiles.
CKV_FN void add(const u8* values, int first, const Weights& w, State& st) {
#pragma unroll
    for (int t = 0; t < SUB; t++) {
#pragma unroll
        for (int j = 0; j < CHUNKS; j++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const Vec4 h = operands_at(values, (first + t) * CHUNKS + j, e);
#pragma unroll
                for (int mt = 0; mt < MT; mt++) {
                    const u32(&x)[4] = w.w[mt][t];
                    mma_f16(st.o[mt][4 * j + 2 * e], x[0], x[1], x[2], x[3], h.x, h.y);
                    mma_f16(st.o[mt][4 * j + 2 * e + 1], x[0], x[1], x[2], x[3], h.z, h.w);
                }
            }
        }
    }
}

#if CKV_VALUE == 2
// What was summed of TurboQuant's values is rotated: R^T of it. Channel 32 j + 16 e + 8 half + 2 (lane % 4) + i.
CKV_FN void turn_back(State& st) {
    const u32 c4 = lane() & 3;
#pragma unroll
    for (int mt = 0; mt < MT; mt++) {
#pragma unroll
        for (int n = 0; n < EIGHTHS; n++) {
            float(&o)[4] = st.o[mt][n];
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                const float x = o[i], y = o[i + 1];
                o[i] = x + y, o[i + 1] = x - y;
            }
#pragma unroll
            for (int d = 1; d < 4; d *= 2) {
                const bool upper = c4 & d;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float other = shfl_xor(o[i], d);
                    o[i] = upper ? other - o[i] : o[i] + other;
                }
            }
        }
#pragma unroll
        for (int half = 1; half < EIGHTHS; half *= 2) {
#pragma unroll
            for (int n = 0; n < EIGHTHS; n++) {
                if (n & half) continue;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float x = st.o[mt][n][i], y = st.o[mt][n + half][i];
                    st.o[mt][n][i] = x + y, st.o[mt][n + half][i] = x - y;
                }
            }
        }
#pragma unroll
        for (int n = 0; n < EIGHTHS; n++) {
            const u32 signs = turn_signs(n / 4) >> (8 * (n % 4) + 2 * c4);
#pragma unroll
            for (int i = 0; i < 4; i++) st.o[mt][n][i] = with_sign(st.o[mt][n][i] * (float)TURN_FACTOR, signs >> (i & 1) & 1);
        }
    }
}
#endif
