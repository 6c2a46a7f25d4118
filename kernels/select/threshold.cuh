// The set of one KV head: every side whose largest share over the query heads reaches a threshold, the highest one under which
// no head is left with more than its target. One threshold serves the whole group, so a fetch that helps several heads is
// found by whichever needs it most.
//
// Shares are summed in whole numbers, per bucket in units of the bucket's own octave, and rounded up: the sums do not depend
// on the order of threads, and the true rest is never above what was counted.
#pragma once

namespace choice {

constexpr u32 THREADS = CHOOSERS, WARPS = THREADS / 32, EACH = BUCKETS / 32;

struct Histogram {
    u32 sums[GROUP][BUCKETS];
    u32 fresh[BUCKETS];  // sides not exact yet: REPAIR
};

CKV_FN void clear(Histogram& h) {
    for (u32 i = threadIdx.x; i < GROUP * BUCKETS; i += THREADS) (&h.sums[0][0])[i] = 0;
    for (u32 i = threadIdx.x; i < BUCKETS; i += THREADS) h.fresh[i] = 0;
}

// Digits of a share below its octave, so that 2 * blocks shares, each below two octaves' units, sum up in 32 bits.
CKV_FN int digits_of(u32 blocks) {
    int digits = 30;
    while (digits > 4 && (u64)blocks << (digits + 2) >= 0xffffffffull) digits--;
    return digits;
}
CKV_FN float power(int e) { return u32_as_float((u32)(e + 127) << 23); }

CKV_FN void count(Histogram& hist, const float (&shares)[GROUP], u32 bucket, float digits) {
    // What stands below the first bucket is nothing: all of it together is a few 1e-5 of the target.
    if (bucket == 0 || bucket == LAST) return;
    const float units = digits * per_octave(bucket);
#pragma unroll
    for (u32 h = 0; h < GROUP; h++) {
        const float x = shares[h] * units;
        if (x > 0.0f) {
            const u32 whole = (u32)x;
            atomic_add(&hist.sums[h][bucket], whole + ((float)whole < x ? 1u : 0u));
        }
    }
}

// How many buckets, from the lowest, head `h` can do without if so much may be left; one warp.
CKV_FN u32 buckets_left(const Histogram& hist, u32 h, float digits, float most = 0.9999f) {
    float sums[EACH], before = 0.0f;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        const u32 k = lane() * EACH + i;
        before += k == LAST ? 0.0f : (float)hist.sums[h][k] * (octave_of(k) * digits);
        sums[i] = before;
    }
    float whole = before;
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
        const float other = shfl(whole, (int)(lane() >= (u32)d ? lane() - d : lane()));
        if (lane() >= (u32)d) whole += other;
    }
    before = whole - before;
    float fits = 0.0f;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        const u32 k = lane() * EACH + i;
        fits += k < LAST && before + sums[i] <= most ? 1.0f : 0.0f;
    }
    return (u32)warp_sum(fits);
}

// The threshold for REPAIR: the same, or lower if at it nothing is new; one warp. `need`: new sides to take then.
CKV_FN u32 with_progress(const Histogram& hist, u32 threshold, u32 need) {
    u32 above[EACH], own = 0;
#pragma unroll
    for (int i = EACH - 1; i >= 0; i--) above[i] = own += hist.fresh[lane() * EACH + (u32)i];
    u32 from = own;
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
        const u32 other = shfl(from, (int)(lane() + (u32)d < 32 ? lane() + d : lane()));
        if (lane() + (u32)d < 32) from += other;
    }
    bool fresh = false;
    float enough = 0.0f;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        const u32 k = lane() * EACH + i, taken = from - own + above[i];
        fresh |= k == threshold && taken > 0;
        enough += taken >= need ? 1.0f : 0.0f;
    }
    const u32 lower = (u32)warp_sum(enough);
    if (any(fresh)) return threshold;
    return lower > 0 ? (lower - 1 < threshold ? lower - 1 : threshold) : 0;
}

}  // namespace choice
