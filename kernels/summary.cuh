// The error summary of one side of a block, math.md section 3: the device twin of annotate.rs.
//
// Measured in double on the block's own codes, so that every number bounds what the kernels will decode. A sum of n
// products of doubles is off by at most (n + 2) 2^-53 of the sum of their magnitudes; here n <= 256, which is below 2^-44, and
// the published number is multiplied by 1 + 2^-40 before it is rounded up, as on the CPU. So it is never below the true
// value, and differs from the CPU's by the last place at most: the two add the same numbers in another order. Spectral norms
// are bounded on the matrix unit instead (spectral.cuh), a little less closely than on the CPU.
#pragma once
#include "codec/round.cuh"

namespace ckv_encode {

// Threads of a CTA that packs, or appends; every function of this file is called by all of them.
constexpr u32 THREADS = 256, WARPS = THREADS / 32;

constexpr double UP = 1.0 + 0x1p-40;

// A measurement as a stored upper bound, annotate.rs: publish. NaN stays NaN and so fails closed.
CKV_FN float publish(double x) { return (float)round_up<F32>(x * UP); }

// The union of everyone's bits; `slots` holds WARPS words.
CKV_FN u32 cta_union(u32 bits, u32* slots) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) bits |= shfl_xor(bits, d);
    sync_threads();
    if (lane() == 0) slots[warp()] = bits;
    sync_threads();
    u32 all = 0;
    for (u32 w = 0; w < WARPS; ++w) all |= slots[w];
    return all;
}

// Largest and sum over the CTA, in every thread, a NaN winning; `slots` holds WARPS * N doubles.
template <int N> CKV_FN void cta_largest(double (&v)[N], double* slots) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const double other = shfl_xor(v[i], d);
            v[i] = v[i] >= other || v[i] != v[i] ? v[i] : other;
        }
    }
    sync_threads();
    if (lane() == 0) {
#pragma unroll
        for (int i = 0; i < N; ++i) slots[N * warp() + i] = v[i];
    }
    sync_threads();
#pragma unroll 1
    for (u32 w = 0; w < WARPS; ++w) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const double other = slots[N * w + i];
            v[i] = v[i] >= other || v[i] != v[i] ? v[i] : other;
        }
    }
}
CKV_FN double cta_sum(double v, double* slots) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v += shfl_xor(v, d);
    sync_threads();
    if (lane() == 0) slots[warp()] = v;
    sync_threads();
    double sum = 0.0;
#pragma unroll 1
    for (u32 w = 0; w < WARPS; ++w) sum += slots[w];
    return sum;
}

// Sums of N numbers over the CTA and the largest of N others, none below 0, in every thread; `slots` holds 2 N WARPS floats.
template <int N> CKV_FN void cta_sums_and_largest(float (&sums)[N], float (&tops)[N], float* slots) {
#pragma unroll
    for (int i = 0; i < N; ++i) sums[i] = warp_sum(sums[i]), tops[i] = warp_max(tops[i]);
    sync_threads();
    if (lane() == 0) {
#pragma unroll
        for (int i = 0; i < N; ++i) slots[2 * N * warp() + i] = sums[i], slots[2 * N * warp() + N + i] = tops[i];
    }
    sync_threads();
    // Each lane one warp's numbers, then what the warps had.
    const float* mine = slots + 2 * N * (lane() % WARPS);
#pragma unroll
    for (int i = 0; i < N; ++i) {
        sums[i] = mine[i], tops[i] = mine[N + i];
#pragma unroll
        for (u32 d = 1; d < WARPS; d <<= 1) {
            sums[i] += shfl_xor(sums[i], (int)d);
            tops[i] = fmaxf(tops[i], shfl_xor(tops[i], (int)d));
        }
    }
}

}  // namespace ckv_encode
