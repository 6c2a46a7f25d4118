// Partial results: from a warp's registers to shared memory, from the warps of a CTA to one, from CTAs to the output.
//
// What a partial is, says partial.cuh. All sums run in a fixed order, so two runs give the same bits.
#pragma once

// Sums of a lane's outputs for rows r and r + 8 of its two columns, from `st.o`, with the offsets of their group of channels.
//
// Paired: what a head's low column holds belongs to its high one. Each lane of the two gives the other the rows that it does not keep, so
// that all lanes write: lanes of high columns rows r, those of low ones rows r + 8.
CKV_FN void store_outputs_paired(const State& st, float* to) {
    const int r = lane() >> 2, c4 = lane() & 3;
    const bool low = c4 >= 2;
    // Two heads' rows lie in the same banks: odd pairs of columns write the second of two chunks first.
    const bool swap = c4 & 1;
    const int first = 2 * (c4 & 1);
    float x[2 * CHUNKS][2];
#pragma unroll
    for (int c = 0; c < 2 * CHUNKS; c++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float upper = st.o[0][c][i], lower = st.o[0][c][i + 2];
            x[c][i] = (low ? lower : upper) + shfl_xor(low ? upper : lower, 2);
        }
    }
#if CKV_VALUE == 1
    constexpr int WIDTH = CKV_VALUE_GROUP;
    float offset[4];
#pragma unroll
    for (int i = 0; i < 4; i++) offset[i] = st.offset[0][i] + shfl_xor(st.offset[0][i], 2);
    float z[2] = {0.0f, 0.0f};
#pragma unroll
    for (int c = 0; c < 2 * CHUNKS; c++) {
        const int g = 16 * c / WIDTH;
        if (16 * c % WIDTH == 0) {
#pragma unroll
            for (int i = 0; i < 2; i++) z[i] = shfl(g < 8 ? offset[i] : offset[i + 2], (g & 7) * 4 + c4);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) x[c][i] += z[i];
    }
#endif
#pragma unroll
    for (int c = 0; c < 2 * CHUNKS; c++) {
        const int at = 16 * (c ^ (swap ? 1 : 0)) + r + (low ? 8 : 0);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float one = x[c][i], other = x[c ^ 1][i];
            if (first + i < GROUP) to[(first + i) * D + at] = swap ? other : one;
        }
    }
}

// The same of more than four heads: one column each.
CKV_FN void store_outputs(const State& st, int nt, float* to) {
    const int r = lane() >> 2, first = 8 * nt + 2 * (lane() & 3);
#pragma unroll
    for (int c = 0; c < 2 * CHUNKS; c++) {
        float o[4];
#pragma unroll
        for (int i = 0; i < 4; i++) o[i] = st.o[nt][c][i];
#if CKV_VALUE == 1
        constexpr int WIDTH = CKV_VALUE_GROUP;
        const int g = 16 * c / WIDTH;
        const float z0 = shfl(g < 8 ? st.offset[nt][0] : st.offset[nt][2], (g & 7) * 4 + (int)(lane() & 3));
        const float z1 = shfl(g < 8 ? st.offset[nt][1] : st.offset[nt][3], (g & 7) * 4 + (int)(lane() & 3));
        o[0] += z0, o[1] += z1, o[2] += z0, o[3] += z1;
#endif
        const int channel = 16 * c + r;
        if (first < GROUP) to[first * D + channel] = o[0], to[first * D + channel + 8] = o[2];
        if (first + 1 < GROUP) to[(first + 1) * D + channel] = o[1], to[(first + 1) * D + channel + 8] = o[3];
    }
}

// Writes this warp's state to `to`. `chain`: products in its longest sum of values.
CKV_FN void store_partial(const State& st, Sums& sums, float chain, u32 flags, float* to) {
    const int r = lane() >> 2, c4 = lane() & 3;
    join_sums(st, sums);
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        if constexpr (PAIRED) store_outputs_paired(st, to);
        else store_outputs(st, nt, to);
        float l0 = st.l[nt][0], l1 = st.l[nt][1];
        if constexpr (PAIRED) l0 += shfl_xor(l0, 2), l1 += shfl_xor(l1, 2);
        const int head = PAIRED ? r : 8 * nt + r;
        if (c4 == ((r & 7) >> 1) && head < GROUP && (!PAIRED || r < 4)) to[GROUP * D + head * SCALARS + AT_L] = r & 1 ? l1 : l0;
    }
    if ((int)lane() < GROUP) {
        float* s = to + GROUP * D + lane() * SCALARS;
        s[AT_M] = sums.m;
        s[AT_G] = sums.g, s[AT_GR] = sums.gr, s[AT_H] = sums.h, s[AT_V] = sums.v;
        s[AT_G_ROWS] = sums.g_rows, s[AT_GR_ROWS] = sums.gr_rows, s[AT_GROSS] = CORRECTS ? sums.gross : 0.0f;
        s[AT_RADIUS] = sums.radius, s[AT_NORM] = sums.value_norm, s[AT_CHAIN] = chain;
        s[AT_FLAGS] = u32_as_float(flags);
    }
}

