// Keys in groups of unlike width, math.md (2.19c), for chunks: a warp's queries as they meet them, and logits from their codes.
//
// The query's halves lie as other rotated ones do, but that product e of chunk j has places 32 j + 16 e + 4 (lane % 4) to + 3: those of a tile.
#pragma once

#if CKV_GROUPED
CKV_FN float query_element(const CkvExtendArgs& a, u64 at) {
    if (a.query_type == 2) return ldg((const float*)a.query + at);
    const u32 x = ldg((const u16*)a.query + at);
    return a.query_type == 1 ? b_lo(x) : h_lo(x);
}

// A row of all lanes at a time. `room`: D numbers of the warp's own. A function of its own: nothing of it waits in registers while blocks are read.
__attribute__((noinline)) __device__ void prepare_grouped(const CkvExtendArgs& a, const Tile& t, const Query& q, float* room) {
    constexpr int PER = ckv_grouped::PER, PAIRS = (D / 2 + 31) / 32;
    const u32* table = ckv_grouped::table_of(a.metrics, t.head);
    const Metric metric = metric_of(a.metrics, t.head);
    auto at_place = [room](u32 place) -> float& { return room[place]; };
#pragma unroll 1
    for (u32 number = 0; number < (u32)ROWS; number++) {
        const u32 row = warp() * ROWS + number;
        const bool there = is_row(t, row);
        const u64 token = (u64)t.chunk.first_row + t.first + token_of(row);
        const u64 at = ((token * a.kv_heads + t.head) * GROUP + head_of(row)) * D;
        float x[PER];
        FoldSums sums;
        clear(sums);
#pragma unroll
        for (int m = 0; m < PER; m++) {
            const u32 channel = ckv_grouped::channel_at(table, 32 * m + lane());
            x[m] = 0.0f;
            if (there) x[m] = query_element(a, at + channel);
            fold_channel(metric, (int)channel, x[m], sums);
        }
        join<32>(sums);
        const float up = put_units(a, q, number, sums.most, sums.square, lane() == 0);
        const bool fit = put_fold(a, q, number, sums, lane() == 0);
#pragma unroll
        for (int m = 0; m < PER; m++) x[m] = fit ? x[m] * up : 0.0f;
        ckv_grouped::turn(table, x, at_place);
        u32* halves = (u32*)(q.halves + number / 16 * (CHUNKS * 64) + number % 8 * 4) + number / 8 % 2;
#pragma unroll
        for (int n = 0; n < PAIRS; n++) {
            const u32 pair = lane() + 32 * n;
            if (pair >= D / 2) continue;
            // Tile pair / 8, lane pair / 2 % 4 of the row's, pair % 2 of the lane's two.
            halves[pair / 8 * 128 + pair / 2 % 4 * 4 + pair % 2 * 2] = h2_pack(room[2 * pair], room[2 * pair + 1]);
        }
        syncwarp();
    }
}

// The part of the table that is read with the codes, for all warps.
CKV_FN void keep_table(const CkvExtendArgs& a, const Tile& t, u32* table) {
    const u32* from = ckv_grouped::table_of(a.metrics, t.head) + ckv_grouped::AT_TILES;
    for (int i = (int)threadIdx.x; i < ckv_grouped::KEPT; i += THREADS) table[i] = from[i];
}

// A unit of a tile.
struct TileUnit {
    const u8* codes;
    const u32* levels;
    int unit;
    u32 (&h)[8];

    template <int BITS> __device__ __forceinline__ void at() const { load_grouped<BITS>(codes, unit, levels, h); }
};

// Logits of tiles first .. of a record, of which the first is even where there are two. `table`: as keep_table leaves it.
CKV_FN void score_groups(const u8* block, int first, const u32* table, const Query& q, Logits& s) {
    static_assert(BLOCK < 32 || SUB == 2, "a unit's tokens");
    constexpr int WORDS = BLOCK < 32 ? 2 : 1;
    const u8* radii = block + CKV_KEY_SCALES + (16 * first + (lane() >> 2)) * 2;
#pragma unroll 1
    for (int tile = 0; tile < ckv_grouped::HEAD_TILES; tile += WORDS) {
        const u32 word = table[tile];
        u32 h[8], x[WORDS][MT][4];
#pragma unroll
        for (int e = 0; e < WORDS; e++) {
#pragma unroll
            for (int mt = 0; mt < MT; mt++) load_query(q, mt, (tile + e) / 2, (tile + e) % 2, x[e][mt]);
        }
        by_width(ckv_grouped::bits_of(word), TileUnit{block + CKV_KEY_CODES + ckv_grouped::codes_before(word), levels_of_tile(table, word), first / 2, h});
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int t = WORDS == 2 ? 0 : e, of = WORDS == 2 ? e : 0;
            const u8* at = radii + (ckv_grouped::group_of(word) * BLOCK + 16 * t) * 2;
            const u32 low = twice(*(const u16*)at), high = twice(*(const u16*)(at + 16));
#pragma unroll
            for (int i = 0; i < 4; i++) h[4 * e + i] = h2_mul(h[4 * e + i], i & 1 ? high : low);
#pragma unroll
            for (int mt = 0; mt < MT; mt++) {
                const u32(&a)[4] = x[of][mt];
                mma_f16(s.x[mt][2 * t], a[0], a[1], a[2], a[3], h[4 * e], h[4 * e + 2]);
                mma_f16(s.x[mt][2 * t + 1], a[0], a[1], a[2], a[3], h[4 * e + 1], h[4 * e + 3]);
            }
        }
    }
}
#endif
