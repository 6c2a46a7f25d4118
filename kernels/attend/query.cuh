// The query as operands of the matrix unit, and the numbers of the bound that depend on it alone.
//
// A head's query is divided by a power of two so that its largest channel lies in [4, 8): then q sigma stays inside f16 for every scale below 8188,
// as all of 8-bit codes are; a wider one makes its block's bound infinite (code_bound). It is held as a pair of halves, 22 bits; what the pair misses
// is in the bound (code_bound). Queries of 16 bits have no low half: their variants leave it out. Columns: lane / 4 is the column; paired columns 0..3 are the high halves, 4..7 the low ones.
#pragma once

struct Query {
    // Halves of 2^exponent q by chunk and register: register i of a chunk holds channels 8 (lane % 4) + 2 i, + 1. With QUERY_SHARED
    // they lie in `shared`: a lane's four registers of chunk j and tile nt at (nt CHUNKS + j) 32 + lane, then the low ones; then the same
    // of the rotated query, where there is one.
    u32 high[QUERY_SHARED ? 1 : NT][QUERY_SHARED ? 1 : CHUNKS][4];
    u32 low[QUERY_SHARED || !LOW_QUERY ? 1 : NT][QUERY_SHARED || !LOW_QUERY ? 1 : CHUNKS][4];
    const Vec4* shared;
    // Of the two heads whose logits this lane holds (columns 2 (lane % 4), + 1; paired: modulo 4): base-2 logit per unit.
    float unit[NT][2];
    // Of the head whose certificate this lane keeps (lane % HEADS): s ||q||, and 2^-exponent s.
    float reach;
    float step;
};

// Which bits a lane of low columns keeps of the high product: all ones in low columns, none in high ones.
CKV_FN u32 low_columns() { return PAIRED && lane() >= 16 ? 0xffffffffu : 0u; }

// Query head h of a KV head of a sequence.
CKV_FN const u8* query_row(const CkvAttendArgs& a, u32 seq, u32 kv, int h) {
    bool own;
    return (const u8*)a.query + own_row(a, a.query_strides, seq, kv, h, own) * (a.query_type == 2 ? 4 : 2);
}

// Copies the group's queries one head at a time, where heads are apart, as those of a draft's tokens are. A function of its own in every variant: where a thread's parts are does not change
// from head to head, and would wait in registers while blocks are read.
__attribute__((noinline)) __device__ void read_apart(const CkvAttendArgs& a, u32 seq, u32 kv, Vec4* shared) {
    const int per = a.query_type == 2 ? D / 4 : D / 8;
    if constexpr (DRAFTED) {
        // More heads than elsewhere, and a warp has one of them.
        for (int h = warp(); h < GROUP; h += WARPS) {
            const Vec4* from = (const Vec4*)query_row(a, seq, kv, h);
            for (int at = lane(); at < per; at += 32) cp_async16(smem_addr(shared + h * per + at), from + at);
        }
        return;
    }
    for (int h = 0; h < GROUP; h++) {
        const Vec4* from = (const Vec4*)query_row(a, seq, kv, h);
        for (int at = threadIdx.x; at < per; at += THREADS) cp_async16(smem_addr(shared + h * per + at), from + at);
    }
}

// From a query to the rotated one, in vectors.
[[maybe_unused]] constexpr int QUERY_STRIDE = 2 * NT * CHUNKS * 32;

#if CKV_FOLD
// The copy of what a head's keys are coded by: behind the queries, of which `shared` is the first, and their Folds.
CKV_FN Vec4* kept_metric(Vec4* shared) { return shared + GIVEN_BYTES / 16 + 2 * QUERY_STRIDE + 8 * NT; }
#endif