// Shared memory of a merge.
struct Merge {
    float* scalars;  // [GROUP][SCALARS] merged
    float* norms;    // [GROUP][SLICES][NORMS], squared
    u32* word;
};

// VECTOR floats in one load.
CKV_FN void read_floats(const float* at, float (&x)[VECTOR]) {
    if constexpr (VECTOR == 4) {
        const Vec4 v = *(const Vec4*)at;
        x[0] = u32_as_float(v.x), x[1] = u32_as_float(v.y), x[2] = u32_as_float(v.z), x[3] = u32_as_float(v.w);
    } else if constexpr (VECTOR == 2) {
        const Vec2 v = *(const Vec2*)at;
        x[0] = u32_as_float(v.x), x[1] = u32_as_float(v.y);
    } else {
        x[0] = *at;
    }
}

// Partial results that are merged: `count`, `stride` floats apart, and what a pass has kept that they correct, or null.
struct Parts {
    const float* base;
    int count, stride;
    const float* kept;

    __device__ __forceinline__ int all() const { return CORRECTS && kept ? count + 1 : count; }
    __device__ __forceinline__ const float* at(int i) const { return !CORRECTS || i < count ? base + i * stride : kept; }
};

// One slice of one head's output out of partials, relative to the largest exponent; `l`: the sum of weights. A warp:
// a partial's exponent and sum per lane, VECTOR channels per lane. The first AHEAD outputs, which do not depend on the exponents,
// are read at once.
CKV_FN void merge_slice(const Parts& parts, int head, int slice, float (&x)[VECTOR], float& l) {
    constexpr int AHEAD = 8;
    const int outputs = head * D + slice * 32 * VECTOR + (int)lane() * VECTOR, scalars = GROUP * D + head * SCALARS, count = parts.all();
    float p[AHEAD][VECTOR];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
#pragma unroll
        for (int v = 0; v < VECTOR; v++) p[i][v] = 0.0f;
        if (i < count) read_floats(parts.at(i) + outputs, p[i]);
    }
    // The lane's first one is read at once, too.
    const bool any_own = !TIGHT && (int)lane() < count;
    const float own_m = any_own ? parts.at(lane())[scalars + AT_M] : EMPTY, own_l = any_own ? parts.at(lane())[scalars + AT_L] : 0.0f;
    float m = own_m;
#pragma unroll 1
    for (int i = lane() + (TIGHT ? 0 : 32); i < count; i += 32) m = fmaxf(m, parts.at(i)[scalars + AT_M]);
    m = warp_max(m);
    l = 0.0f;
#pragma unroll
    for (int v = 0; v < VECTOR; v++) x[v] = 0.0f;
#pragma unroll 1
    for (int first = 0; first < count; first += 32) {
        const int i = first + (int)lane();
        float one_m = own_m, one_l = own_l;
        if ((TIGHT || first) && i < count) one_m = parts.at(i)[scalars + AT_M], one_l = parts.at(i)[scalars + AT_L];
        const float f = i < count ? power_of_two(one_m - m) : 0.0f;
        if (i < count) l = fma_rn(f, one_l, l);
        if (first == 0) {
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                const float g = shfl(f, u);
#pragma unroll
                for (int v = 0; v < VECTOR; v++) x[v] = fma_rn(p[u][v], g, x[v]);
            }
        }
#pragma unroll 4
        for (int u = first ? 0 : AHEAD; u < 32 && first + u < count; u++) {
            float one[VECTOR];
            read_floats(parts.at(first + u) + outputs, one);
            const float g = shfl(f, u);
#pragma unroll
            for (int v = 0; v < VECTOR; v++) x[v] = fma_rn(one[v], g, x[v]);
        }
    }
    l = warp_sum(l);
}

