// Partial results: from a warp's registers to shared memory, from the warps of a CTA to one, from CTAs to the output.
//
// A partial holds [GROUP][D] outputs relative to 2^m, then SCALARS numbers per head. All sums run in a fixed order, so two
// runs give the same bits.
#pragma once

// Places of a head's scalars.
enum { AT_M, AT_L, AT_G, AT_GR, AT_H, AT_V, AT_G_ROWS, AT_GR_ROWS, AT_RADIUS, AT_NORM, AT_CHAIN, AT_FLAGS };

// Writes this warp's state to `to`. `chain`: products in its longest sum of values.
CKV_FN void store_partial(const State& st, Sums& sums, float chain, u32 flags, float* to) {
    const int r = lane() >> 2, c4 = lane() & 3;
    join_sums(st, sums);
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        // Heads of this lane's columns; in paired columns the low ones come from the other half of the lanes.
        const int first = PAIRED ? 2 * (c4 & 1) : 8 * nt + 2 * c4;
        const bool writes = !PAIRED || c4 < 2;
#if CKV_VALUE == 1
        float offset[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            offset[i] = st.offset[nt][i];
            if constexpr (PAIRED) offset[i] += shfl_xor(offset[i], 2);
        }
#endif
#pragma unroll
        for (int c = 0; c < 2 * CHUNKS; c++) {
            float o[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                o[i] = st.o[nt][c][i];
                if constexpr (PAIRED) o[i] += shfl_xor(o[i], 2);
            }
#if CKV_VALUE == 1
            constexpr int WIDTH = CKV_VALUE_GROUP;
            const int g = 16 * c / WIDTH;
            const float z0 = shfl(g < 8 ? offset[0] : offset[2], (g & 7) * 4 + c4);
            const float z1 = shfl(g < 8 ? offset[1] : offset[3], (g & 7) * 4 + c4);
            o[0] += z0, o[1] += z1, o[2] += z0, o[3] += z1;
#endif
            const int channel = 16 * c + r;
            if (writes && first < GROUP) to[first * D + channel] = o[0], to[first * D + channel + 8] = o[2];
            if (writes && first + 1 < GROUP) to[(first + 1) * D + channel] = o[1], to[(first + 1) * D + channel + 8] = o[3];
        }
        float l0 = st.l[nt][0], l1 = st.l[nt][1];
        if constexpr (PAIRED) l0 += shfl_xor(l0, 2), l1 += shfl_xor(l1, 2);
        const int head = PAIRED ? r : 8 * nt + r;
        if (c4 == ((r & 7) >> 1) && head < GROUP && (!PAIRED || r < 4)) to[GROUP * D + head * SCALARS + AT_L] = r & 1 ? l1 : l0;
    }
    if ((int)lane() < GROUP) {
        float* s = to + GROUP * D + lane() * SCALARS;
        s[AT_M] = sums.m;
        s[AT_G] = sums.g, s[AT_GR] = sums.gr, s[AT_H] = sums.h, s[AT_V] = sums.v;
        s[AT_G_ROWS] = sums.g_rows, s[AT_GR_ROWS] = sums.gr_rows;
        s[AT_RADIUS] = sums.radius, s[AT_NORM] = sums.value_norm, s[AT_CHAIN] = chain;
        s[AT_FLAGS] = u32_as_float(flags);
    }
}

// Shared memory of a merge.
struct Merge {
    float* factors;  // [GROUP][count]: 2^(m_i - m)
    float* scalars;  // [GROUP][SCALARS] merged
    float* norms;    // [GROUP][D / 32][2]
    u32* word;
};

