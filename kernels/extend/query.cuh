// A warp's queries as rows of products of the matrix unit: halves, each divided by a power of two so that its largest channel lies in [4, 8).
//
// They lie in shared memory as a lane wants them: the four registers of product e of chunk j, channels 32 j + 8 (lane % 4) + 4 e to + 3 of rows 16 mt + lane / 4
// and 8 more, at ((mt CHUNKS + j) 2 + e) 32 + lane.
#pragma once

struct Query {
    Vec4* halves;
    // Of row 16 mt + 8 half + lane / 4 at 8 (2 mt + half) + lane / 4: the base-2 logit per unit of the halves; behind those of all rows s ||q||, then s times
    // what a unit is; for keys in a metric the base-2 logit that their centre adds; last, as integers, the positions.
    float* units;
};
CKV_FN Query query_at(u8* shared) {
    u8* at = shared + AT_QUERIES + warp() * QUERY_BYTES;
    return Query{(Vec4*)at, (float*)(at + ROWS * D * 2)};
}

// Leaves the units of row `number`, of such a largest magnitude and squared norm, if the lane `keeps` them. Returns what its halves are to be multiplied by.
CKV_FN float put_units(const CkvExtendArgs& a, const Query& q, u32 number, float most, float square, bool keeps) {
    i32 power = (i32)(float_as_u32(most) >> 23) - 127;
    power = power < -100 ? -100 : power;
    // The scale's sign goes with the query: a unit is not negative, nor 0, so that what is hidden stays below everything.
    const float sign = a.scale < 0.0f ? -1.0f : 1.0f, down = u32_as_float((u32)(125 + power) << 23);
    if (keeps) {
        q.units[number] = fmaxf(fabsf(a.scale) * 1.44269504f * down, 1.0e-37f);
        q.units[ROWS + number] = mul_ru(fabsf(a.scale), sqrt_ru(square * 1.0001f + LOST_SQUARES));
        q.units[2 * ROWS + number] = mul_ru(fabsf(a.scale), down);
    }
    return sign * u32_as_float((u32)(129 - power) << 23);
}
#if CKV_FOLD
// Leaves what a row has beside q/S. Whether that fits: else it meets codes as 0.
CKV_FN bool put_fold(const CkvExtendArgs& a, const Query& q, u32 number, const FoldSums& sums, bool keeps) {
    // Terms of up to 10^5 nats: what their sum in double precision loses is nothing beside CENTRED.
    const bool fit = fits(sums, a.scale, sums.terms * (double)fabsf(a.scale) * 1.0e19);
    if (keeps) {
        q.units[ROWS + number] = fold_bound(sums, a.scale, fit).reach;
        q.units[3 * ROWS + number] = fit ? (float)((double)a.scale * sums.product * 1.4426950408889634) : 0.0f;
    }
    return fit;
}
#endif
CKV_FN i32* positions_of(const Query& q) { return (i32*)q.units + (QUERY_NUMBERS - 1) * ROWS; }
// What a warp needs once a block, too: in memory, as positions are, for the registers.
struct OfWarp {
    Span span;
    float centre;  // the norm of the values' centre
    u32 unused;
};
static_assert(sizeof(OfWarp) == OF_WARP_BYTES, "OF_WARP_BYTES");
CKV_FN OfWarp& of_warp(const Query& q) { return *(OfWarp*)(q.units + QUERY_NUMBERS * ROWS); }
// Leaves positions and span of a warp's rows.
CKV_FN void put_positions(const Tile& t, const Query& q) {
    if (lane() < (u32)ROWS) positions_of(q)[lane()] = position(t, warp() * ROWS + lane());
    if (lane() == 0) of_warp(q).span = span_of(t);
}
CKV_FN i32 position_of(const Query& q, int mt, int half) { return positions_of(q)[8 * (2 * mt + half) + (lane() >> 2)]; }
CKV_FN float unit_of(const Query& q, int mt, int half) { return q.units[8 * (2 * mt + half) + (lane() >> 2)]; }
// Of the row whose certificate the lane keeps: number lane % 4 of 2 mt + half, where there are so many.
CKV_FN u32 own_number() { return 8 * ((lane() & 3) % (u32)(2 * MT)) + (lane() >> 2); }
CKV_FN float reach_of(const Query& q) { return q.units[ROWS + own_number()]; }
CKV_FN float step_of(const Query& q) { return q.units[2 * ROWS + own_number()]; }
#if CKV_FOLD
CKV_FN float shift_of(const Query& q, int mt, int half) { return q.units[3 * ROWS + 8 * (2 * mt + half) + (lane() >> 2)]; }
CKV_FN float own_shift(const Query& q) { return q.units[3 * ROWS + own_number()]; }
#endif

// That row's out of numbers of all rows.
CKV_FN float own_row(const float (&x)[MT][2]) {
    const u32 c4 = lane() & 3;
    float y = c4 & 1 ? x[0][1] : x[0][0];
    if constexpr (MT == 2) y = c4 & 2 ? (c4 & 1 ? x[MT - 1][1] : x[MT - 1][0]) : y;
    return y;
}

