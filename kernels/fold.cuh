// Queries as keys of a calibration meet them, math.md (2.19a): divided by the balance scale, and what the key centre adds to every logit. Twin of folded.rs.
#pragma once

#if CKV_FOLD
// Centre and balance scale of a head's keys, by channel, in memory of any kind.
struct Metric {
    const float* centre;
    const float* balance;
};
CKV_FN Metric metric_of(const float* metrics, u64 head) { return Metric{metrics + head * CKV_METRIC, metrics + head * CKV_METRIC + D}; }

// What is gathered of the channels of one query.
struct FoldSums {
    float most, square;     // of q/S: its largest magnitude, and its squared norm rounded up
    double product, terms;  // q.c, and the sum of its terms' magnitudes
};
CKV_FN void clear(FoldSums& s) {
    s.most = s.square = 0.0f;
    s.product = s.terms = 0.0;
}

// Takes a channel of a query, which becomes that of q/S.
CKV_FN void fold_channel(const Metric& metric, int channel, float& x, FoldSums& s) {
    const double term = (double)x * (double)metric.centre[channel];
    s.product += term, s.terms += term < 0.0 ? -term : term;
    x = x / metric.balance[channel];
    // A maximum would drop NaN; the norm takes it to the bound.
    s.most = fmaxf(s.most, fabsf(x));
    s.square = fma_ru(x, x, s.square);
}

// Takes channels first .. first + 7.
CKV_FN void fold(const Metric& metric, int first, float (&x)[8], FoldSums& s) {
#pragma unroll
    for (int i = 0; i < 8; i++) fold_channel(metric, first + i, x[i], s);
}

// The lanes that share a query: four, or a warp.
template <int LANES = 4> CKV_FN void join(FoldSums& s) {
#pragma unroll
    for (int d = 1; d < LANES; d <<= 1) {
        s.most = fmaxf(s.most, shfl_xor(s.most, d));
        s.square += shfl_xor(s.square, d);
        s.product += shfl_xor(s.product, d), s.terms += shfl_xor(s.terms, d);
    }
}

// Base-2 logits end there on the CPU, too (slack.rs).
constexpr double CLAMP = 4194304.0;
// No bound survives it, and no product with 0 makes NaN of it.
constexpr float BOUNDLESS = 3.0e38f;
// Quotients below the normal range miss at most as much as two floors of halves of the least unit: with that of the halves themselves three.
constexpr float FOLD_FLOORS = 3.0f;

// Whether codes can be scored. `units`: q.c in the units that logits are summed in. Written so that NaN does not fit.
CKV_FN bool fits(const FoldSums& s, float scale, double units) {
    const double logit = (double)scale * s.product * 1.4426950408889634;
    return s.square < u32_as_float(0x7f800000u) && logit < CLAMP && -logit < CLAMP && units < 1.0e24 && -units < 1.0e24;
}

// s ||q/S|| from above, and |s q.c| with 2^-20 of its terms' magnitudes, as (4.12a) needs it. A query that does not fit meets codes as 0.
struct FoldBound {
    float reach, constant;
};
CKV_FN FoldBound fold_bound(const FoldSums& s, float scale, bool fit) {
    const double size = s.product < 0.0 ? -s.product : s.product;
    const double constant = (double)fabsf(scale) * (size + s.terms * 0x1p-20) * 1.0001;
    return fit ? FoldBound{mul_ru(fabsf(scale), sqrt_ru(s.square * 1.0001f + LOST_SQUARES)), (float)constant} : FoldBound{BOUNDLESS, BOUNDLESS};
}
#endif
