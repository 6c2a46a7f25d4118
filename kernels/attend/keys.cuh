// Logits of one block, for all heads of the group, and what the bound needs of its key scales.
#pragma once

// Logits in units of Query::unit (base 2): x[tile][nt][0..1] for token lane / 4 of the tile, [2..3] for token lane / 4 + 8; two
// heads each. Here and below: column tiles from FIRST on.
struct Logits {
    float x[TILES][COLUMNS][4];
};

// Sum over the channels of (q sigma)^2 in units of step^2: head h in the lane of row h % 8, column h % 8.
struct KeySums {
    float square[COLUMNS];
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

CKV_FN void clear(float (&c)[COLUMNS][4]) {
#pragma unroll
    for (int nt = 0; nt < COLUMNS; nt++) c[nt][0] = c[nt][1] = c[nt][2] = c[nt][3] = 0.0f;
}
CKV_FN void clear(Logits& s) {
#pragma unroll
    for (int t = 0; t < TILES; t++) clear(s.x[t]);
}

// The digits of chunk j as score_unit takes them for keys that are (ROWS) or are not originals; paired columns get their own.
template <int FIRST, bool ROWS>
CKV_FN void digits(const Query& q, int j, u32 (&high)[COLUMNS][4], u32 (&low)[COLUMNS][4]) {
    const u32 mask = low_columns();
#pragma unroll
    for (int nt = 0; nt < COLUMNS; nt++) {
        if constexpr (ROWS) {
            query_rows(q, FIRST + nt, j, high[nt], low[nt]);
        } else if constexpr (PAIRED && QUERIES == 2) {
            // Of the rotated query each column reads its own.
            const Vec4 v = q.shared[QUERY_STRIDE + ((lane() >= 16 ? NT : 0) + FIRST + nt) * CHUNKS * 32 + j * 32 + (int)lane()];
            high[nt][0] = v.x, high[nt][1] = v.y, high[nt][2] = v.z, high[nt][3] = v.w;
        } else {
            query_chunk<QUERIES == 2>(q, FIRST + nt, j, high[nt], low[nt]);
        }
        if constexpr (PAIRED && (ROWS || QUERIES == 1)) {
#pragma unroll
            for (int i = 0; i < 4; i++) high[nt][i] = by_column(high[nt][i], low[nt][i], mask);
        }
    }
}

// Logits from 16-bit keys in fragment order.
template <int FIRST>
CKV_FN void score_originals(const u8* keys, const Query& q, Logits& s) {
    clear(s);
    // The order of the loops decides what lives: all digits, or the sums of all tiles.
    constexpr int OUTER = BY_CHUNK ? CHUNKS : TILES, INNER = BY_CHUNK ? TILES : CHUNKS;
#pragma unroll UNROLL
    for (int outer = 0; outer < OUTER; outer++) {
#pragma unroll
        for (int inner = 0; inner < INNER; inner++) {
            const int t = BY_CHUNK ? inner : outer, j = BY_CHUNK ? outer : inner;
            u32 h[8], high[COLUMNS][4], low[COLUMNS][4];
            load_original(keys, t * CHUNKS + j, h);
            digits<FIRST, true>(q, j, high, low);
#pragma unroll
            for (int nt = 0; nt < COLUMNS; nt++) score_unit<true>(h, high[nt], low[nt], s.x[t][nt]);
        }
    }
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int nt = 0; nt < COLUMNS; nt++) join_columns(s.x[t][nt]);
    }
}

#if CKV_KEY == 1
// Eight scales of chunk j for this lane's channels, as four registers of halves.
CKV_FN void channel_scales(const u8* scales, int j, u32 (&w)[4]) {
    const Vec4 v = *(const Vec4*)(scales + (32 * j + 8 * (lane() & 3)) * 2);
    w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
}

// What a block's offsets and scales sum to: z the products of query and offsets, n the squares of the scaled query. Two chains
// each where registers allow it: a chain of products waits for every one of its links.
constexpr int OFFSET_CHAINS = BY_CHUNK ? 1 : 2;
struct ChannelSums {
    float z[OFFSET_CHAINS][COLUMNS][4], n[2][COLUMNS][4];
};

