// Keys in groups of unlike width, math.md (2.19c), in a decode step: the query as they meet it, and logits from their codes.
//
// A head's widths lie in shared memory beside its query, and every lane of every warp reads the same ones: a product is 16 tokens x 16 places of one width. The query, q/S' with each
// group rotated, lies there by tile: a lane's two registers of column tile nt and tile t at (nt HEAD_TILES + t) 32 + lane, places 4 (lane % 4) and on, then the low ones.
#pragma once

#if CKV_GROUPED
// The words of tiles of the copy that read_query leaves, then levels.
CKV_FN const u32* kept_table(const Vec4* prepared) { return (const u32*)(prepared + 2 * QUERY_STRIDE + 8 * NT) + 2 * D + ckv_grouped::AT_TILES; }

// All threads of the CTA: a warp takes a head at a time. While it is rotated a head lies where its halves will.
CKV_FN void prepare_grouped(const CkvAttendArgs& a, Vec4* given, Vec4* prepared) {
    constexpr int PER = ckv_grouped::PER, PAIRS = (D / 2 + 31) / 32;
    const Metric metric = metric_of((const float*)kept_metric(given), 0);
    const u32* of_head = (const u32*)metric.centre + 2 * D;
#pragma unroll 1
    for (int column = (int)warp(); column < (PAIRED ? 4 : 8 * NT); column += WARPS) {
        u32* highs = (u32*)(prepared + QUERY_STRIDE) + column / 8 * ckv_grouped::HEAD_TILES * 64 + column % 8 * 8;
        u32* lows = highs + NT * ckv_grouped::HEAD_TILES * 64;
        auto room = [highs, lows](u32 place) -> float& { return ((float*)(place & 8 ? lows : highs))[place / 16 * 64 + place % 8]; };
        float x[PER], most = 0.0f;
        FoldSums sums;
        clear(sums);
#pragma unroll
        for (int m = 0; m < PER; m++) {
            const u32 channel = ckv_grouped::channel_at(of_head, 32 * m + lane());
            x[m] = column < GROUP ? query_element(a, given, column * D + (int)channel) : 0.0f;
            most = fmaxf(most, fabsf(x[m]));
            fold_channel(metric, (int)channel, x[m], sums);
        }
        most = warp_max(most);
        join<32>(sums);
        const bool fit = put_fold(a, prepared + 2 * QUERY_STRIDE + column, most, sums, lane() == 0);
        const float up = fit ? query_factor(sums.most) : 1.0f;
#pragma unroll
        for (int m = 0; m < PER; m++) room(32 * m + lane()) = fit ? x[m] : 0.0f;
        ckv_grouped::turn<float>(of_head, room);
        float lo[PAIRS], hi[PAIRS];
#pragma unroll
        for (int n = 0; n < PAIRS; n++) {
            const u32 pair = lane() + 32 * n < D / 2 ? lane() + 32 * n : 0;
            lo[n] = room(2 * pair) * up, hi[n] = room(2 * pair + 1) * up;
        }
        syncwarp();
#pragma unroll
        for (int n = 0; n < PAIRS; n++) {
            const u32 pair = lane() + 32 * n, at = pair / 8 * 64 + pair % 8;
            if (pair >= D / 2) continue;
            const u32 own = h2_pack(lo[n], hi[n]), rest = h2_pack(lo[n] - h_lo(own), hi[n] - h_hi(own));
            highs[at] = own, lows[at] = rest;
            // Low columns have what the high ones have.
            if constexpr (PAIRED) highs[at + 32] = own, lows[at + 32] = rest;
        }
    }
}

// Where a lane's registers of the first tile lie. Paired columns: each its own.
constexpr int GROUPED_LOWS = NT * ckv_grouped::HEAD_TILES * 32;
CKV_FN const Vec2* first_digits(const Query& q) { return (const Vec2*)(q.shared + QUERY_STRIDE) + lane() + (PAIRED && lane() >= 16 ? GROUPED_LOWS : 0); }

// The two registers of a tile whose first column tile's lie at `digits`.
template <int FIRST>
CKV_FN void grouped_digits(const Vec2* digits, u32 (&high)[COLUMNS][2], u32 (&low)[COLUMNS][2]) {
#pragma unroll
    for (int nt = 0; nt < COLUMNS; nt++) {
        const Vec2* at = digits + (FIRST + nt) * ckv_grouped::HEAD_TILES * 32;
        const Vec2 v = *at;
        high[nt][0] = v.x, high[nt][1] = v.y;
        if constexpr (!PAIRED) {
            const Vec2 w = at[GROUPED_LOWS];
            low[nt][0] = w.x, low[nt][1] = w.y;
        }
    }
}