// Factors and merged scalars of `count` partials at `base`: a warp per head, a partial per lane.
CKV_FN void merge_scalars(const float* base, int count, const Merge& to) {
    for (int h = warp(); h < GROUP; h += WARPS) {
        const float* first = base + GROUP * D + h * SCALARS;
        float m = EMPTY;
        for (int i = lane(); i < count; i += 32) m = fmaxf(m, first[i * PARTIAL_STRIDE + AT_M]);
        m = warp_max(m);
        float s[SCALARS];
#pragma unroll
        for (int k = 0; k < SCALARS; k++) s[k] = 0.0f;
        u32 flags = 0;
        for (int i = lane(); i < count; i += 32) {
            const float* p = first + i * PARTIAL_STRIDE;
            const float f = power_of_two(p[AT_M] - m);
            to.factors[h * count + i] = f;
#pragma unroll
            for (int k = AT_L; k <= AT_GR_ROWS; k++) s[k] += f * p[k];
#pragma unroll
            for (int k = AT_RADIUS; k <= AT_CHAIN; k++) s[k] = most(p[k], s[k]);
            flags |= float_as_u32(p[AT_FLAGS]);
        }
#pragma unroll
        for (int d = 16; d > 0; d >>= 1) {
#pragma unroll
            for (int k = AT_L; k <= AT_GR_ROWS; k++) s[k] += shfl_xor(s[k], d);
#pragma unroll
            for (int k = AT_RADIUS; k <= AT_CHAIN; k++) s[k] = most(shfl_xor(s[k], d), s[k]);
            flags |= shfl_xor(flags, d);
        }
        if (lane() == 0) {
            float* t = to.scalars + h * SCALARS;
            t[AT_M] = m;
#pragma unroll
            for (int k = AT_L; k <= AT_CHAIN; k++) t[k] = s[k];
            t[AT_CHAIN] += (float)count;
            t[AT_FLAGS] = u32_as_float(flags);
        }
    }
    sync_threads();
}

// Output element `at` ([head][channel]) of `count` partials.
CKV_FN float merged_output(const float* base, int at, int count, const float* factors) {
    float x = 0.0f;
#pragma unroll 8
    for (int i = 0; i < count; i++) x = fma_rn(base[i * PARTIAL_STRIDE + at], factors[i], x);
    return x;
}

// `count` partials at `base` into one at `to`; all threads of the CTA.
CKV_FN void merge_partials(const float* base, int count, const Merge& m, float* to) {
    merge_scalars(base, count, m);
    for (int at = threadIdx.x; at < PARTIAL; at += THREADS) {
        to[at] = at < GROUP * D ? merged_output(base, at, count, m.factors + at / D * count) : m.scalars[at - GROUP * D];
    }
}

CKV_FN void store_output(const CkvAttendArgs& a, u64 at, float x) {
    if (a.out_type == 2) {
        ((float*)a.out)[at] = x;
    } else if (a.out_type == 1) {
        ((u16*)a.out)[at] = (u16)b2_pack(x, 0.0f);
    } else {
        ((u16*)a.out)[at] = h_rn(x);
    }
}

// `count` partials at `base` to the outputs and certificates of (sequence, KV head) `head`. All threads of the CTA.
CKV_FN void finish_head(const CkvAttendArgs& a, const float* base, int count, const Merge& merge, u64 head, u32 tokens,
                        const float* centre) {
    constexpr int SLICES = D / 32;
    if (threadIdx.x == 0) *merge.word = 0;
    merge_scalars(base, count, merge);
    for (int at = threadIdx.x; at < GROUP * D; at += THREADS) {
        const int h = at / D;
        const float x = merged_output(base, at, count, merge.factors + h * count) / merge.scalars[h * SCALARS + AT_L];
        const float away = x - (centre ? ldg(centre + at % D) : 0.0f);
        store_output(a, head * GROUP * D + at, x);
        const float norm = warp_sum(x * x), radius = warp_sum(away * away);
        if (lane() == 0) merge.norms[2 * (at / 32)] = norm, merge.norms[2 * (at / 32) + 1] = radius;
    }
    sync_threads();
    if (threadIdx.x < GROUP) {
        const int h = threadIdx.x;
        float norm = 0.0f, radius = 0.0f;
#pragma unroll
        for (int i = 0; i < SLICES; i++) {
            norm += merge.norms[2 * (h * SLICES + i)], radius += merge.norms[2 * (h * SLICES + i) + 1];
        }
        const float* s = merge.scalars + h * SCALARS;
        CkvCertificate c = certify(a, s[AT_M], s[AT_L], s[AT_G], s[AT_GR], s[AT_H], s[AT_V], s[AT_G_ROWS], s[AT_GR_ROWS],
                                   s[AT_RADIUS], s[AT_NORM], s[AT_CHAIN], sqrt_rn(norm), sqrt_ru(radius * UP), tokens);
        if (float_as_u32(s[AT_FLAGS])) c.status = 0;
        if (a.certificates) a.certificates[head * GROUP + h] = c;
        if (c.status == 0) atomic_or(merge.word, 1);
    }
    if (a.failures) {
        sync_threads();
        if (threadIdx.x == 0 && *merge.word) a.failures[1 + atomic_add(a.failures, 1)] = (u32)head;
    }
}
