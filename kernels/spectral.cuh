// Upper bound of the spectral norm of a block's errors on the matrix unit, math.md (3.7) and (3.7a); the bound of annotate.rs,
// which takes it in double, and at most 1/128 above it.
//
// Errors in steps become halves, their Gram matrix and its square products of halves. What each rounding hides is added as a
// norm, so the bound holds whatever the errors are: a matrix that differs by D from the one in hand has a norm that differs
// by ||D|| <= ||D||_F at most.
#pragma once
#include "summary.cuh"

namespace ckv_encode {

// What the rounding to halves hides: this share of a number, or this much below the normal halves.
constexpr float HALF_SHARE = 0x1.01p-11f, HALF_FLOOR = 0x1p-25f;
// Sums and products in single precision here have fewer than 100 roundings in a row.
constexpr double UP_SINGLE = 1.0 + 0x1p-16;

// M M^T of an N-row matrix of halves: tiles of 16 x 8 on or above the diagonal, dealt to the warps of the CTA.
template <u32 N> struct Product {
    static constexpr u32 COLUMNS = N / 8, TILES = N / 16 * (N / 16 + 1), MOST = (TILES + WARPS - 1) / WARPS;
    // Rows of a matrix that is to be multiplied: 16 bytes of padding spread them over the banks.
    static constexpr u32 PITCH = N + 8;
    float sums[MOST][4];
    // Row and column of this lane's first element of a tile, in halves of a word; a warp without a tile takes column 0, and N for its row.
    u32 first[MOST];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (u32 n = 0; n < MOST; ++n) {
            u32 tile = warp() + n * WARPS, i = 0;
            while (i < N / 16 && tile >= COLUMNS - 2 * i) tile -= COLUMNS - 2 * i, ++i;
            const bool mine = i < N / 16;
            first[n] = (mine ? 16 * i + lane() / 4 : N) << 16 | ((mine ? 8 * (2 * i + tile) : 0) + 2 * (lane() % 4));
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[n][e] = 0.0f;
        }
    }
    __device__ __forceinline__ u32 row_of(u32 n, int e) const { return (first[n] >> 16) + (e < 2 ? 0 : 8); }
    __device__ __forceinline__ u32 column_of(u32 n, int e) const { return (first[n] & 0xffffu) + (u32)(e & 1); }
    // Whether element e of tile n is on or above the diagonal.
    __device__ __forceinline__ bool upper(u32 n, int e) const { return row_of(n, e) <= column_of(n, e); }

    // Adds the products of `depth` columns, a multiple of 16, of rows `pitch` halves apart.
    __device__ __forceinline__ void add(const u16* matrix, u32 pitch, u32 depth) {
        const u16 *left[MOST], *right[MOST];
#pragma unroll
        for (u32 n = 0; n < MOST; ++n) {
            const u32 t = 2 * (lane() % 4);
            left[n] = matrix + (row_of(n, 0) < N ? row_of(n, 0) : lane() / 4) * pitch + t;
            right[n] = matrix + (column_of(n, 0) - t + lane() / 4) * pitch + t;
        }
        // All tiles of a step together: their loads do not wait for each other.
#pragma unroll 2
        for (u32 k = 0; k < depth; k += 16) {
#pragma unroll
            for (u32 n = 0; n < MOST; ++n) {
                mma_f16(sums[n], *(const u32*)(left[n] + k), *(const u32*)(left[n] + 8 * pitch + k), *(const u32*)(left[n] + k + 8),
                        *(const u32*)(left[n] + 8 * pitch + k + 8), *(const u32*)(right[n] + k), *(const u32*)(right[n] + k + 8));
            }
        }
    }

