// K8: 8-bit keys with one scale and one offset per channel and block, math.md (2.1)-(2.3). Encoder; twin of channel8.rs.
#pragma once
#include "codec/steps.cuh"

namespace ckv_encode {

struct Channel8 {
    static constexpr int bits = 8;

    // Scale and offset from the channel's range. False if they do not fit META: the block stays uncoded.
    template <int META> static __device__ __forceinline__ bool scales(double lo, double hi, double& sigma, double& z) {
        z = round_nearest<META>(lo + 128.0 * ((hi - lo) / 255.0));
        sigma = round_up<META>(larger((hi - z) / 127.0, (z - lo) / 128.0));
        return is_finite(z) && is_finite(sigma);
    }

    // Code, stored unsigned, of a key n steps from the offset.
    static __device__ __forceinline__ u32 code(float n) { return low_byte(n) ^ 0x80u; }
    // The error x - x^ of that code. The product is exact.
    static __device__ __forceinline__ double error(float x, float n, const Step& step) {
        return (double)x - ((double)n * (double)step.scale + (double)step.offset);
    }
};

}  // namespace ckv_encode