// The products of a tile's codes of BITS bits, which add to those of its group. Tiles of blocks of 16 tokens are two of 16 places.
constexpr int PARTS_OF_TILE = BLOCK < 32 ? 2 : 1;
template <int BITS>
CKV_FN void multiply_tile(const u8* codes, const Vec4& tile, const u32* kept, const u32 (&high)[PARTS_OF_TILE][COLUMNS][2], const u32 (&low)[PARTS_OF_TILE][COLUMNS][2], Logits& part) {
#pragma unroll
    for (int unit = 0; unit < ckv_grouped::UNITS; unit++) {
        u32 h[8];
        load_grouped<BITS>(codes, unit, tile, kept, h);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int t = PARTS_OF_TILE == 2 ? 0 : 2 * unit + e, of = PARTS_OF_TILE == 2 ? e : 0;
#pragma unroll
            for (int nt = 0; nt < COLUMNS; nt++) {
                float(&c)[4] = part.x[t][nt];
                mma_f16(c, h[4 * e], h[4 * e + 1], h[4 * e + 2], h[4 * e + 3], high[of][nt][0], high[of][nt][1]);
                if constexpr (!PAIRED) mma_f16(c, h[4 * e], h[4 * e + 1], h[4 * e + 2], h[4 * e + 3], low[of][nt][0], low[of][nt][1]);
            }
        }
    }
}

// Logits from levels of rotated groups with a radius per token each.
template <int FIRST>
CKV_FN void score_codes(const u8* record, const Query& q, bool, Logits& s, KeySums& sums) {
    const u32* kept = kept_table(q.shared);
    const u8* radii = record + CKV_KEY_SCALES + (lane() >> 2) * 2;
#pragma unroll
    for (int nt = 0; nt < COLUMNS; nt++) sums.square[nt] = 0.0f;
    clear(s);
    // Of the group at hand.
    Logits part;
    clear(part);
    // Where tiles are described, from one to the next.
    const Vec4 *described = (const Vec4*)kept, *end = described + ckv_grouped::HEAD_TILES;
    const Vec2* digits = first_digits(q);
    Vec4 next = *described;
#pragma unroll 1
    while (described < end) {
        const Vec4 at = next;
        // Behind the last one lie levels.
        next = described[PARTS_OF_TILE];
        u32 high[PARTS_OF_TILE][COLUMNS][2], low[PARTS_OF_TILE][COLUMNS][2];
#pragma unroll
        for (int e = 0; e < PARTS_OF_TILE; e++) grouped_digits<FIRST>(digits + 32 * e, high[e], low[e]);
        by_width(ckv_grouped::bits_of(at.x), [&](auto bits) { multiply_tile<decltype(bits)::VALUE>(record + CKV_KEY_CODES + ckv_grouped::bytes_before(at.y), at, kept, high, low, part); });
        const bool ends = ckv_grouped::ends(PARTS_OF_TILE == 2 ? described[PARTS_OF_TILE - 1].x : at.x);
        described += PARTS_OF_TILE, digits += 32 * PARTS_OF_TILE;
        if (!ends) continue;
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const u8* radius = radii + (ckv_grouped::group_of(at.x) * BLOCK + 16 * t) * 2;
            const float first = h_lo(*(const u16*)radius), second = h_lo(*(const u16*)(radius + 16));
#pragma unroll
            for (int nt = 0; nt < COLUMNS; nt++) {
#pragma unroll
                for (int i = 0; i < 4; i++) s.x[t][nt][i] = fma_rn(part.x[t][nt][i], i < 2 ? first : second, s.x[t][nt][i]);
            }
        }
        clear(part);
    }
    // (2.19a): q/S' has a unit of its own, and the centre adds the same to every logit.
#pragma unroll
    for (int nt = 0; nt < COLUMNS; nt++) {
        float ratio[2], shift[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const Fold fold = fold_of(q, PAIRED ? 2 * (int)(lane() & 1) + i : 8 * (FIRST + nt) + 2 * (int)(lane() & 3) + i);
            ratio[i] = fold.ratio, shift[i] = fold.shift;
        }
#pragma unroll
        for (int t = 0; t < TILES; t++) {
#pragma unroll
            for (int i = 0; i < 4; i++) s.x[t][nt][i] *= ratio[i & 1];
            join_columns(s.x[t][nt]);
#pragma unroll
            for (int i = 0; i < 4; i++) s.x[t][nt][i] += shift[i & 1];
        }
    }
}
#endif
