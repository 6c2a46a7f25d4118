// Logits of one block, for all heads of the group, and what the bound needs of its key scales.
#pragma once

// Logits in units of Query::unit (base 2): x[tile][nt][0..1] for token lane / 4 of the tile, [2..3] for token lane / 4 + 8; two
// heads each.
struct Logits {
    float x[TILES][NT][4];
};

// Sum over the channels of (q sigma)^2 in units of step^2: head h in the lane of row h % 8, column h % 8.
struct KeySums {
    float square[NT];
};

// One in both halves.
constexpr u32 H2_ONE = 0x3c003c00u;

// Adds the low columns to the high ones: then every lane of a pair holds the whole logit.
CKV_FN void join_columns(float (&c)[4]) {
    if constexpr (PAIRED) {
#pragma unroll
        for (int i = 0; i < 4; i++) c[i] += shfl_xor(c[i], 2);
    }
}

// One unit (16 tokens x 32 channels) against the digits of all heads.
template <bool STORE>
CKV_FN void score_unit(const u32 (&h)[8], const u32 (&high)[4], const u32 (&low)[4], float (&c)[4]) {
    if constexpr (STORE) {
        mma_store(c, h[0], h[1], h[2], h[3], high[0], high[1]);
        mma_store(c, h[4], h[5], h[6], h[7], high[2], high[3]);
        if constexpr (!PAIRED) {
            mma_store(c, h[0], h[1], h[2], h[3], low[0], low[1]);
            mma_store(c, h[4], h[5], h[6], h[7], low[2], low[3]);
        }
    } else {
        mma_f16(c, h[0], h[1], h[2], h[3], high[0], high[1]);
        mma_f16(c, h[4], h[5], h[6], h[7], high[2], high[3]);
        if constexpr (!PAIRED) {
            mma_f16(c, h[0], h[1], h[2], h[3], low[0], low[1]);
            mma_f16(c, h[4], h[5], h[6], h[7], low[2], low[3]);
        }
    }
}

// Logits from 16-bit keys in fragment order.
CKV_FN void score_originals(const u8* keys, const Query& q, Logits& s) {
    const u32 mask = low_columns();
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int nt = 0; nt < NT; nt++) s.x[t][nt][0] = s.x[t][nt][1] = s.x[t][nt][2] = s.x[t][nt][3] = 0.0f;
#pragma unroll
        for (int j = 0; j < CHUNKS; j++) {
            u32 h[8];
            load_original(keys, t * CHUNKS + j, h);
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                u32 high[4], low[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
#if CKV_STORE == 1
                    high[i] = q.row_high[nt][j][i], low[i] = q.row_low[nt][j][i];
#else
                    high[i] = q.high[nt][j][i], low[i] = query_low(q, nt, j, i);
#endif
                    if constexpr (PAIRED) high[i] = by_column(high[i], low[i], mask);
                }
                score_unit<true>(h, high, low, s.x[t][nt]);
            }
        }
#pragma unroll
        for (int nt = 0; nt < NT; nt++) join_columns(s.x[t][nt]);
    }
}

#if CKV_KEY == 1
// Eight scales of chunk j for this lane's channels, as four registers of halves.
CKV_FN void channel_scales(const u8* scales, int j, u32 (&w)[4]) {
    const Vec4 v = *(const Vec4*)(scales + (32 * j + 8 * (lane() & 3)) * 2);
    w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
}

// Logits from codes with a scale and an offset per channel, math.md (2.3): q k^ = (q sigma).code + q.z. The scaled query and
// the offset are formed once per block.
CKV_FN void score_codes(const u8* record, const Query& q, Logits& s, KeySums& sums) {
    const u32 mask = low_columns();
    const u8* scales = record + CKV_KEY_SCALES;
    u32 high[NT][CHUNKS][4], low[PAIRED ? 1 : NT][CHUNKS][4];
    // Two chains each: a chain of products waits for every one of its links.
    float z[2][NT][4], n[2][NT][4];
#pragma unroll
    for (int e = 0; e < 2; e++) {
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
#pragma unroll
            for (int i = 0; i < 4; i++) z[e][nt][i] = n[e][nt][i] = 0.0f;
        }
    }