// The scalars of one head out of partials; every lane gets them. A warp. AT_CHAIN and AT_GROSS of what is corrected count what was done
// to all of it: the longest chain of the correction for what it summed, and the one of the pass for what that had.
CKV_FN void merge_scalars(const Parts& parts, int head, float (&s)[SCALARS]) {
    const int first = GROUP * D + head * SCALARS, count = parts.all();
    // The lane's first ones are read at once, as another CTA's come from far; where registers are scarce, when they are needed.
    float p[SCALARS];
#pragma unroll
    for (int k = 0; k < SCALARS; k++) s[k] = 0.0f, p[k] = !TIGHT && (int)lane() < count ? parts.at(lane())[first + k] : EMPTY;
    float m = p[AT_M];
    for (int i = lane() + (TIGHT ? 0 : 32); i < count; i += 32) m = fmaxf(m, parts.at(i)[first + AT_M]);
    m = warp_max(m);
    u32 flags = 0;
    for (int i = lane(); i < count; i += 32) {
        if (TIGHT || i >= 32) {
#pragma unroll
            for (int k = 0; k < SCALARS; k++) p[k] = parts.at(i)[first + k];
        }
        const float apart = p[AT_M] - m;
        s[AT_L] = fma_rn(power_of_two(apart), p[AT_L], s[AT_L]);
#pragma unroll
        for (int k = AT_G; k <= AT_GROSS; k++) s[k] += scaled_up(p[k], apart);
#pragma unroll
        for (int k = AT_RADIUS; k < AT_CHAIN; k++) s[k] = most(p[k], s[k]);
        if (!CORRECTS || i < parts.count) s[AT_CHAIN] = most(p[AT_CHAIN], s[AT_CHAIN]);
        flags |= float_as_u32(p[AT_FLAGS]);
    }
    // Not unrolled: this runs once a head, and its instructions have to be fetched.
#pragma unroll 1
    for (int d = 16; d > 0; d >>= 1) {
#pragma unroll
        for (int k = AT_L; k <= AT_GROSS; k++) s[k] += shfl_xor(s[k], d);
#pragma unroll
        for (int k = AT_RADIUS; k <= AT_CHAIN; k++) s[k] = most(shfl_xor(s[k], d), s[k]);
        flags |= shfl_xor(flags, d);
    }
    s[AT_M] = m;
    s[AT_CHAIN] += (float)count;
    if (CORRECTS && parts.kept) {
        const float* p = parts.kept + first;
        const float before = p[AT_L] * power_of_two(p[AT_M] - m), gross = s[AT_GROSS] + before;
        s[AT_CHAIN] = (s[AT_CHAIN] * s[AT_GROSS] + (p[AT_CHAIN] + (float)count) * before) * rcp(gross) * UP;
        s[AT_GROSS] = gross * UP;
    }
    s[AT_FLAGS] = u32_as_float(flags);
}

// Writes element `at` in the outputs' type, if it is to be written. Returns what rounding takes from it: exact, but where the output does not fit.
CKV_FN float store_output(const CkvAttendArgs& a, u64 at, float x, bool own) {
    if (a.out_type == 2) {
        if (!DRAFTED || own) ((float*)a.out)[at] = x;
        return 0.0f;
    }
    const u32 bits = a.out_type == 1 ? b2_pack(x, 0.0f) & 0xffffu : h_rn(x);
    if (!DRAFTED || own) ((u16*)a.out)[at] = (u16)bits;
    return x - (a.out_type == 1 ? b_lo(bits) : h_lo(bits));
}