    // The sum of the squares of the whole matrix times `factor`, this thread's part of it.
    __device__ __forceinline__ float squares(float factor) const {
        float sum = 0.0f;
#pragma unroll
        for (u32 n = 0; n < MOST; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float x = sums[n][e] * factor, square = x * x;
                if (upper(n, e)) sum += row_of(n, e) < column_of(n, e) ? square + square : square;
            }
        }
        return sum;
    }

    // Writes the whole matrix times `factor` as halves, symmetric whatever the order of the unit's sums.
    __device__ __forceinline__ void store(u16* out, float factor) const {
#pragma unroll
        for (u32 n = 0; n < MOST; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const u32 i = row_of(n, e), j = column_of(n, e);
                const u16 x = h_rn(sums[n][e] * factor);
                if (upper(n, e)) out[i * PITCH + j] = x, out[j * PITCH + i] = x;
            }
        }
    }
};

// Upper bound of the spectral norm of a matrix of N x `depth` numbers, of which `gram` holds the product of what they are as
// halves. `room`: 2 N PITCH halves, `slots`: 6 WARPS floats. Infinite where a half was.
template <u32 N> CKV_FN double spectral(const Product<N>& gram, u32 depth, u16* room, float* slots) {
    using P = Product<N>;
    float trace[1] = {0.0f}, top[1] = {0.0f};
#pragma unroll
    for (u32 n = 0; n < P::MOST; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            if (gram.row_of(n, e) == gram.column_of(n, e)) trace[0] += gram.sums[n][e], top[0] = fmaxf(top[0], gram.sums[n][e]);
        }
    }
    cta_sums_and_largest(trace, top, slots);
    // Every thread takes the same way: all hold the same numbers. The largest entry of a Gram matrix lies on its diagonal.
    if (!is_finite((double)trace[0])) return infinity();
    const float hidden = HALF_FLOOR * sqrt_ru((float)(N * depth));
    if (top[0] == 0.0f) return (double)hidden * UP_SINGLE;
    // The power of two that brings it into [1, 2). Squares of halves are 2^-50 at least, and no sum of them comes near the ends.
    const u32 exponent = float_as_u32(top[0]) >> 23;
    const float factor = u32_as_float((254u - exponent) << 23), back = u32_as_float(exponent << 23);

    u16 *const once = room, *const twice = room + N * P::PITCH;
    float sums[3] = {gram.squares(factor), 0.0f, 0.0f}, tops[3] = {0.0f, 0.0f, 0.0f};
    gram.store(once, factor);
    sync_threads();
    P square;
    square.clear();
    square.add(once, P::PITCH, N);
    sums[1] = square.squares(1.0f);
    square.store(twice, 1.0f);
    // Four threads a row.
    constexpr u32 QUARTER = N / 4;
    if (threadIdx.x < 4 * N) {
        const u16* part = once + threadIdx.x / 4 * P::PITCH + threadIdx.x % 4 * QUARTER;
#pragma unroll
        for (u32 k = 0; k < QUARTER; k += 2) {
            const u32 two = *(const u32*)(part + k) & 0x7fff7fffu;
            tops[0] += h_lo(two) + h_hi(two);
        }
    }
    tops[0] += shfl_xor(tops[0], 1);
    tops[0] += shfl_xor(tops[0], 2);
    sync_threads();
    P fourth;
    fourth.clear();
    fourth.add(twice, P::PITCH, N);
    sums[2] = fourth.squares(1.0f);
    cta_sums_and_largest(sums, tops, slots);

    // math.md (3.7a), with M the Gram matrix of the halves: first M 2^k as halves H, then H^2 as halves A. Every sum and root is rounded
    // up or within what UP_SINGLE adds.
    constexpr float chain = (float)(N / 16) * U_MMA, least = (float)N * HALF_FLOOR;
    const float h = sqrt_ru(sums[0]), of_gram = HALF_SHARE * h + least, a = sqrt_ru(sums[1]);
    const float of_square = chain * 1.01f * h * h + HALF_SHARE * a + least;
    const float fourth_norm = sqrt_ru(sums[2]) + chain * 1.01f * a * a;
    const float root = sqrt_ru(sqrt_ru(fourth_norm) + of_square);
    const float largest = (fminf(tops[0], root) + of_gram) * back + 1.01f * (float)(depth / 16) * U_MMA * trace[0];
    return (double)(sqrt_ru(largest) + HALF_SHARE * 1.01f * sqrt_ru(trace[0]) + hidden) * UP_SINGLE;
}

}  // namespace ckv_encode
