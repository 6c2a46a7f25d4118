// Directed rounding of doubles to the stored formats, math.md (0.1): the device twin of certkv-core's round.rs.
//
// Every function gives the value of its twin for every finite input, bit for bit: divisions by powers of two are
// multiplications, and no product here is inexact, so that a fused multiply-add cannot change a result.
#pragma once
#include "machine.cuh"

namespace ckv_encode {

// Numbers of the types, as in CKV_KEY_META and CKV_STORE.
constexpr int F16 = 0, BF16 = 1, F32 = 2;

template <int TYPE> struct Fp {
    static constexpr int precision = TYPE == F16 ? 11 : TYPE == BF16 ? 8 : 24;
    static constexpr int emin = TYPE == F16 ? -14 : -126;
    // Exponent of the largest finite value.
    static constexpr int emax = TYPE == F16 ? 15 : 127;
};

union DoubleBits {
    double value;
    u64 bits;
};
CKV_FN u64 bits_of(double x) {
    DoubleBits b;
    b.value = x;
    return b.bits;
}
CKV_FN double double_of(u64 x) {
    DoubleBits b;
    b.bits = x;
    return b.value;
}
CKV_FN double infinity() { return double_of(0x7ff0000000000000ull); }
CKV_FN bool is_finite(double x) { return (bits_of(x) & 0x7ff0000000000000ull) != 0x7ff0000000000000ull; }
// 2^k for the exponents of normal doubles.
CKV_FN double exp2i(int k) { return double_of((u64)(k + 1023) << 52); }
CKV_FN double magnitude(double x) { return x < 0.0 ? -x : x; }
CKV_FN double larger(double a, double b) { return a > b ? a : b; }

// Nearest integer, ties to even, |x| < 2^51: adding 1.5 2^52 leaves no room for a fraction.
CKV_FN double rint_near(double x) { return (x + 6755399441055744.0) - 6755399441055744.0; }

// log2 of the spacing of the format's grid around x.
template <int TYPE> CKV_FN int grid_exponent(double x) {
    const int exponent = (int)((bits_of(x) >> 52) & 0x7ff) - 1023;
    return (exponent > Fp<TYPE>::emin ? exponent : Fp<TYPE>::emin) - (Fp<TYPE>::precision - 1);
}
template <int TYPE> CKV_FN double largest_finite() {
    return exp2i(Fp<TYPE>::emax) * (2.0 - exp2i(1 - Fp<TYPE>::precision));
}

// Least value of the format not below x; infinite above the largest one. An x that is not finite stays as it is.
template <int TYPE> CKV_FN double round_up(double x) {
    if (!is_finite(x)) return x;
    const int grid = grid_exponent<TYPE>(x);
    const double scaled = x * exp2i(-grid), near = rint_near(scaled);
    const double y = (near < scaled ? near + 1.0 : near) * exp2i(grid), top = largest_finite<TYPE>();
    if (y > top) return infinity();
    // Adding zero writes -0 as 0.
    return larger(y, -top) + 0.0;
}
// Greatest value of the format not above x.
template <int TYPE> CKV_FN double round_down(double x) { return -round_up<TYPE>(-x) + 0.0; }

// Nearest value of the format, ties to even; an infinity from half a step above the largest value.
template <int TYPE> CKV_FN double round_nearest(double x) {
    if (!is_finite(x)) return x;
    const int grid = grid_exponent<TYPE>(x);
    const double y = rint_near(x * exp2i(-grid)) * exp2i(grid), top = largest_finite<TYPE>();
    if (magnitude(y) <= top) return y + 0.0;
    const double half_step = exp2i(Fp<TYPE>::emax - Fp<TYPE>::precision);
    const double size = magnitude(x) >= top + half_step ? infinity() : top;
    return x < 0.0 ? -size : size;
}

// Writes a scale that is already a value of the type, little-endian.
template <int TYPE> CKV_FN void store_scale(u8* section, u32 index, double scale) {
    const float x = (float)scale;
    if constexpr (TYPE == F16) ((u16*)section)[index] = h_rn(x);
    if constexpr (TYPE == BF16) ((u16*)section)[index] = (u16)(float_as_u32(x) >> 16);
    if constexpr (TYPE == F32) ((float*)section)[index] = x;
}

// The value of a 16-bit original.
template <int TYPE> CKV_FN float original(u16 word) {
    if constexpr (TYPE == F16) return h_lo((u32)word);
    return b_lo((u32)word);
}
// True if one of the two originals of a word is NaN or infinite, math.md (0.4).
template <int TYPE> CKV_FN bool has_nonfinite(u32 two) {
    constexpr u32 exponent = TYPE == F16 ? 0x7c00u : 0x7f80u;
    return (two & exponent) == exponent || (two >> 16 & exponent) == exponent;
}

}  // namespace ckv_encode
