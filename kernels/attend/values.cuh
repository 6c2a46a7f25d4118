// Values of one block, weighted and summed for all heads of the group.
#pragma once

// c += A B for one unit: two tiles of 16 channels.
CKV_FN void add_unit(const u32 (&v)[8], u32 b0, u32 b1, float (&first)[4], float (&second)[4]) {
    mma_f16(first, v[0], v[1], v[2], v[3], b0, b1);
    mma_f16(second, v[4], v[5], v[6], v[7], b0, b1);
}

// A register of weights in the type of the cache. From halves, which miss less than a pair of bf16 does.
CKV_FN void rows_of_weights(const Weights& w, int t, int nt, int i, u32& own, u32& low) {
    own = w.own[t][nt][i], low = low_weights(w, t, nt, i);
    if constexpr (CKV_STORE == 1) {
        pair_of_bf16(high_weights(w, t, nt, i), low, own, low);
        if constexpr (PAIRED) own = by_column(own, low, low_columns());
    }
}

// Values that are 16-bit originals in fragment order. MASKED: only the first `rows` tokens exist; what lies in the others is
// not a number to be multiplied, not even by zero. Here and below: column tiles from FIRST on.
template <int FIRST, bool MASKED>
CKV_FN void add_originals(const u8* values, int rows, const Weights& w, State& st) {
    // As in mask_rows.
    const int left = rows - 2 * (int)(lane() & 3);
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        if (MASKED && 16 * t >= rows) break;
        u32 own[COLUMNS][2], low[COLUMNS][2];
#pragma unroll
        for (int nt = 0; nt < COLUMNS; nt++) {
#pragma unroll
            for (int i = 0; i < 2; i++) rows_of_weights(w, t, nt, i, own[nt][i], low[nt][i]);
        }
#pragma unroll
        for (int j = 0; j < CHUNKS; j++) {
            u32 v[8];
            load_original(values, t * CHUNKS + j, v);
            if constexpr (MASKED) {
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const int token = 16 * t + ((i & 2) ? 8 : 0);
                    v[i] &= left > token + 1 ? 0xffffffffu : left > token ? 0x0000ffffu : 0u;
                }
            }
#pragma unroll
            for (int nt = 0; nt < COLUMNS; nt++) {
                const u32 b0 = own[nt][0], b1 = own[nt][1], l0 = low[nt][0], l1 = low[nt][1];
                mma_store(st.o[FIRST + nt][2 * j], v[0], v[1], v[2], v[3], b0, b1);
                mma_store(st.o[FIRST + nt][2 * j + 1], v[4], v[5], v[6], v[7], b0, b1);
                if constexpr (!PAIRED) {
                    mma_store(st.o[FIRST + nt][2 * j], v[0], v[1], v[2], v[3], l0, l1);
                    mma_store(st.o[FIRST + nt][2 * j + 1], v[4], v[5], v[6], v[7], l0, l1);
                }
            }
        }
    }
}

#if CKV_VALUE == 1
// Whether values' codes and their residuals are units of 4 bits.
constexpr bool SAME_UNITS = REFINABLE && CKV_VALUE_BITS == 4 && CKV_VALUE_REFINE == 4;

// Unit `unit` of what lies where codes are: those, or residuals of them.
CKV_FN void load_values(const u8* codes, int unit, bool finer, const Steps4& steps, u32 (&v)[8]) {
    if constexpr (SAME_UNITS) {
        load_steps4(codes, unit, steps, v);
    } else if (REFINABLE && finer) {
        load_residuals<REFINABLE ? CKV_VALUE_REFINE : 1>(codes, unit, v);
    } else {
        load_codes<CKV_VALUE_BITS, 0>(codes, unit, v);
    }
}

