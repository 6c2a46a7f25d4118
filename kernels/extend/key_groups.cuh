// Keys in groups of unlike width, math.md (2.19c), for chunks: a warp's queries as they meet them, and operands from their codes.
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
        const u64 at = row_at(a.query_strides, (u32)token, t.head * GROUP + head_of(row));
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
        for (int m = 0; m < PER; m++) room[32 * m + lane()] = fit ? x[m] * up : 0.0f;
        ckv_grouped::turn<float>(table, at_place);
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

// Keys of tiles part .. part + PART of a record as operands. `kept`: as keep_table leaves it.
CKV_FN void decode_groups(const u8* record, const u32* kept, int part, u8* keys) {
    // Of blocks of 16 tokens a unit is two tiles.
    constexpr int WORDS = BLOCK < 32 ? 2 : 1, UNITS = BLOCK < 32 ? 1 : PART / 2;
    static_assert(BLOCK < 32 || PART % 2 == 0, "a unit's tokens");
#pragma unroll 1
    for (int tile = WORDS * (int)warp(); tile < ckv_grouped::HEAD_TILES; tile += WORDS * WARPS) {
        const Vec4 own = kept_tile(kept, tile);
        const u8* radii = record + CKV_KEY_SCALES + (ckv_grouped::group_of(own.x) * BLOCK + (lane() >> 2)) * 2;
        by_width(ckv_grouped::bits_of(own.x), [&](auto bits) {
#pragma unroll
            for (int n = 0; n < UNITS; n++) {
                u32 h[8];
                load_grouped<decltype(bits)::VALUE>(record + CKV_KEY_CODES + ckv_grouped::bytes_before(own.y), part / 2 + n, own, kept, h);
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int t = WORDS == 2 ? 0 : 2 * n + e, of = WORDS == 2 ? tile + e : tile;
                    const u8* at = radii + (part + t) * 32;
                    const u32 low = twice(*(const u16*)at), high = twice(*(const u16*)(at + 16));
                    put_operands(keys, t * CHUNKS + of / 2, of % 2, h2_mul(h[4 * e], low), h2_mul(h[4 * e + 1], high), h2_mul(h[4 * e + 2], low),
                                 h2_mul(h[4 * e + 3], high));
                }
            }
        });
    }
}
#endif
