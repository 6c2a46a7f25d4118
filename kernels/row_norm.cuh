// Norms of the rows of open blocks. An open block has no error summary, and the certificate needs the largest norms of its keys and values. Whoever
// brings a row leaves its norms beside the tail, so that attention reads 8 bytes a row and not the row once more.
#pragma once
#include "codec/round.cuh"

namespace ckv_encode {

// Place of a row in the norms of a layer's tails, [tail slot][kv_head][BLOCK]: squares of the norms of its key and its value.
CKV_FN u64 row_norm_at(u32 slot, u32 kv_heads, u32 head, u32 block, u32 token) { return ((u64)slot * kv_heads + head) * block + token; }

// The square of a row's norm, of which each lane has eight numbers, in every lane: one order of sums, whoever asks.
template <int STORE> CKV_FN float row_square(const u32 (&two)[4]) {
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        const float a = original<STORE>((u16)(two[i] & 0xffffu)), b = original<STORE>((u16)(two[i] >> 16));
        sum += a * a + b * b;
    }
    return warp_sum(sum);
}

}  // namespace ckv_encode