// Values from affine codes, math.md (2.6): sum w v^ = sum (w sigma) code + sum w z. The scale goes into the weights, once per
// group and token; offsets of all groups are one more product.
// FINER: adds what residuals in the place of the codes say beside that, (2.23), by the same instructions as in score_codes. Where both have
// 4 bits they are decoded by the same ones, too, with the half that residuals are off in the place of the offsets.
template <int FIRST>
CKV_FN void add_codes(const u8* record, const Weights& w, bool finer, State& st) {
    const Steps4 steps = steps4(finer);  // with SAME_UNITS
    constexpr int GROUPS = D / CKV_VALUE_GROUP;
    const u32 mask = low_columns();
    const int r = lane() >> 2, k = 2 * (lane() & 3);
    const u8* codes = record + CKV_VALUE_CODES;
    const u8* scales = record + CKV_VALUE_SCALES;
    const u8* offsets = SAME_UNITS && finer ? scales : scales + 2 * BLOCK * GROUPS;
    // Half a scale may be no half, so offsets are in units of -1/2 meanwhile. Exact, both ways.
    const float begin = finer ? -2.0f : 1.0f, end = finer ? -0.5f : 1.0f;
#pragma unroll
    for (int nt = 0; SAME_UNITS && nt < COLUMNS; nt++) {
#pragma unroll
        for (int i = 0; i < 4; i++) st.offset[FIRST + nt][i] *= begin;
    }
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        const int token = 16 * t + k;
        u32 z[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int g = r + 8 * (i & 1);
            z[i] = g < GROUPS && (SAME_UNITS || !finer) ? *(const u32*)(offsets + (g * BLOCK + token + 8 * (i >> 1)) * 2) : 0u;
        }
#pragma unroll
        for (int nt = 0; nt < COLUMNS; nt++) {
            mma_f16(st.offset[FIRST + nt], z[0], z[1], z[2], z[3], w.own[t][nt][0], w.own[t][nt][1]);
            if constexpr (!PAIRED) mma_f16(st.offset[FIRST + nt], z[0], z[1], z[2], z[3], w.rest[t][nt][0], w.rest[t][nt][1]);
        }
        // Groups of 16 channels are half a unit.
        constexpr int PER_UNIT = CKV_VALUE_GROUP >= 32 ? 1 : 2;
        constexpr int UNITS = CKV_VALUE_GROUP >= 32 ? CKV_VALUE_GROUP / 32 : 1;
#pragma unroll
        for (int j = 0; j < CHUNKS; j += UNITS) {
            u32 b[PER_UNIT][COLUMNS][2], low[PER_UNIT][PAIRED ? 1 : COLUMNS][2];
#pragma unroll
            for (int e = 0; e < PER_UNIT; e++) {
                const int g = (32 * j + 16 * e) / CKV_VALUE_GROUP;
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const u32 sigma = *(const u32*)(scales + (g * BLOCK + token + 8 * i) * 2);
#pragma unroll
                    for (int nt = 0; nt < COLUMNS; nt++) {
                        const u32 high = high_weights(w, t, nt, i), rest = low_weights(w, t, nt, i), y = h2_mul(high, sigma);
                        if constexpr (PAIRED) {
                            b[e][nt][i] =
                                h2_fma(rest, sigma, h2_fma(high, sigma, (y & mask) ^ 0x80008000u));
                        } else {
                            b[e][nt][i] = y;
                            low[e][nt][i] = times_low(high, rest, sigma);
                        }
                    }
                }
            }
#pragma unroll
            for (int u = 0; u < UNITS; u++) {
                u32 v[8];
                load_values(codes, t * CHUNKS + j + u, finer, steps, v);
#pragma unroll
                for (int nt = 0; nt < COLUMNS; nt++) {
                    float(&first)[4] = st.o[FIRST + nt][2 * (j + u)];
                    float(&second)[4] = st.o[FIRST + nt][2 * (j + u) + 1];
                    constexpr int LAST = PER_UNIT - 1;
                    mma_f16(first, v[0], v[1], v[2], v[3], b[0][nt][0], b[0][nt][1]);
                    mma_f16(second, v[4], v[5], v[6], v[7], b[LAST][nt][0], b[LAST][nt][1]);
                    if constexpr (!PAIRED) {
                        mma_f16(first, v[0], v[1], v[2], v[3], low[0][nt][0], low[0][nt][1]);
                        mma_f16(second, v[4], v[5], v[6], v[7], low[LAST][nt][0], low[LAST][nt][1]);
                    }
                }
            }
        }
    }