// Starts to copy the queries of a KV head of a sequence to shared memory, and what its keys are coded by: ahead of the records, behind which they would
// queue. All threads of the CTA.
CKV_FN void read_query(const CkvAttendArgs& a, u32 seq, u32 kv, Vec4* shared) {
    const int parts = a.query_type == 2 ? GROUP * D / 4 : GROUP * D / 8;
    if (CKV_QUERY_LOW || a.query_type != 2) {
        if (!DRAFTED && a.query_strides.head == D) {
            const Vec4* from = (const Vec4*)query_row(a, seq, kv, 0);
            // One round, but of many heads: not unrolled, as it is read once.
#pragma unroll 1
            for (int at = threadIdx.x; at < parts; at += THREADS) cp_async16(smem_addr(shared + at), from + at);
        } else {
            read_apart(a, seq, kv, shared);
        }
    }
#if CKV_FOLD
    const Vec4* of_head = (const Vec4*)(a.metrics + (u64)kv * CKV_METRIC);
    for (int at = threadIdx.x; at < TABLE_BYTES / 16; at += THREADS) cp_async16(smem_addr(kept_metric(shared) + at), of_head + at);
#endif
    cp_async_commit();
}

// Waits for them. All threads of the CTA.
CKV_FN void await_query() {
    cp_async_wait<0>();
    sync_threads();
}

// Eight channels from element `at` as numbers.
CKV_FN void query_elements(const CkvAttendArgs& a, const Vec4* shared, int at, float (&x)[8]) {
#if CKV_QUERY_LOW
    if (a.query_type == 2) {
        const Vec4 v = shared[at / 4], w = shared[at / 4 + 1];
        const u32 bits[8] = {v.x, v.y, v.z, v.w, w.x, w.y, w.z, w.w};
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = u32_as_float(bits[i]);
        return;
    }
#endif
    const Vec4 v = shared[at / 8];
    const u32 bits[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = a.query_type == 1 ? b_lo(bits[i]) : h_lo(bits[i]);
        x[2 * i + 1] = a.query_type == 1 ? b_hi(bits[i]) : h_hi(bits[i]);
    }
}

// One channel.
[[maybe_unused]] CKV_FN float query_element(const CkvAttendArgs& a, const Vec4* shared, int at) {
#if CKV_QUERY_LOW
    if (a.query_type == 2) return ((const float*)shared)[at];
#endif
    const u32 x = ((const u16*)shared)[at];
    return a.query_type == 1 ? b_lo(x) : h_lo(x);
}

// 2^exponent puts the largest magnitude into [4, 8); a zero or subnormal query keeps the least normal exponent.
CKV_FN i32 query_exponent(float most) {
    const i32 power = (i32)(float_as_u32(most) >> 23) - 127;
    return 2 - (power < -100 ? -100 : power);
}
[[maybe_unused]] CKV_FN float query_factor(float most) { return u32_as_float((u32)(127 + query_exponent(most)) << 23); }
#if CKV_FOLD
// What a head has beside its rotated q/S, whose halves are of 2^exponent q/S with an exponent of its own.
struct Fold {
    float ratio;            // from units of those halves' products to units of those of the query as it is: a power of two
    float shift;            // what the centre adds, in the latter
    float reach, constant;  // see FoldBound
};
// Octaves between the largest channels of q and of q/S, at most.
constexpr i32 FARTHEST = 60;

// Leaves the Fold of a query whose largest magnitude is `most` at `to`, if the lane `keeps` it. Whether q/S fits.
CKV_FN bool put_fold(const CkvAttendArgs& a, Vec4* to, float most, const FoldSums& sums, bool keeps) {
    const i32 apart = query_exponent(most) - query_exponent(sums.most);
    const double units = sums.product * (double)query_factor(most);
    // A variant without low halves has not read single queries.
    const bool fit = fits(sums, a.scale, units) && apart <= FARTHEST && -apart <= FARTHEST && (CKV_QUERY_LOW || a.query_type != 2);
    const FoldBound bound = fold_bound(sums, a.scale, fit);
    if (keeps) {
        *to = Vec4{(u32)(127 + (fit ? apart : 0)) << 23, fit ? float_as_u32((float)units) : 0u, float_as_u32(bound.reach), float_as_u32(bound.constant)};
    }
    return fit;
}

