// Norms of the rows of a block of 16-bit originals, of which no summary tells.
#pragma once
#include "attend/unit.cuh"
#include "bound.cuh"

// Squares of a register of two originals.
CKV_FN float square_lo(u32 x) { return store_lo(x) * store_lo(x); }
CKV_FN float square_hi(u32 x) { return store_hi(x) * store_hi(x); }

// Largest squares of norms among a block's rows, keys' and values', into `largest` in shared memory, zero before. All warps of the CTA, a tile each: one
// warp would wait for memory once a tile, and the CTA for that warp.
template <int WARP_COUNT> CKV_FN void row_norms(const u8* keys, int rows, u32* largest) {
    const u8* values = keys + SIDE_BYTES;
    const int r = lane() >> 2, k = 2 * (lane() & 3);
    float key = 0.0f, value = 0.0f;
#pragma unroll 1
    for (int t = WARP_COUNT - 1 - (int)warp(); 16 * t < rows; t += WARP_COUNT) {
        float key_row[2] = {0.0f, 0.0f}, token[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
        for (int j = 0; j < CHUNKS; j++) {
            u32 h[8], v[8];
            load_original(keys, t * CHUNKS + j, h);
            load_original(values, t * CHUNKS + j, v);
#pragma unroll
            for (int i = 0; i < 8; i++) key_row[i & 1] += square_lo(h[i]) + square_hi(h[i]);
#pragma unroll
            for (int i = 0; i < 8; i++) token[i & 2] += square_lo(v[i]), token[(i & 2) + 1] += square_hi(v[i]);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            key_row[i] += shfl_xor(key_row[i], 1);
            key_row[i] += shfl_xor(key_row[i], 2);
            const int row = 16 * t + r + 8 * i;
            if (row < rows) key = most(key_row[i], key);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int d = 4; d < 32; d <<= 1) token[i] += shfl_xor(token[i], d);
            const int row = 16 * t + k + (i & 1) + (i & 2) * 4;
            if (row < rows) value = most(token[i], value);
        }
    }
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
        key = most(shfl_xor(key, d), key);
        value = most(shfl_xor(value, d), value);
    }
    // Their bits are in the order of the numbers, none of which is negative; a NaN is above all.
    if (lane() == 0) atomic_max(largest, float_as_u32(key)), atomic_max(largest + 1, float_as_u32(value));
}
