// Symmetric tread codes with one f16 scale per token and group of channels, math.md (2.7). Encoder; twin of token_sym.rs.
#pragma once
#include "codec/steps.cuh"

namespace ckv_encode {

template <int BITS> struct TokenSym {
    static constexpr int bits = BITS;
    static constexpr u32 half = 1u << (BITS - 1);

    // Scale from the group's largest magnitude. False if it does not fit.
    static __device__ __forceinline__ bool scale(double largest, double& s) {
        s = round_up<F16>(largest / (double)(half - 1));
        return is_finite(s);
    }

    // The level n steps from 0. Levels reach as far as the group does: what rounds beyond the last one does so by the
    // rounding of the quotient only, and clipping after rounding is what clipping before it is.
    static __device__ __forceinline__ float level(float n) {
        constexpr float top = (float)(half - 1);
        n = n > top ? top : n;
        return n < -top ? -top : n;
    }
    // Code, stored unsigned, of a key n steps from 0.
    static __device__ __forceinline__ u32 code(float n) { return (low_byte(level(n)) + half) & 0xffu; }
    // The error x - x^ of that code. The product is exact.
    static __device__ __forceinline__ double error(float x, float n, const Step& step) {
        return (double)x - (double)level(n) * (double)step.scale;
    }
};

}  // namespace ckv_encode
