// The number of steps of an element from its offset, rounded: what every code is made of, math.md (2.3), (2.6), (2.7).
#pragma once
#include "machine.cuh"
#include "codec/round.cuh"

namespace ckv_encode {

// Scale and offset of one code, single precision (exact: they are values of a type of at most 24 bits), and `inverse`.
struct Step {
    float scale, offset, inverse;
};

// What `steps` multiplies by: 1/scale to one unit of the last place; 1 for a scale of 0, where all differences are 0; NaN,
// which leaves every decision to the exact quotient, where a reciprocal could leave the normal range.
CKV_FN float inverse_step(float scale) {
    if (scale == 0.0f) return 1.0f;
    if (scale >= 0x1p-100f && scale <= 0x1p100f) return rcp(scale);
    return u32_as_float(0x7fffffffu);
}

// rint((x - offset)/scale), bit for bit that of double arithmetic (numeric.rs: rint_code), where `clear`.
//
// The quotient is at most 255.5 in magnitude (the scales come from the block). Its single-precision form has three
// roundings, of relative size 2^-24 (difference of two floats), 2^-23 (reciprocal) and 2^-24 (product): it is off by less
// than 256 * 2^-22 = 2^-14. The double quotient is off by less than 2^-44. So both round to the same integer unless the
// single one is within 2^-12 of a half: then, and where the reciprocal is no number, it is not clear. That is about one
// element in 2000, which takes `exact_steps`. A fused multiply-add instead of two roundings only makes this form better.
CKV_FN float steps(float x, const Step& step, bool& clear) {
    const float y = (x - step.offset) * step.inverse;
    const float near = (y + 12582912.0f) - 12582912.0f, rest = y - near;
    constexpr float inside = 0.5f - 0x1p-12f;
    clear = rest < inside && rest > -inside;
    return near;
}
// The same by the double quotient itself.
CKV_FN float exact_steps(float x, const Step& step) {
    const double by = step.scale > 0.0f ? (double)step.scale : 1.0;
    return (float)rint_near(((double)x - (double)step.offset) / by);
}

// The low eight bits of an integer-valued float of magnitude below 2^22, as two's complement.
CKV_FN u32 low_byte(float integer) { return float_as_u32(integer + 12582912.0f) & 0xffu; }

}  // namespace ckv_encode
