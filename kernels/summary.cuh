// The error summary of one side of a block, math.md section 3: the device twin of annotate.rs.
//
// Measured in double on the block's own codes, so that every number bounds what the kernels will decode. A sum of n
// products of doubles is off by at most (n + 2) 2^-53 of the sum of their magnitudes; here n <= 256 for the Gram matrix and
// n <= 64 for its powers, which is below 2^-44, and the published number is multiplied by 1 + 2^-40 before it is rounded up
// (twice where a spectral bound is taken), as on the CPU. So it is never below the true value, and differs from the
// CPU's by the last place at most: the two add the same numbers in another order.
#pragma once
#include "codec/round.cuh"

namespace ckv_encode {

// Threads of a CTA that packs; every function of this file is called by all of them.
constexpr u32 THREADS = 256, WARPS = THREADS / 32;

constexpr double UP = 1.0 + 0x1p-40;

struct alignas(16) Pair {
    double x, y;
};

// A measurement as a stored upper bound, annotate.rs: publish. NaN stays NaN and so fails closed.
CKV_FN float publish(double x) { return (float)round_up<F32>(x * UP); }

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

// Gram matrices of N columns, kept in registers: a thread owns one 4 x 4 block on or above the diagonal, for every PARTS-th
// row. `partials` of `fold` takes PARTIALS doubles and may lie on what was summed.
template <u32 N> struct Gram {
    static constexpr u32 PANELS = N / 4, TILES = PANELS * (PANELS + 1) / 2, PARTS = THREADS / TILES;
    static constexpr u32 ACTIVE = TILES * PARTS, PARTIALS = 16 * ACTIVE;
    double sums[4][4];

    // Row and column panel of a block on or above the diagonal.
    static __device__ __forceinline__ void place(u32 tile, u32& i, u32& j) {
        i = 0;
        while (tile >= PANELS - i) {
            tile -= PANELS - i;
            ++i;
        }
        j = i + tile;
    }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
#pragma unroll
            for (int s = 0; s < 4; ++s) sums[r][s] = 0.0;
        }
    }

    // Adds the products of `rows` rows of N doubles.
    __device__ __forceinline__ void add(const double* matrix, u32 rows) {
        if (threadIdx.x >= ACTIVE) return;
        u32 i, j;
        place(threadIdx.x % TILES, i, j);
#pragma unroll 1
        for (u32 k = threadIdx.x / TILES; k < rows; k += PARTS) {
            const Pair* left = (const Pair*)(matrix + k * N + 4 * i);
            const Pair* right = (const Pair*)(matrix + k * N + 4 * j);
            const Pair a0 = left[0], a1 = left[1], b0 = right[0], b1 = right[1];
            const double a[4] = {a0.x, a0.y, a1.x, a1.y}, b[4] = {b0.x, b0.y, b1.x, b1.y};
#pragma unroll
            for (int r = 0; r < 4; ++r) {
#pragma unroll
                for (int s = 0; s < 4; ++s) sums[r][s] = fma(a[r], b[s], sums[r][s]);
            }
        }
    }

    // Writes the whole N x N matrix; ends with the CTA in step.
    __device__ __forceinline__ void fold(double* partials, double* out) {
        sync_threads();
        if (threadIdx.x < ACTIVE) {
#pragma unroll
            for (u32 e = 0; e < 16; ++e) partials[e * ACTIVE + threadIdx.x] = sums[e / 4][e % 4];
        }
        sync_threads();
#pragma unroll 1
        for (u32 x = threadIdx.x; x < 16 * TILES; x += THREADS) {
            const u32 tile = x % TILES, e = x / TILES;
            double sum = 0.0;
#pragma unroll 1
            for (u32 part = 0; part < PARTS; ++part) sum += partials[e * ACTIVE + part * TILES + tile];
            u32 i, j;
            place(tile, i, j);
            const u32 row = 4 * i + e / 4, column = 4 * j + e % 4;
            out[row * N + column] = sum;
            out[column * N + row] = sum;
        }
        sync_threads();
    }
};

// out = matrix^2 for a symmetric N x N matrix: a thread takes four neighbours of a row at a time.
template <u32 N> CKV_FN void square(const double* matrix, double* out) {
#pragma unroll 1
    for (u32 x = threadIdx.x; x < N * N / 4; x += THREADS) {
        const u32 row = x / (N / 4), column = 4 * (x % (N / 4));
        double sums[4] = {0.0, 0.0, 0.0, 0.0};
#pragma unroll 2
        for (u32 k = 0; k < N; ++k) {
            const double a = matrix[k * N + row];
            const Pair b0 = *(const Pair*)(matrix + k * N + column), b1 = *(const Pair*)(matrix + k * N + column + 2);
            sums[0] = fma(a, b0.x, sums[0]), sums[1] = fma(a, b0.y, sums[1]);
            sums[2] = fma(a, b1.x, sums[2]), sums[3] = fma(a, b1.y, sums[3]);
        }
        *(Pair*)(out + row * N + column) = Pair{sums[0], sums[1]};
        *(Pair*)(out + row * N + column + 2) = Pair{sums[2], sums[3]};
    }
    sync_threads();
}

// Upper bound of the spectral norm of N errors from their Gram matrix, math.md (3.7); annotate.rs: Spectral::norm.
// `gram` is overwritten, and so are the N * N doubles of `room`.
template <u32 N> CKV_FN double spectral(double* gram, double* room, double* slots) {
    // The largest entry of a Gram matrix lies on its diagonal.
    double top[1] = {threadIdx.x < N ? gram[threadIdx.x * (N + 1)] : 0.0};
    cta_largest(top, slots);
    // Every thread takes the same way: all hold the same number.
    if (top[0] == 0.0) return 0.0;
    if (!(top[0] < infinity())) return top[0];
    const double inverse = 1.0 / top[0];
#pragma unroll 2
    for (u32 x = threadIdx.x; x < N * N; x += THREADS) gram[x] *= inverse;
    sync_threads();
    double row_sum[1] = {0.0};
    if (threadIdx.x < N) {
#pragma unroll 2
        for (u32 k = 0; k < N; ++k) row_sum[0] += magnitude(gram[k * N + threadIdx.x]);
    }
    cta_largest(row_sum, slots);
    // tr Gm^8 = ||Gm^4||_F^2.
    square<N>(gram, room);
    square<N>(room, gram);
    double trace = 0.0;
#pragma unroll 2
    for (u32 x = threadIdx.x; x < N * N; x += THREADS) trace += gram[x] * gram[x];
    const double root = sqrt(sqrt(sqrt(cta_sum(trace, slots))));
    return sqrt((row_sum[0] < root ? row_sum[0] : root) * top[0]) * UP;
}

}  // namespace ckv_encode