// That of head `head` of the group.
CKV_FN Fold fold_of(const Query& q, int head) {
    const Vec4 v = q.shared[2 * QUERY_STRIDE + head];
    return Fold{u32_as_float(v.x), u32_as_float(v.y), u32_as_float(v.z), u32_as_float(v.w)};
}
#endif

#if CKV_GROUPED
CKV_FN void prepare_grouped(const CkvAttendArgs& a, Vec4* given, Vec4* prepared);
#elif CKV_KEY == 3
CKV_FN void prepare_rotated(const CkvAttendArgs& a, Vec4* given, Vec4* prepared);
#elif CKV_KEY == 7
CKV_FN void fill_directions(const CkvAttendArgs& a, u32 kv_head, const Vec4* given, const Vec4* prepared);
#endif

template <class T> CKV_FN T least_of(T a, T b) { return a < b ? a : b; }

// Numbers of a head's query: what they are of is in Query.
struct HeadNumbers {
    float unit, reach, step;
};

// A lane's part of the queries that read_query copied, by column tile: halves, and the numbers of its column. Lanes of a warp alone.
CKV_FN void halve_query(const CkvAttendArgs& a, const Vec4* given, u32 (&highs)[NT][CHUNKS][4], u32 (&lows)[NT][CHUNKS][4], HeadNumbers (&numbers)[NT]) {
    const int c4 = lane() & 3, column = lane() >> 2;
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        const int h = PAIRED ? column & 3 : 8 * nt + column;
        const bool there = h < GROUP;
        float x[CHUNKS][8], most = 0.0f, squares[8];
#pragma unroll
        for (int i = 0; i < 8; i++) squares[i] = 0.0f;
#pragma unroll
        for (int j = 0; j < CHUNKS; j++) query_elements(a, given, (there ? h : 0) * D + 32 * j + 8 * c4, x[j]);
#pragma unroll
        for (int j = 0; j < CHUNKS; j++) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                x[j][i] = there ? x[j][i] : 0.0f;
                // A maximum would drop NaN; the norm takes it to the bound.
                most = fmaxf(most, fabsf(x[j][i]));
                squares[i] = fma_ru(x[j][i], x[j][i], squares[i]);
            }
        }
        float square = ((squares[0] + squares[1]) + (squares[2] + squares[3])) + ((squares[4] + squares[5]) + (squares[6] + squares[7]));
        // The four lanes of a column.
#pragma unroll
        for (int d = 1; d < 4; d <<= 1) {
            most = fmaxf(most, shfl_xor(most, d));
            square += shfl_xor(square, d);
        }
        const i32 exponent = query_exponent(most);
        const float up = u32_as_float((u32)(127 + exponent) << 23), down = u32_as_float((u32)(127 - exponent) << 23);
#pragma unroll
        for (int j = 0; j < CHUNKS; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float lo = x[j][2 * i] * up, hi = x[j][2 * i + 1] * up;
                if constexpr (BF16_QUERY) {
                    const u32 pair = b2_pack(lo, hi);
                    highs[nt][j][i] = pair;
                    lows[nt][j][i] = b2_pack(lo - b_lo(pair), hi - b_hi(pair));
                } else {
                    const u32 pair = h2_pack(lo, hi);
                    highs[nt][j][i] = pair;
                    lows[nt][j][i] = LOW_QUERY ? h2_pack(lo - h_lo(pair), hi - h_hi(pair)) : 0u;
                }
            }
        }
        numbers[nt].unit = a.scale * 1.44269504f * down;
        // A variant without low halves bounds nothing for single queries.
        const bool bounded = CKV_QUERY_LOW || a.query_type != 2;
        numbers[nt].reach = bounded ? mul_ru(fabsf(a.scale), sqrt_ru(square * 1.0001f + LOST_SQUARES)) : u32_as_float(0x7fc00000u);
        numbers[nt].step = mul_ru(fabsf(a.scale), down);
