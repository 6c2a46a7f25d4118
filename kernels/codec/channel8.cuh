// Codes with one scale and one offset per channel and block, of 2 to 8 bits: keys, math.md (2.1)-(2.3), (2.23a), and values, (2.9b). Encoder; twin of
// channel8.rs.
#pragma once
#include "codec/steps.cuh"

namespace ckv_encode {

template <int BITS> struct Channel {
    static constexpr int bits = BITS;
    static constexpr double half = (double)(1u << (BITS - 1));

    // Scale and offset from the channel's range. False if they do not fit META: the block stays uncoded.
    template <int META> static __device__ __forceinline__ bool scales(double lo, double hi, double& sigma, double& z) {
        z = round_nearest<META>(lo + half * ((hi - lo) / (2.0 * half - 1.0)));
        sigma = round_up<META>(larger((hi - z) / (half - 1.0), (z - lo) / half));
        return is_finite(z) && is_finite(sigma);
    }

    // Code, stored unsigned, of an element n steps from the offset.
    static __device__ __forceinline__ u32 code(float n) { return (low_byte(n) + (1u << (BITS - 1))) & 0xffu; }
    // The error x - x^ of that code. The product is exact.
    static __device__ __forceinline__ double error(float x, float n, const Step& step) {
        return (double)x - ((double)n * (double)step.scale + (double)step.offset);
    }
};

}  // namespace ckv_encode