#pragma unroll
    for (int nt = 0; SAME_UNITS && nt < COLUMNS; nt++) {
#pragma unroll
        for (int i = 0; i < 4; i++) st.offset[FIRST + nt][i] *= end;
    }
}
#elif CKV_VALUE == 2
// Levels of the rotated value with a radius per token, math.md (2.17b): sum w v^ = sum (w radius) level, rotated. Levels are taken 64
// times too small and radii as much too large, so that what is lost where a weight thins out as a half is less.
template <int FIRST>
CKV_FN void add_codes(const u8* record, const Weights& w, bool, State& st) {
    constexpr auto LEVELS = value_levels();
    constexpr u32 UP64 = h2_const(0x5400u);
    const u32 mask = low_columns();
    const int k = 2 * (lane() & 3);
    const u8* radii = record + CKV_VALUE_SCALES;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        u32 b[COLUMNS][2], low[PAIRED ? 1 : COLUMNS][2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u32 sigma = h2_mul(*(const u32*)(radii + (16 * t + k + 8 * i) * 2), UP64);
#pragma unroll
            for (int nt = 0; nt < COLUMNS; nt++) {
                const u32 high = high_weights(w, t, nt, i), rest = low_weights(w, t, nt, i), y = h2_mul(high, sigma);
                if constexpr (PAIRED) {
                    b[nt][i] = h2_fma(rest, sigma, h2_fma(high, sigma, (y & mask) ^ 0x80008000u));
                } else {
                    b[nt][i] = y;
                    low[nt][i] = times_low(high, rest, sigma);
                }
            }
        }
#pragma unroll
        for (int j = 0; j < CHUNKS; j++) {
            u32 v[8];
            load_levels<CKV_VALUE_BITS, 6>(record + CKV_VALUE_CODES, t * CHUNKS + j, LEVELS, v);
#pragma unroll
            for (int nt = 0; nt < COLUMNS; nt++) {
                add_unit(v, b[nt][0], b[nt][1], st.o[FIRST + nt][2 * j], st.o[FIRST + nt][2 * j + 1]);
                if constexpr (!PAIRED) add_unit(v, low[nt][0], low[nt][1], st.o[FIRST + nt][2 * j], st.o[FIRST + nt][2 * j + 1]);
            }
        }
    }
}
#elif CKV_VALUE == 6
// Unit `unit` of what lies where codes are, around their middle: codes in steps, or the parts of a step that residuals say, (2.23). Where both have
// 4 bits, by the same instructions: (1024 + 16 c + 8) times 1/16 or 1/256, exactly.
CKV_FN void load_steps(const u8* codes, int unit, bool finer, u32 (&v)[8]) {
    if constexpr (REFINABLE && CKV_VALUE_BITS == 4 && CKV_VALUE_REFINE == 4) {
        const u32 by = finer ? h2_shift(8) : h2_shift(4), less = finer ? h2_const(0xc480u) : h2_const(0xd488u);
        const Vec2 packed = *(const Vec2*)(codes + unit * 256 + lane() * 8);
        const u32 w[2] = {packed.x, packed.y};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const u32 word = w[i / 4], at = i % 4 == 0 ? word << 4 : word >> (4 * (i % 4) - 4);
            v[i] = h2_fma(lop_and_or(at, 0x00f000f0u, H2_1024 | 0x00080008u), by, less);
        }
    } else if (REFINABLE && finer) {
        load_residuals<REFINABLE ? CKV_VALUE_REFINE : 1>(codes, unit, v);
    } else {
        load_codes<CKV_VALUE_BITS, 1u << (CKV_VALUE_BITS - 1)>(codes, unit, v);
    }
}

// Values with a scale and an offset per channel and block, math.md (2.9b): sum w v^ = sigma (sum w code) + z (sum w). As codes with one scale per
// block, a block's sums are formed apart; no weight is multiplied by a scale. FINER: adds what residuals in the place of the codes say.
template <int FIRST>
CKV_FN void add_codes(const u8* record, const Weights& w, bool finer, State& st) {
    constexpr int AT_ONCE = LEAN ? 1 : 2;
    const u32* pairs = (const u32*)(record + CKV_VALUE_SCALES) + (lane() >> 2);
    float total[COLUMNS][4];
    clear(total);
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int nt = 0; nt < COLUMNS; nt++) {
            mma_f16(total[nt], H2_ONE, H2_ONE, H2_ONE, H2_ONE, w.own[t][nt][0], w.own[t][nt][1]);
            if constexpr (!PAIRED) mma_f16(total[nt], H2_ONE, H2_ONE, H2_ONE, H2_ONE, w.rest[t][nt][0], w.rest[t][nt][1]);
        }
    }
