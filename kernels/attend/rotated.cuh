// The query as TurboQuant's keys meet it, math.md (2.17b): rotated, and before that divided by the balance scale of a calibration, (2.19a). Beside the query as it is, in pairs of halves.
#pragma once

#if CKV_KEY == 3 && !CKV_GROUPED
// All threads of the CTA: a warp takes a head at a time, channel 32 j + lane of it in x[j]. Single precision, whose rounding is in the bound of the logits (code_bound).
CKV_FN void prepare_rotated(const CkvAttendArgs& a, Vec4* given, Vec4* prepared) {
#pragma unroll 1
    for (int column = (int)warp(); column < (PAIRED ? 4 : 8 * NT); column += WARPS) {
        float x[CHUNKS], most = 0.0f;
#if CKV_FOLD
        const Metric metric = metric_of((const float*)kept_metric(given), 0);
        FoldSums sums;
        clear(sums);
#endif
#pragma unroll
        for (int j = 0; j < CHUNKS; j++) {
            const int channel = 32 * j + (int)lane();
            x[j] = column < GROUP ? query_element(a, given, column * D + channel) : 0.0f;
            most = fmaxf(most, fabsf(x[j]));
#if CKV_FOLD
            fold_channel(metric, channel, x[j], sums);
#endif
        }
        most = warp_max(most);
#if CKV_FOLD
        join<32>(sums);
        const bool fit = put_fold(a, prepared + 2 * QUERY_STRIDE + column, most, sums, lane() == 0);
        const float up = fit ? query_factor(sums.most) : 1.0f;
#pragma unroll
        for (int j = 0; j < CHUNKS; j++) x[j] = fit ? x[j] : 0.0f;
#else
        const float up = query_factor(most);
#endif
        turn_row(x);
        u32* to = (u32*)(prepared + QUERY_STRIDE + column / 8 * CHUNKS * 32 + column % 8 * 4 + lane() / 8) + lane() % 8 / 2;
#pragma unroll
        for (int j = 0; j < CHUNKS; j++, to += 32 * 4) {
            // Of neighbours the even one has both.
            const float own = x[j] * up, next = shfl_xor(own, 1);
            if (lane() & 1) continue;
            const u32 high = h2_pack(own, next), low = h2_pack(own - h_lo(high), next - h_hi(high));
            to[0] = high, to[NT * CHUNKS * 32 * 4] = low;
            // Low columns have what the high ones have.
            if constexpr (PAIRED) to[4 * 4 * 4] = high, to[NT * CHUNKS * 32 * 4 + 4 * 4 * 4] = low;
        }
    }
}
#endif
