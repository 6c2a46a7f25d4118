// Codes with one f16 scale per block and group of channels, math.md (2.9a): KIND 0 symmetric of BITS bits, whose levels are those of
// token_sym.cuh; 1 e4m3; 2 e5m2. Encoder; twin of page_scale.rs and fp8.rs.
#pragma once
#include "codec/round.cuh"

namespace ckv_encode {

template <int KIND, int BITS> struct PageScale {
    static constexpr bool floating = KIND != 0;
    static constexpr int fraction = KIND == 1 ? 3 : 2, emin = KIND == 1 ? -6 : -14;
    // Largest value, and its code.
    static constexpr double reach = KIND == 1 ? 448.0 : KIND == 2 ? 57344.0 : (double)((1u << (BITS - 1)) - 1);
    static constexpr u32 last = KIND == 1 ? 0x7e : 0x7b;
    // Largest magnitude that enters a product, and log2 of the largest error, both in scales.
    static constexpr double most = floating ? reach : (double)(1u << (BITS - 1));
    static constexpr int error_exponent = KIND == 1 ? 4 : KIND == 2 ? 12 : 0;

    // Scale from the largest magnitude. False if it does not fit.
    static __device__ __forceinline__ bool scale(double largest, double& s) {
        s = round_up<F16>(largest / reach);
        return is_finite(s);
    }
    // Floating-point code of x: the nearest, ties to even; saturates, and zero is positive.
    static __device__ __forceinline__ u32 code(double x, double s) {
        const double size = magnitude(x) / (s > 0.0 ? s : 1.0);
        const int top = (int)(bits_of(size) >> 52 & 0x7ff) - 1023, exponent = top > emin ? top : emin;
        // Multiples of the grid at this exponent: one too many is the first of the next.
        const int n = (int)rint_near(size * exp2i(fraction - exponent));
        u32 bits = (u32)(((exponent - emin) << fraction) + n);
        bits = s > 0.0 ? bits > last ? last : bits : 0;
        return x < 0.0 && bits > 0 ? bits | 0x80u : bits;
    }
    // What a floating-point code stands for, in scales.
    static __device__ __forceinline__ double value(u32 code) {
        const int field = (int)(code >> fraction & ((1u << (7 - fraction)) - 1)), part = (int)(code & ((1u << fraction) - 1));
        const double size = (double)((field > 0 ? 1 << fraction : 0) + part) * exp2i((field > 0 ? field - 1 : 0) + emin - fraction);
        return code & 0x80u ? -size : size;
    }
};

}  // namespace ckv_encode