// Partials into one at `to` or, without `to`, to the outputs of the head at hand, with merged scalars and
// norms left in `merge` for certify_head. All warps of the CTA, a slice or a head's scalars each at a time.
CKV_APART void merge_partials(const CkvAttendArgs& a, const Parts& parts, float* to, const Merge& merge, const Segment& seg, const float* centre) {
    const u64 head = seg.head;
#pragma unroll 1
    for (int item = warp(); item < GROUP * (SLICES + 1); item += WARPS) {
        if (item < GROUP * SLICES) {
            const int h = item / SLICES, channel = item % SLICES * 32 * VECTOR + (int)lane() * VECTOR;
            float x[VECTOR], middle[VECTOR], l;
            // Asked for before what it is subtracted from is known.
#pragma unroll
            for (int v = 0; v < VECTOR; v++) middle[v] = !TIGHT && !to && centre ? ldg(centre + channel + v) : 0.0f;
            merge_slice(parts, h, item % SLICES, x, l);
            if (to) {
                float* at = to + h * D + channel;
#pragma unroll
                for (int v = 0; v < VECTOR; v++) at[v] = x[v];
                continue;
            }
            if (!CORRECTS && !LEVELLED && a.kept) {
                float* at = a.kept + head * PARTIAL_STRIDE + h * D + channel;
#pragma unroll
                for (int v = 0; v < VECTOR; v++) at[v] = x[v];
            }
#if CKV_VALUE == 2
            if constexpr (TURN_MERGED) turn_output(x);
#endif
            if constexpr (LEVELLED) {
                leave_outputs(a, head, h, channel, x);
                continue;
            }
            float norm = 0.0f, radius = 0.0f, lost = 0.0f;
            const float inverse = 1.0f / l;
            bool own;
            const u64 row = own_row(a, a.out_strides, seg.seq, seg.kv, h, own);
#pragma unroll
            for (int v = 0; v < VECTOR; v++) {
                x[v] *= inverse;
                const float away = x[v] - (TIGHT && centre ? ldg(centre + channel + v) : middle[v]);
                norm = fma_rn(x[v], x[v], norm), radius = fma_rn(away, away, radius);
                const float off = store_output(a, row + channel + v, x[v], own);
                lost = fma_ru(off, off, lost);
            }
            norm = warp_sum(norm), radius = warp_sum(radius);
            if (a.out_type != 2) lost = warp_sum(lost);
            float* norms = merge.norms + NORMS * item;
            if (lane() == 0) norms[0] = norm, norms[1] = radius, norms[2] = lost;
        } else {
            const int h = item - GROUP * SLICES;
            float s[SCALARS];
            merge_scalars(parts, h, s);
            float* at = to ? to + GROUP * D + h * SCALARS : merge.scalars + h * SCALARS;
            float* keep = !CORRECTS && !LEVELLED && !to && a.kept ? a.kept + head * PARTIAL_STRIDE + GROUP * D + h * SCALARS : at;
            if (lane() == 0) {
#pragma unroll
                for (int k = 0; k < SCALARS; k++) at[k] = keep[k] = s[k];
            }
        }
    }
}

// Certificates of the heads whose outputs were just written. All threads of the CTA.
CKV_APART void certify_head(const CkvAttendArgs& a, const Merge& merge, const Segment& seg) {
    const u64 head = seg.head;
    if constexpr (LEVELLED) {
        if (threadIdx.x < GROUP) leave_scalars(a, head, threadIdx.x, merge.scalars + threadIdx.x * SCALARS, seg.tokens);
        return;
    }
    bool failed = false;
    if (threadIdx.x < GROUP) {
        const int h = threadIdx.x;
        float norm = 0.0f, radius = 0.0f, lost = 0.0f;
#pragma unroll
        for (int i = 0; i < SLICES; i++) {
            const float* norms = merge.norms + NORMS * (h * SLICES + i);
            norm += norms[0], radius += norms[1], lost += norms[2];
        }
        const float* s = merge.scalars + h * SCALARS;
        // A correction takes away and adds again.
        const u32 seen = seen_tokens(a, CORRECTS ? ldg(a.lens + seg.row) : seg.tokens), tokens = CORRECTS ? seen + 2 * seg.tokens : seen;
        CkvCertificate c = certify(a, s[AT_M], s[AT_L], CORRECTS ? s[AT_GROSS] : s[AT_L], s[AT_G], s[AT_GR], s[AT_H], s[AT_V], s[AT_G_ROWS], s[AT_GR_ROWS],
                                   s[AT_RADIUS], s[AT_NORM], s[AT_CHAIN] + MERGED_CHAIN, sqrt_rn(norm), sqrt_ru(radius * UP + LOST_SQUARES), sqrt_ru(lost * UP), tokens,
                                   limit_of(a, query_head(seg.kv, h)));
        if (float_as_u32(s[AT_FLAGS])) c.status = 0;
        if (CORRECTS) c.refined_keys = a.picked[head].keys, c.refined_values = a.picked[head].values;
        if (a.certificates) a.certificates[head * GROUP + h] = c;
        failed = c.status == 0;
#if CKV_KEY_REFINE > 0 && !CKV_CORRECT
        if (a.demands && !a.refine_all && learns(a, seg.seq, h)) learn(*demand_of(a, seg, h), c);
#endif
    }
    if (a.failures && threadIdx.x < 32) {
        if (any(failed) && threadIdx.x == 0) a.failures[1 + atomic_add(a.failures, 1)] = (u32)head;
    }
}
