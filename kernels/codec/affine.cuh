// Affine values: BITS per element, one f16 scale and offset per token and group of channels, math.md (2.4)-(2.6).
// Encoder; twin of affine.rs.
#pragma once
#include "codec/steps.cuh"

namespace ckv_encode {

template <int BITS> struct Affine {
    static constexpr int bits = BITS;

    // Scale and offset from the group's range. False if they do not fit.
    static __device__ __forceinline__ bool scales(double lo, double hi, double& sigma, double& z) {
        z = round_down<F16>(lo);
        sigma = round_up<F16>((hi - z) / (double)((1u << BITS) - 1));
        return is_finite(z) && is_finite(sigma);
    }

    // Code of a value n steps from the offset.
    static __device__ __forceinline__ u32 code(float n) { return low_byte(n); }
    // The error x - x^ of that code. The product is exact.
    static __device__ __forceinline__ double error(float x, float n, const Step& step) {
        return (double)x - ((double)n * (double)step.scale + (double)step.offset);
    }
};

}  // namespace ckv_encode
