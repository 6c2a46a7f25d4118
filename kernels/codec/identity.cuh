// Sides kept as 16-bit originals: no error. In fragment order as codes are, 32 bytes to a lane of a unit. Twin of identity.rs.
#pragma once
#include "codec/fragment.cuh"

namespace ckv_encode {

struct Identity {
    // Sixteen bytes, piece `i` of a side in fragment order, from rows of ROW elements.
    template <bool KEY, u32 DIM, u32 ROW> static __device__ __forceinline__ Vec4 gather(const u16* rows, u32 i) {
        const u32 unit = i / 64, l = i / 2 % 32;
        const u16* corner = rows + unit / (DIM / 32) * 16 * ROW + unit % (DIM / 32) * 32;
        u32 two[4];
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            const u32 p = 8 * (i % 2) + 2 * j;
            const u32 lo = corner[token_of<KEY>(l, p) * ROW + channel_of<KEY>(l, p)];
            two[j] = lo | (u32)corner[token_of<KEY>(l, p + 1) * ROW + channel_of<KEY>(l, p + 1)] << 16;
        }
        return Vec4{two[0], two[1], two[2], two[3]};
    }
    // The inverse: the elements of piece `i` into their rows.
    template <bool KEY, u32 DIM, u32 ROW> static __device__ __forceinline__ void scatter(u16* rows, u32 i, const Vec4& v) {
        const u32 unit = i / 64, l = i / 2 % 32;
        u16* corner = rows + unit / (DIM / 32) * 16 * ROW + unit % (DIM / 32) * 32;
        const u32 two[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            const u32 p = 8 * (i % 2) + 2 * j;
            corner[token_of<KEY>(l, p) * ROW + channel_of<KEY>(l, p)] = (u16)(two[j] & 0xffffu);
            corner[token_of<KEY>(l, p + 1) * ROW + channel_of<KEY>(l, p + 1)] = (u16)(two[j] >> 16);
        }
    }
};

}  // namespace ckv_encode