// Eight channels from element `at` on.
CKV_FN void query_elements(const CkvExtendArgs& a, u64 at, float (&x)[8]) {
    if (a.query_type == 2) {
        const Vec4 v = ldg((const Vec4*)a.query + at / 4), w = ldg((const Vec4*)a.query + at / 4 + 1);
        const u32 bits[8] = {v.x, v.y, v.z, v.w, w.x, w.y, w.z, w.w};
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = u32_as_float(bits[i]);
        return;
    }
    const Vec4 v = ldg((const Vec4*)a.query + at / 8);
    const u32 bits[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = a.query_type == 1 ? b_lo(bits[i]) : h_lo(bits[i]);
        x[2 * i + 1] = a.query_type == 1 ? b_hi(bits[i]) : h_hi(bits[i]);
    }
}

// Eight channels of a row that may not be there.
CKV_FN void row_elements(const CkvExtendArgs& a, bool there, u64 at, float (&x)[8]) {
    if (there) query_elements(a, at, x);
#pragma unroll
    for (int c = 0; c < 8; c++) x[c] = there ? x[c] : 0.0f;
}

CKV_FN void put_query(const Query& q, int i, int j, const float (&x)[8], float up) {
    u32* at = (u32*)(q.halves + ((i / 2 * CHUNKS + j) * 2) * 32 + lane()) + i % 2;
#pragma unroll
    for (int c = 0; c < 4; c++) at[(c / 2) * 128 + (c % 2) * 2] = h2_pack(x[2 * c] * up, x[2 * c + 1] * up);
}

// Reads them; TURNED: rotated, for TurboQuant's keys, and folded before where those have a metric. A row of each lane at a time, and as they are eight channels at a time: outputs may be in the other
// registers.
template <bool TURNED>
CKV_FN void prepare_queries(const CkvExtendArgs& a, const Tile& t, const Query& q) {
    syncwarp();
#pragma unroll 1
    for (int i = 0; i < 2 * MT; i++) {
        const u32 number = 8 * i + (lane() >> 2), row = warp() * ROWS + number;
        const bool there = is_row(t, row);
        const u64 token = (u64)t.chunk.first_row + t.first + token_of(row);
        const u64 at = row_at(a.query_strides, (u32)token, t.head * GROUP + head_of(row)) + 8 * (lane() & 3);
        float most = 0.0f, square = 0.0f;
#if CKV_FOLD
        const Metric metric = metric_of(a.metrics, t.head);
        FoldSums sums;
        clear(sums);
        if constexpr (TURNED) {
#pragma unroll 1
            for (int j = 0; j < CHUNKS; j++) {
                float x[8];
                row_elements(a, there, at + 32 * j, x);
                fold(metric, 32 * j + 8 * (int)(lane() & 3), x, sums);
            }
            join(sums);
            most = sums.most, square = sums.square;
        }
#endif
#pragma unroll 1
        for (int j = 0; j < (FOLDED && TURNED ? 0 : CHUNKS); j++) {
            float x[8];
            row_elements(a, there, at + 32 * j, x);
#pragma unroll
            for (int c = 0; c < 8; c++) {
                // A maximum would drop NaN; the norm takes it to the bound.
                most = fmaxf(most, fabsf(x[c]));
                square = fma_ru(x[c], x[c], square);
            }
        }
        if constexpr (!(FOLDED && TURNED)) {
#pragma unroll
            for (int d = 1; d < 4; d <<= 1) {
                most = fmaxf(most, shfl_xor(most, d));
                square += shfl_xor(square, d);
            }
        }
        const bool keeps = (lane() & 3) == 0;
        const float up = put_units(a, q, number, most, square, keeps);
#if CKV_FOLD
        bool fit = true;
        if constexpr (TURNED) fit = put_fold(a, q, number, sums, keeps);
#endif
        if constexpr (TURNED) {
#if CKV_KEY == 3 && !CKV_GROUPED
            float x[CHUNKS][8];
#pragma unroll
            for (int j = 0; j < CHUNKS; j++) row_elements(a, there, at + 32 * j, x[j]);
#if CKV_FOLD
#pragma unroll
            for (int j = 0; j < CHUNKS; j++) {
#pragma unroll
                for (int c = 0; c < 8; c++) x[j][c] = fit ? x[j][c] / ldg(metric.balance + 32 * j + 8 * (int)(lane() & 3) + c) : 0.0f;
            }
#endif
            turn_query(x);
#pragma unroll
            for (int j = 0; j < CHUNKS; j++) put_query(q, i, j, x[j], up);
#endif
        } else {
#pragma unroll 1
            for (int j = 0; j < CHUNKS; j++) {
                float x[8];
                row_elements(a, there, at + 32 * j, x);
                put_query(q, i, j, x, up);
            }
        }
    }
    syncwarp();
}

#if CKV_KEY == 3 && !CKV_GROUPED
// A function of its own: nothing of it waits in registers while blocks are read.
__attribute__((noinline)) __device__ void prepare_turned(const CkvExtendArgs& a, const Tile& t, const Query& q) { prepare_queries<true>(a, t, q); }
#endif

// Registers of product e of chunk j: of rows lane / 4 and 8 more, then of both two channels on.
CKV_FN void load_query(const Query& q, int mt, int j, int e, u32 (&x)[4]) {
    const Vec4 v = q.halves[((mt * CHUNKS + j) * 2 + e) * 32 + lane()];
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}