#if CKV_KEY == 7
        if (warp() == 0 && c4 == 0) ((float*)(given + GIVEN_BYTES / 16 + QUERY_STRIDE))[8 * nt + column] = up;
#endif
    }
}

// One warp: halves to shared memory.
CKV_FN void put_halves(Vec4* prepared, const u32 (&highs)[NT][CHUNKS][4], const u32 (&lows)[NT][CHUNKS][4]) {
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
#pragma unroll
        for (int j = 0; j < CHUNKS; j++) {
            const u32(&x)[4] = highs[nt][j];
            const u32(&y)[4] = lows[nt][j];
            const int at = (nt * CHUNKS + j) * 32 + (int)lane();
            prepared[at] = Vec4{x[0], x[1], x[2], x[3]};
            if constexpr (LOW_QUERY) prepared[NT * CHUNKS * 32 + at] = Vec4{y[0], y[1], y[2], y[3]};
        }
    }
}

// Prepares what read_query copied. All threads of the CTA: with QUERY_SHARED the result lies behind what was copied, with LEAN in its place. `numbers`: memory for those of the group,
// which nobody else has until this returns, where the warps do not all make their own.
CKV_FN void prepare_query(const CkvAttendArgs& a, [[maybe_unused]] u32 kv_head, Vec4* shared, [[maybe_unused]] HeadNumbers* numbers, Query& q) {
    const int c4 = lane() & 3, first = PAIRED ? 2 * (c4 & 1) : 2 * c4;
    // The certificate of head h is kept by lanes h, h + HEADS, ...
    const int h = lane() % HEADS;
    Vec4* prepared = shared + GIVEN_BYTES / 16;
    q.shared = prepared;
#if CKV_KEY == 3
    // One warp makes the queries as they are, while others rotate them: each waits for its instructions, of which all is made once.
    if (warp() == WARPS - 1) {
        u32 highs[NT][CHUNKS][4], lows[NT][CHUNKS][4];
        HeadNumbers own[NT];
        halve_query(a, shared, highs, lows, own);
        put_halves(prepared, highs, lows);
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            const int head = 8 * nt + (int)(lane() >> 2);
            if (c4 == 0 && head < GROUP) numbers[head] = own[nt];
        }
    }
#if CKV_GROUPED
    prepare_grouped(a, shared, prepared);
#else
    prepare_rotated(a, shared, prepared);
#endif
    sync_threads();
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
#pragma unroll
        for (int i = 0; i < 2; i++) q.unit[nt][i] = numbers[least_of(8 * nt + first + i, GROUP - 1)].unit;
    }
    q.reach = numbers[least_of(h, GROUP - 1)].reach, q.step = numbers[least_of(h, GROUP - 1)].step;
#else
    u32 highs[NT][CHUNKS][4], lows[NT][CHUNKS][4];
    HeadNumbers own[NT];
    halve_query(a, shared, highs, lows, own);
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        q.unit[nt][0] = shfl(own[nt].unit, 4 * first);
        q.unit[nt][1] = shfl(own[nt].unit, 4 * first + 4);
    }
    // Column h of the query lies in lane 4 (h % 8).
    q.reach = shfl(own[0].reach, 4 * (h & 7));
    q.step = shfl(own[0].step, 4 * (h & 7));
    if constexpr (NT == 2) {
        const float r = shfl(own[NT - 1].reach, 4 * (h & 7)), t = shfl(own[NT - 1].step, 4 * (h & 7));
        if (h >= 8) q.reach = r, q.step = t;
    }
    if constexpr (LEAN && QUERIES == 1) sync_threads();
    if constexpr (QUERY_SHARED) {
        // All warps have the same.
        if (warp() == 0) put_halves(prepared, highs, lows);
        sync_threads();
    } else {
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
#pragma unroll
            for (int j = 0; j < CHUNKS; j++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    q.high[nt][j][i] = highs[nt][j][i];
                    if constexpr (LOW_QUERY) q.low[nt][j][i] = lows[nt][j][i];
                }
            }
        }
    }
#endif
#if CKV_KEY == 7
    fill_directions(a, kv_head, shared, prepared);
    sync_threads();