#pragma unroll
    for (int nt = 0; REFINABLE && nt < COLUMNS; nt++) {
#pragma unroll
        for (int i = 0; i < 4; i++) total[nt][i] = finer ? 0.0f : total[nt][i];
    }
#pragma unroll
    for (int part = 0; part < 2 * CHUNKS; part += AT_ONCE) {
        float c[AT_ONCE][COLUMNS][4];
#pragma unroll
        for (int e = 0; e < AT_ONCE; e++) clear(c[e]);
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            u32 v[8];
            load_steps(record + CKV_VALUE_CODES, t * CHUNKS + part / 2, finer, v);
#pragma unroll
            for (int e = 0; e < AT_ONCE; e++) {
                const int h = 4 * ((part + e) & 1);
#pragma unroll
                for (int nt = 0; nt < COLUMNS; nt++) {
                    mma_f16(c[e][nt], v[h], v[h + 1], v[h + 2], v[h + 3], w.own[t][nt][0], w.own[t][nt][1]);
                    if constexpr (!PAIRED) mma_f16(c[e][nt], v[h], v[h + 1], v[h + 2], v[h + 3], w.rest[t][nt][0], w.rest[t][nt][1]);
                }
            }
        }
#pragma unroll
        for (int e = 0; e < AT_ONCE; e++) {
            const u32 pair[2] = {pairs[16 * (part + e)], pairs[16 * (part + e) + 8]};
#pragma unroll
            for (int nt = 0; nt < COLUMNS; nt++) {
                float(&o)[4] = st.o[FIRST + nt][part + e];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    o[i] = fma_rn(c[e][nt][i], h_lo(pair[i / 2]), fma_rn(total[nt][i & 1], h_hi(pair[i / 2]), o[i]));
                }
            }
        }
    }
}
#elif CKV_VALUE >= 3
// Codes with one scale per block and group of channels, math.md (2.9a): sum w v^ = scale (sum w code). A block's sums are formed apart, a
// unit's two tiles of channels at once where registers allow it, and join the others with their scale.
template <int FIRST>
CKV_FN void add_codes(const u8* record, const Weights& w, bool, State& st) {
    constexpr int AT_ONCE = LEAN ? 1 : 2;
    const u8* scales = record + CKV_VALUE_SCALES;
#pragma unroll
    for (int part = 0; part < 2 * CHUNKS; part += AT_ONCE) {
        float c[AT_ONCE][COLUMNS][4];
#pragma unroll
        for (int e = 0; e < AT_ONCE; e++) clear(c[e]);
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            u32 v[8];
            load_page<CKV_VALUE - 3, CKV_VALUE_BITS>(record + CKV_VALUE_CODES, t * CHUNKS + part / 2, v);
#pragma unroll
            for (int e = 0; e < AT_ONCE; e++) {
                const int h = 4 * ((part + e) & 1);
#pragma unroll
                for (int nt = 0; nt < COLUMNS; nt++) {
                    mma_f16(c[e][nt], v[h], v[h + 1], v[h + 2], v[h + 3], w.own[t][nt][0], w.own[t][nt][1]);
                    if constexpr (!PAIRED) mma_f16(c[e][nt], v[h], v[h + 1], v[h + 2], v[h + 3], w.rest[t][nt][0], w.rest[t][nt][1]);
                }
            }
        }
#pragma unroll
        for (int e = 0; e < AT_ONCE; e++) {
            const int group = 16 * (part + e) / CKV_VALUE_GROUP;
            const float scale = h_lo(*(const u16*)(scales + 2 * group)) * page_raise(CKV_VALUE - 3);
#pragma unroll
            for (int nt = 0; nt < COLUMNS; nt++) {
                float(&o)[4] = st.o[FIRST + nt][part + e];
#pragma unroll
                for (int i = 0; i < 4; i++) o[i] = fma_rn(c[e][nt][i], scale, o[i]);
            }
        }
    }
}
#else
template <int FIRST>
CKV_FN void add_codes(const u8* record, const Weights& w, bool, State& st) {
    add_originals<FIRST, false>(record + CKV_VALUE_CODES, BLOCK, w, st);
}
#endif