#pragma unroll
    for (int j = 0; j < CHUNKS; j++) {
        u32 sigma[4], offset[4];
        channel_scales(scales, j, sigma);
        channel_scales(scales + 2 * D, j, offset);
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            u32 y[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const u32 qh = q.high[nt][j][i], ql = query_low(q, nt, j, i);
                y[i] = times_high(qh, sigma[i]);
                if constexpr (PAIRED) {
                    high[nt][j][i] = query_times(qh, ql, sigma[i], y[i], mask);
                } else {
                    high[nt][j][i] = y[i];
                    low[nt][j][i] = times_low(qh, ql, sigma[i]);
                }
            }
            // The scaled query against itself: row h, column h is the sum of its squares; even registers land in rows
            // 0..7, odd ones in rows 8..15.
            mma_f16(n[0][nt], y[0], y[1], y[2], y[3], y[0], y[2]);
            mma_f16(n[1][nt], y[0], y[1], y[2], y[3], y[1], y[3]);
            // The offsets are rows of the first operand: all rows alike.
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const u32 z0 = offset[2 * e], z1 = offset[2 * e + 1];
                u32 b0 = q.high[nt][j][2 * e], b1 = q.high[nt][j][2 * e + 1];
#if CKV_QUERY_LOW
                const u32 l0 = q.low[nt][j][2 * e], l1 = q.low[nt][j][2 * e + 1];
                if constexpr (PAIRED) b0 = by_column(b0, l0, mask), b1 = by_column(b1, l1, mask);
                else mma_f16(z[e][nt], z0, z0, z1, z1, l0, l1);
#endif
                mma_f16(z[e][nt], z0, z0, z1, z1, b0, b1);
            }
        }
    }
    const bool odd = (lane() >> 2) & 1;
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        sums.square[nt] = odd ? n[0][nt][1] + n[1][nt][3] : n[0][nt][0] + n[1][nt][2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            z[0][nt][i] += z[1][nt][i];
            // Without low halves every column has the whole offset: it enters where the high digits are.
            if constexpr (PAIRED && !CKV_QUERY_LOW) z[0][nt][i] = lane() & 2 ? 0.0f : z[0][nt][i];
        }
    }
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        float c[2][NT][4];
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
#pragma unroll
            for (int i = 0; i < 4; i++) c[0][nt][i] = z[0][nt][i & 1], c[1][nt][i] = 0.0f;
        }
#pragma unroll
        for (int j = 0; j < CHUNKS; j++) {
            u32 h[8];
            load_codes<8, 128>(record + CKV_KEY_CODES, t * CHUNKS + j, h);
#pragma unroll
            for (int nt = 0; nt < NT; nt++) score_unit<false>(h, high[nt][j], low[PAIRED ? 0 : nt][j], c[j & 1][nt]);
        }
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
#pragma unroll
            for (int i = 0; i < 4; i++) s.x[t][nt][i] = c[0][nt][i] + c[1][nt][i];
            join_columns(s.x[t][nt]);
        }
    }
}
#elif CKV_KEY == 2
// Logits from symmetric codes with a scale per token and group of channels, math.md (2.7).
CKV_FN void score_codes(const u8* record, const Query& q, Logits& s, KeySums& sums) {
    constexpr int GROUPS = D / CKV_KEY_GROUP, PER = CKV_KEY_GROUP / 32;
    const u32 mask = low_columns();
    const u8* scales = record + CKV_KEY_SCALES;
    const int r = lane() >> 2;
#pragma unroll
    for (int nt = 0; nt < NT; nt++) sums.square[nt] = 0.0f;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int nt = 0; nt < NT; nt++) s.x[t][nt][0] = s.x[t][nt][1] = s.x[t][nt][2] = s.x[t][nt][3] = 0.0f;
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            float c[NT][4];
#pragma unroll
            for (int nt = 0; nt < NT; nt++) c[nt][0] = c[nt][1] = c[nt][2] = c[nt][3] = 0.0f;
#pragma unroll
            for (int k = 0; k < PER; k++) {
                const int j = g * PER + k;
                u32 h[8];
                load_codes<CKV_KEY_BITS, 1u << (CKV_KEY_BITS - 1)>(record + CKV_KEY_CODES, t * CHUNKS + j, h);
#pragma unroll
                for (int nt = 0; nt < NT; nt++) {
                    u32 high[4], low[4];
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        high[i] = q.high[nt][j][i], low[i] = query_low(q, nt, j, i);
                        if constexpr (PAIRED) high[i] = by_column(high[i], low[i], mask);
                    }
                    score_unit<false>(h, high, low, c[nt]);
                }
            }
            const u8* at = scales + (g * BLOCK + 16 * t + r) * 2;
            const float first = h_lo(*(const u16*)at), second = h_lo(*(const u16*)(at + 16));
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
#pragma unroll
                for (int i = 0; i < 4; i++) s.x[t][nt][i] = fma_rn(c[nt][i], i < 2 ? first : second, s.x[t][nt][i]);
            }
        }
#pragma unroll
        for (int nt = 0; nt < NT; nt++) join_columns(s.x[t][nt]);
    }
}
#else
CKV_FN void score_codes(const u8* record, const Query& q, Logits& s, KeySums& sums) {
#pragma unroll
    for (int nt = 0; nt < NT; nt++) sums.square[nt] = 0.0f;
    score_originals(record + CKV_KEY_CODES, q, s);
}
#endif