// The query of chunk j, its product with the scales, and the latter as pairs of halves; paired columns get the one that is theirs.
struct ScaledChunk {
    u32 query_high[COLUMNS][4], query_low[COLUMNS][4], product[COLUMNS][4];
};
template <int FIRST>
CKV_FN void scale_chunk(const u8* scales, const Query& q, int j, u32 (&high)[COLUMNS][4], u32 (&low)[COLUMNS][4], ScaledChunk& of) {
    const u32 mask = low_columns();
    u32 sigma[4];
    channel_scales(scales, j, sigma);
#pragma unroll
    for (int nt = 0; nt < COLUMNS; nt++) {
        query_chunk(q, FIRST + nt, j, of.query_high[nt], of.query_low[nt]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 qh = of.query_high[nt][i], ql = of.query_low[nt][i], y = times_high(qh, sigma[i]);
            of.product[nt][i] = y;
            if constexpr (PAIRED) {
                high[nt][i] = query_times(qh, ql, sigma[i], y, mask);
            } else {
                high[nt][i] = y;
                low[nt][i] = times_low(qh, ql, sigma[i]);
            }
        }
    }
}

// The scaled query of chunk j, and its part of the sums.
template <int FIRST>
CKV_FN void scale_query(const u8* scales, const Query& q, int j, bool finer, u32 (&high)[COLUMNS][4], u32 (&low)[COLUMNS][4],
                        ChannelSums& sums) {
    const u32 mask = low_columns();
    u32 offset[4];
    ScaledChunk of;
    scale_chunk<FIRST>(scales, q, j, high, low, of);
    // Residuals have no offsets, but half a code each.
    channel_scales(finer ? scales : scales + 2 * D, j, offset);
#pragma unroll
    for (int nt = 0; nt < COLUMNS; nt++) {
        float(&z)[OFFSET_CHAINS][COLUMNS][4] = sums.z;
        float(&n)[2][COLUMNS][4] = sums.n;
        const u32(&y)[4] = of.product[nt];
        const u32(&qh)[4] = of.query_high[nt];
        // The scaled query against itself: row h, column h is the sum of its squares; even registers land in rows
        // 0..7, odd ones in rows 8..15.
        mma_f16(n[0][nt], y[0], y[1], y[2], y[3], y[0], y[2]);
        mma_f16(n[1][nt], y[0], y[1], y[2], y[3], y[1], y[3]);
        // The offsets are rows of the first operand: all rows alike.
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int chain = e % OFFSET_CHAINS;
            const u32 z0 = offset[2 * e], z1 = offset[2 * e + 1];
            u32 b0 = qh[2 * e], b1 = qh[2 * e + 1];
#if CKV_QUERY_LOW
            const u32 l0 = of.query_low[nt][2 * e], l1 = of.query_low[nt][2 * e + 1];
            if constexpr (PAIRED) b0 = by_column(b0, l0, mask), b1 = by_column(b1, l1, mask);
            else mma_f16(z[chain][nt], z0, z0, z1, z1, l0, l1);
#endif
            mma_f16(z[chain][nt], z0, z0, z1, z1, b0, b1);
        }
    }
}

// Unit `unit` of what lies where codes are: those, or residuals of them.
CKV_FN void load_keys(const u8* codes, int unit, bool finer, u32 (&h)[8]) {
    constexpr int BITS = REFINABLE ? CKV_KEY_REFINE : CKV_KEY_BITS;
    if (BITS == CKV_KEY_BITS || !finer) {
        load_codes<CKV_KEY_BITS, 1u << (CKV_KEY_BITS - 1)>(codes, unit, h);
    } else {
        load_codes<BITS, 1u << (BITS - 1)>(codes, unit, h);
    }
}

// Logits from codes with a scale and an offset per channel, math.md (2.3): q k^ = (q sigma).code + q.z. The scaled query and
// the offset are formed once per block. FINER: adds what residuals in the place of the codes say beside that, (2.23),
// q.(k^^ - k^) = ((q sigma).r + (q.sigma)/2) 2^-m, to the logits in `s`, which are 0 before. By the same instructions, because two copies of them are more
// than is fetched fast (docs/gpu.md).
template <int FIRST, int TIMES = UNROLL>
CKV_FN void score_codes(const u8* record, const Query& q, bool finer, Logits& s, KeySums& sums) {
    // What is there already is where the sums begin: in the columns of the high digits, in steps of the residuals.
    const float begin = finer && !(PAIRED && (lane() & 2)) ? 1.0f / KEY_STEP : 0.0f;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int nt = 0; nt < COLUMNS; nt++) {
#pragma unroll
            for (int i = 0; i < 4; i++) s.x[t][nt][i] = REFINABLE ? s.x[t][nt][i] * begin : 0.0f;
        }
    }
    const u8* scales = record + CKV_KEY_SCALES;
    const u8* codes = record + CKV_KEY_CODES;
    ChannelSums channels;
    float(&z)[OFFSET_CHAINS][COLUMNS][4] = channels.z;
    float(&n)[2][COLUMNS][4] = channels.n;