#endif
}

// Asks for the queries of a KV head of a sequence, or of the next sequence's first; if there is one, and its heads lie together. And for what its keys are coded by.
CKV_FN void prefetch_query(const CkvAttendArgs& a, u32 seq, u32 kv) {
    // Of a draft, its first token's.
    const u32 bytes = OF_TOKEN * D * (a.query_type == 2 ? 4 : 2);
    if (kv == a.kv_heads) seq++, kv = 0;
#if CKV_METRIC > 0
    constexpr u32 OF_KEYS = FOLDED ? TABLE_BYTES : 4 * CKV_METRIC;
    for (u32 at = threadIdx.x * 128; at < OF_KEYS && seq < a.seqs; at += THREADS * 128) prefetch_l2((const u8*)(a.metrics + (u64)kv * CKV_METRIC) + at);
#endif
    if (seq < a.seqs && a.query_strides.head == D && threadIdx.x * 128 < bytes) prefetch_l2(query_row(a, seq, kv, 0) + threadIdx.x * 128);
}

// The register of a paired column from its two halves: the high one in high columns, the low one in low columns.
CKV_FN u32 by_column(u32 high, u32 low, u32 low_mask) { return (high & ~low_mask) | (low & low_mask); }

// q w for a register of scales w, as high and low halves: the product rounded, and what that lost plus the low part.
// Paired columns get the one of the two that is theirs.
CKV_FN u32 times_high(u32 high, u32 w) { return h2_mul(high, w); }
CKV_FN u32 times_low(u32 high, u32 low, u32 w) { return h2_fma(low, w, h2_fma(high, w, h2_mul(high, w) ^ 0x80008000u)); }

// A pair of halves as a pair of bf16, whose first does not depend on the second half.
CKV_FN void pair_of_bf16(u32 high, u32 low, u32& row_high, u32& row_low) {
    const float x = h_lo(high), y = h_hi(high);
    row_high = b2_pack(x, y);
    row_low = b2_pack((x - b_lo(row_high)) + h_lo(low), (y - b_hi(row_high)) + h_hi(low));
}

// The same for the query, whose low half may not exist.
CKV_FN u32 query_times(u32 high, u32 low, u32 w, u32 product, u32 mask) {
    // In high columns the mask leaves -0 and no low part: the sum is the product itself.
    const u32 rest = h2_fma(high, w, (product & mask) ^ 0x80008000u);
#if CKV_QUERY_LOW
    return h2_fma(low & mask, w, rest);
#else
    return rest;
#endif
}

// The query's registers of chunk j, column tile nt; those of the rotated query, if TURNED.
template <bool TURNED = false>
CKV_FN void query_chunk(const Query& q, int nt, int j, u32 (&high)[4], u32 (&low)[4]) {
    if constexpr (QUERY_SHARED) {
        const Vec4* at = q.shared + (TURNED ? QUERY_STRIDE : 0) + (nt * CHUNKS + j) * 32 + lane();
        const Vec4 v = *at, w = LOW_QUERY ? at[NT * CHUNKS * 32] : Vec4{0, 0, 0, 0};
        high[0] = v.x, high[1] = v.y, high[2] = v.z, high[3] = v.w;
        low[0] = w.x, low[1] = w.y, low[2] = w.z, low[3] = w.w;
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            high[i] = q.high[nt][j][i];
            low[i] = LOW_QUERY ? q.low[nt][j][i] : 0u;
        }
    }
}

// The same for keys that are originals: in the type of the cache. From halves, which miss less (2^-22) than a pair of bf16 does.
CKV_FN void query_rows(const Query& q, int nt, int j, u32 (&high)[4], u32 (&low)[4]) {
    query_chunk(q, nt, j, high, low);
    if constexpr (CKV_STORE == 1 && !BF16_QUERY) {
#pragma unroll
        for (int i = 0; i < 4; i++) pair_of_bf16(high[i], low[i], high[i], low[i]);
    }
}
