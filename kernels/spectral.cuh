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
constexpr double HALF_SHARE = 0x1.01p-11, HALF_FLOOR = 0x1p-25;
// Sums and products in single precision here have fewer than 100 roundings in a row.
constexpr double UP_SINGLE = 1.0 + 0x1p-16;

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
#pragma unroll
    for (int i = 0; i < N; ++i) {
        sums[i] = tops[i] = 0.0f;
#pragma unroll 1
        for (u32 w = 0; w < WARPS; ++w) sums[i] += slots[2 * N * w + i], tops[i] = fmaxf(tops[i], slots[2 * N * w + N + i]);
    }
}

// M M^T of an N-row matrix of halves: tiles of 16 x 8 on or above the diagonal, dealt to the warps of the CTA.
template <u32 N> struct Product {
    static constexpr u32 COLUMNS = N / 8, TILES = N / 16 * (N / 16 + 1), MOST = (TILES + WARPS - 1) / WARPS;
    // Rows of a matrix that is to be multiplied: 16 bytes of padding spread them over the banks.
    static constexpr u32 PITCH = N + 8;
    float sums[MOST][4];

    static __device__ __forceinline__ bool place(u32 tile, u32& row, u32& column) {
        u32 i = 0;
        while (i < N / 16 && tile >= COLUMNS - 2 * i) tile -= COLUMNS - 2 * i, ++i;
        row = 16 * i, column = 8 * (2 * i + tile);
        return i < N / 16;
    }
    // Row and column of element e of a tile in this lane.
    static __device__ __forceinline__ u32 row_of(u32 row, int e) { return row + lane() / 4 + (e < 2 ? 0 : 8); }
    static __device__ __forceinline__ u32 column_of(u32 column, int e) { return column + 2 * (lane() % 4) + (u32)(e & 1); }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (u32 n = 0; n < MOST; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[n][e] = 0.0f;
        }
    }

    // Adds the products of `depth` columns, a multiple of 16, of rows `pitch` halves apart.
    __device__ __forceinline__ void add(const u16* matrix, u32 pitch, u32 depth) {
#pragma unroll
        for (u32 n = 0; n < MOST; ++n) {
            u32 row, column;
            if (!place(warp() + n * WARPS, row, column)) continue;
            const u16* left = matrix + (row + lane() / 4) * pitch + 2 * (lane() % 4);
            const u16* right = matrix + (column + lane() / 4) * pitch + 2 * (lane() % 4);
#pragma unroll 4
            for (u32 k = 0; k < depth; k += 16) {
                mma_f16(sums[n], *(const u32*)(left + k), *(const u32*)(left + 8 * pitch + k), *(const u32*)(left + k + 8),
                        *(const u32*)(left + 8 * pitch + k + 8), *(const u32*)(right + k), *(const u32*)(right + k + 8));
            }
        }
    }

    // The sum of the squares of the whole matrix times `factor`, this thread's part of it.
    __device__ __forceinline__ float squares(float factor) const {
        float sum = 0.0f;
#pragma unroll
        for (u32 n = 0; n < MOST; ++n) {
            u32 row, column;
            if (!place(warp() + n * WARPS, row, column)) continue;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const u32 i = row_of(row, e), j = column_of(column, e);
                const float x = sums[n][e] * factor;
                if (i <= j) sum += (i < j ? 2.0f : 1.0f) * (x * x);
            }
        }
        return sum;
    }

    // Writes the whole matrix times `factor` as halves, symmetric whatever the order of the unit's sums.
    __device__ __forceinline__ void store(u16* out, float factor) const {
#pragma unroll
        for (u32 n = 0; n < MOST; ++n) {
            u32 row, column;
            if (!place(warp() + n * WARPS, row, column)) continue;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const u32 i = row_of(row, e), j = column_of(column, e);
                const u16 x = h_rn(sums[n][e] * factor);
                if (i <= j) out[i * PITCH + j] = x, out[j * PITCH + i] = x;
            }
        }
    }
};

// Upper bound of the spectral norm of a matrix of N x `depth` numbers, of which `gram` holds the product of what they are as
// halves. `room`: 2 N PITCH halves, `slots`: 4 WARPS floats. Infinite where a half was.
template <u32 N> CKV_FN double spectral(const Product<N>& gram, u32 depth, u16* room, float* slots) {
    using P = Product<N>;
    float trace[1] = {0.0f}, top[1] = {0.0f};
#pragma unroll
    for (u32 n = 0; n < P::MOST; ++n) {
        u32 row, column;
        if (!P::place(warp() + n * WARPS, row, column)) continue;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            if (P::row_of(row, e) == P::column_of(column, e)) trace[0] += gram.sums[n][e], top[0] = fmaxf(top[0], gram.sums[n][e]);
        }
    }
    cta_sums_and_largest(trace, top, slots);
    // Every thread takes the same way: all hold the same numbers. The largest entry of a Gram matrix lies on its diagonal.
    if (!is_finite((double)trace[0])) return infinity();
    const double hidden = HALF_FLOOR * sqrt((double)(N * depth));
    if (top[0] == 0.0f) return hidden;
    // The power of two that brings it into [1, 2). Squares of halves are 2^-50 at least, and no sum of them comes near the ends.
    const u32 exponent = float_as_u32(top[0]) >> 23;
    const float factor = u32_as_float((254u - exponent) << 23);

    u16 *const once = room, *const twice = room + N * P::PITCH;
    float sums[4] = {gram.squares(factor), 0.0f, 0.0f, 0.0f}, tops[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    gram.store(once, factor);
    sync_threads();
    P square;
    square.clear();
    square.add(once, P::PITCH, N);
    sums[1] = square.squares(1.0f);
    square.store(twice, 1.0f);
    if (threadIdx.x < N) {
#pragma unroll 4
        for (u32 k = 0; k < N; k += 2) {
            const u32 two = *(const u32*)(once + threadIdx.x * P::PITCH + k) & 0x7fff7fffu;
            tops[0] += h_lo(two) + h_hi(two);
        }
    }
    sync_threads();
    P fourth;
    fourth.clear();
    fourth.add(twice, P::PITCH, N);
    sums[2] = fourth.squares(1.0f);
    cta_sums_and_largest(sums, tops, slots);

    // math.md (3.7a), with M the Gram matrix of the halves: first M 2^k as halves H, then H^2 as halves A.
    constexpr double chain = (double)(N / 16) * (double)U_MMA, least = (double)N * HALF_FLOOR;
    const double all = (double)trace[0] * UP_SINGLE;
    const double of_gram = HALF_SHARE * sqrt((double)sums[0] * UP_SINGLE) + least;
    const double h = sqrt((double)sums[0] * UP_SINGLE) + of_gram, a = sqrt((double)sums[1] * UP_SINGLE);
    const double of_square = chain * h * h + HALF_SHARE * a + least;
    const double fourth_norm = sqrt((double)sums[2] * UP_SINGLE) + chain * 1.01 * a * a;
    const double root = sqrt(sqrt(fourth_norm) + of_square), row = (double)tops[0] * UP_SINGLE;
    const double largest = ((row < root ? row : root) + of_gram) / (double)factor + 1.01 * (double)(depth / 16) * (double)U_MMA * all;
    return (sqrt(largest) + HALF_SHARE * 1.01 * sqrt(all) + hidden) * UP;
}

}  // namespace ckv_encode