#pragma unroll
    for (int e = 0; e < 2; e++) clear(z[e % OFFSET_CHAINS]), clear(n[e]);
    u32 high[BY_CHUNK ? 1 : CHUNKS][COLUMNS][4], low[BY_CHUNK ? 1 : CHUNKS][COLUMNS][4];
#pragma unroll TIMES
    for (int j = 0; j < CHUNKS; j++) {
        scale_query<FIRST>(scales, q, j, finer, high[BY_CHUNK ? 0 : j], low[BY_CHUNK ? 0 : j], channels);
        if constexpr (BY_CHUNK) {
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                u32 h[8];
                load_keys(codes, t * CHUNKS + j, finer, h);
#pragma unroll
                for (int nt = 0; nt < COLUMNS; nt++) score_unit<false>(h, high[0][nt], low[0][nt], s.x[t][nt]);
            }
        }
    }
    const bool odd = (lane() >> 2) & 1;
#pragma unroll
    for (int nt = 0; nt < COLUMNS; nt++) {
        sums.square[nt] = odd ? n[0][nt][1] + n[1][nt][3] : n[0][nt][0] + n[1][nt][2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if constexpr (OFFSET_CHAINS == 2) z[0][nt][i] += z[OFFSET_CHAINS - 1][nt][i];
            // Without low halves every column has the whole offset: it enters where the high digits are.
            if constexpr (PAIRED && !CKV_QUERY_LOW) z[0][nt][i] = lane() & 2 ? 0.0f : z[0][nt][i];
            if constexpr (REFINABLE) z[0][nt][i] *= finer ? 0.5f : 1.0f;
        }
    }
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        float c[2][COLUMNS][4];
#pragma unroll
        for (int nt = 0; nt < COLUMNS; nt++) {
#pragma unroll
            for (int i = 0; i < 4; i++) c[0][nt][i] = z[0][nt][i & 1], c[1][nt][i] = s.x[t][nt][i];
        }
        if constexpr (!BY_CHUNK) {
#pragma unroll
            for (int j = 0; j < CHUNKS; j++) {
                u32 h[8];
                load_keys(codes, t * CHUNKS + j, finer, h);
#pragma unroll
                for (int nt = 0; nt < COLUMNS; nt++) score_unit<false>(h, high[j][nt], low[j][nt], c[j & 1][nt]);
            }
        }
#pragma unroll
        for (int nt = 0; nt < COLUMNS; nt++) {
#pragma unroll
            for (int i = 0; i < 4; i++) s.x[t][nt][i] = (c[0][nt][i] + c[1][nt][i]) * (REFINABLE && finer ? KEY_STEP : 1.0f);
            join_columns(s.x[t][nt]);
        }
    }
}
#elif CKV_KEY == 7
// key_directions.cuh.
#elif CKV_KEY == 2 || CKV_KEY >= 4
// One group of channels of one tile: from codes to the sums of products.
template <int FIRST>
CKV_FN void score_group(const u8* codes, const Query& q, int t, int g, float (&c)[COLUMNS][4]) {
    constexpr int PER = CKV_KEY_GROUP / 32;
#pragma unroll
    for (int j = g * PER; j < (g + 1) * PER; j++) {
        u32 h[8], high[COLUMNS][4], low[COLUMNS][4];
        load_page<CKV_KEY == 2 ? 0 : CKV_KEY - 4, CKV_KEY_BITS>(codes, t * CHUNKS + j, h);
        digits<FIRST, false>(q, j, high, low);
#pragma unroll
        for (int nt = 0; nt < COLUMNS; nt++) score_unit<false>(h, high[nt], low[nt], c[nt]);
    }
}

// Logits from symmetric codes with a scale per token and group of channels, math.md (2.7), or from codes with one per block, (2.9a).
template <int FIRST>
CKV_FN void score_codes(const u8* record, const Query& q, bool, Logits& s, KeySums& sums) {
    constexpr int GROUPS = D / CKV_KEY_GROUP;
    const u8* scales = record + CKV_KEY_SCALES;
    const int r = lane() >> 2;
#pragma unroll
    for (int nt = 0; nt < COLUMNS; nt++) sums.square[nt] = 0.0f;
    clear(s);
    // As in score_originals.
    constexpr int OUTER = LEAN ? GROUPS : TILES, INNER = LEAN ? TILES : GROUPS;
#pragma unroll UNROLL
    for (int outer = 0; outer < OUTER; outer++) {
#pragma unroll
        for (int inner = 0; inner < INNER; inner++) {
            const int t = LEAN ? inner : outer, g = LEAN ? outer : inner;
            float c[COLUMNS][4];
            clear(c);
            score_group<FIRST>(record + CKV_KEY_CODES, q, t, g, c);
            const u8* at = scales + (CKV_KEY == 2 ? g * BLOCK + 16 * t + r : g) * 2;
            const float first = h_lo(*(const u16*)at) * page_raise(CKV_KEY - 4);
            const float second = CKV_KEY == 2 ? h_lo(*(const u16*)(at + 16)) : first;
#pragma unroll
            for (int nt = 0; nt < COLUMNS; nt++) {
#pragma unroll
                for (int i = 0; i < 4; i++) s.x[t][nt][i] = fma_rn(c[nt][i], i < 2 ? first : second, s.x[t][nt][i]);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int nt = 0; nt < COLUMNS; nt++) join_columns(s.x[t][nt]);
    }
}
#elif CKV_GROUPED
// key_groups.cuh.
#elif CKV_KEY == 3
// Logits from levels of the rotated key with a radius per token, math.md (2.17b).
template <int FIRST>
CKV_FN void score_codes(const u8* record, const Query& q, bool, Logits& s, KeySums& sums) {
    constexpr auto LEVELS = key_levels();
    const u8* radii = record + CKV_KEY_SCALES;
    const int r = lane() >> 2;
#pragma unroll
    for (int nt = 0; nt < COLUMNS; nt++) sums.square[nt] = 0.0f;
    clear(s);
#pragma unroll UNROLL
    for (int j = 0; j < CHUNKS; j++) {
        u32 high[COLUMNS][4], low[COLUMNS][4];
        digits<FIRST, false>(q, j, high, low);
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            u32 h[8];
            load_levels<CKV_KEY_BITS, 0>(record + CKV_KEY_CODES, t * CHUNKS + j, LEVELS, h);
#pragma unroll
            for (int nt = 0; nt < COLUMNS; nt++) score_unit<false>(h, high[nt], low[nt], s.x[t][nt]);
        }
    }
#if CKV_FOLD
    // (2.19a): q/S has a unit of its own, and the centre adds the same to every logit.
    float ratio[COLUMNS][2], shift[COLUMNS][2];
#pragma unroll
    for (int nt = 0; nt < COLUMNS; nt++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const Fold fold = fold_of(q, PAIRED ? 2 * (int)(lane() & 1) + i : 8 * (FIRST + nt) + 2 * (int)(lane() & 3) + i);
            ratio[nt][i] = fold.ratio, shift[nt][i] = fold.shift;
        }
    }
#endif
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        const u8* at = radii + (16 * t + r) * 2;
        const float first = h_lo(*(const u16*)at), second = h_lo(*(const u16*)(at + 16));
#pragma unroll
        for (int nt = 0; nt < COLUMNS; nt++) {
#if CKV_FOLD
#pragma unroll
            for (int i = 0; i < 4; i++) s.x[t][nt][i] *= (i < 2 ? first : second) * ratio[nt][i & 1];
            join_columns(s.x[t][nt]);
#pragma unroll
            for (int i = 0; i < 4; i++) s.x[t][nt][i] += shift[nt][i & 1];
#else
#pragma unroll
            for (int i = 0; i < 4; i++) s.x[t][nt][i] *= i < 2 ? first : second;
            join_columns(s.x[t][nt]);
#endif
        }
    }
}
#else
template <int FIRST>
CKV_FN void score_codes(const u8* record, const Query& q, bool, Logits& s, KeySums& sums) {
#pragma unroll
    for (int nt = 0; nt < COLUMNS; nt++) sums.square[nt] = 0.0f;
    score_originals<FIRST>(record + CKV_KEY_CODES, q, s);
}
#endif
