// TurboQuant rows: a rotated row's codes, and the radius that leaves the least error, math.md (2.14), (2.16), (2.17b).
// Encoder; twin of turboquant.rs. A row is a warp's: channel 32 m + lane in y[m].
//
// Macros beside those of rotate.cuh, of each side, 0 for one that is not coded so: magnitudes of levels, a byte each, eight to a word, and the thresholds
// between them as bits of doubles: CKV_KEY_LEVELS, CKV_KEY_LEVELS_1 .. _3, CKV_KEY_THRESHOLD_1 .. _31, CKV_VALUE_LEVELS and so on.
#pragma once
#include "codec/round.cuh"
#include "rotate.cuh"

namespace ckv_encode {

// What a rotation in double is off by at most, relative to the norm; record.rs: TURNED.
constexpr double TURNED = 0x1p-46;

#if CKV_KEY == 3 || CKV_VALUE == 2
CKV_FN double warp_total(double x) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) x += shfl_xor(x, d);
    return x;
}
#endif

#if CKV_ROTATES
// Of keys, then of values. Not inside functions: tables that are searched would be each thread's own.
__device__ constexpr u64 LEVELS[2][4] = {
    {CKV_KEY_LEVELS, CKV_KEY_LEVELS_1, CKV_KEY_LEVELS_2, CKV_KEY_LEVELS_3},
    {CKV_VALUE_LEVELS, CKV_VALUE_LEVELS_1, CKV_VALUE_LEVELS_2, CKV_VALUE_LEVELS_3}};
__device__ constexpr u64 THRESHOLDS[2][31] = {
    {CKV_KEY_THRESHOLD_1, CKV_KEY_THRESHOLD_2, CKV_KEY_THRESHOLD_3, CKV_KEY_THRESHOLD_4, CKV_KEY_THRESHOLD_5, CKV_KEY_THRESHOLD_6,
     CKV_KEY_THRESHOLD_7, CKV_KEY_THRESHOLD_8, CKV_KEY_THRESHOLD_9, CKV_KEY_THRESHOLD_10, CKV_KEY_THRESHOLD_11, CKV_KEY_THRESHOLD_12,
     CKV_KEY_THRESHOLD_13, CKV_KEY_THRESHOLD_14, CKV_KEY_THRESHOLD_15, CKV_KEY_THRESHOLD_16, CKV_KEY_THRESHOLD_17, CKV_KEY_THRESHOLD_18,
     CKV_KEY_THRESHOLD_19, CKV_KEY_THRESHOLD_20, CKV_KEY_THRESHOLD_21, CKV_KEY_THRESHOLD_22, CKV_KEY_THRESHOLD_23, CKV_KEY_THRESHOLD_24,
     CKV_KEY_THRESHOLD_25, CKV_KEY_THRESHOLD_26, CKV_KEY_THRESHOLD_27, CKV_KEY_THRESHOLD_28, CKV_KEY_THRESHOLD_29, CKV_KEY_THRESHOLD_30,
     CKV_KEY_THRESHOLD_31},
    {CKV_VALUE_THRESHOLD_1, CKV_VALUE_THRESHOLD_2, CKV_VALUE_THRESHOLD_3, CKV_VALUE_THRESHOLD_4, CKV_VALUE_THRESHOLD_5, CKV_VALUE_THRESHOLD_6,
     CKV_VALUE_THRESHOLD_7, CKV_VALUE_THRESHOLD_8, CKV_VALUE_THRESHOLD_9, CKV_VALUE_THRESHOLD_10, CKV_VALUE_THRESHOLD_11, CKV_VALUE_THRESHOLD_12,
     CKV_VALUE_THRESHOLD_13, CKV_VALUE_THRESHOLD_14, CKV_VALUE_THRESHOLD_15, CKV_VALUE_THRESHOLD_16, CKV_VALUE_THRESHOLD_17, CKV_VALUE_THRESHOLD_18,
     CKV_VALUE_THRESHOLD_19, CKV_VALUE_THRESHOLD_20, CKV_VALUE_THRESHOLD_21, CKV_VALUE_THRESHOLD_22, CKV_VALUE_THRESHOLD_23, CKV_VALUE_THRESHOLD_24,
     CKV_VALUE_THRESHOLD_25, CKV_VALUE_THRESHOLD_26, CKV_VALUE_THRESHOLD_27, CKV_VALUE_THRESHOLD_28, CKV_VALUE_THRESHOLD_29, CKV_VALUE_THRESHOLD_30,
     CKV_VALUE_THRESHOLD_31}};

template <bool KEY> struct Turbo {
#if CKV_TURBO_KEYS
    static constexpr bool keys = KEY;
#else
    static constexpr bool keys = false;
#endif
    static constexpr int bits = keys ? CKV_KEY_BITS : CKV_VALUE_BITS;
    static constexpr u32 half = 1u << (bits - 1), side = keys ? 0 : 1;

    static __device__ __forceinline__ double level(u32 code) {
        const u32 index = code & (half - 1);
        const double size = (double)(u32)(LEVELS[side][bits > 4 ? index / 8 : 0] >> (8 * (index % 8)) & 0xff);
        return code & half ? size : -size;
    }
    static __device__ __forceinline__ double threshold(u32 i) { return double_of(THRESHOLDS[side][i]); }

    // Codes of a rotated row, its norm, and its radius, a value of f16 or infinite.
    template <u32 PER> static __device__ __forceinline__ double code_row(const double (&y)[PER], u32 (&codes)[PER], double& r) {
        double square = 0.0;
#pragma unroll
        for (u32 m = 0; m < PER; ++m) square += y[m] * y[m];
        r = sqrt(warp_total(square));
        const double by = r > 0.0 ? r : 1.0;
        double product = 0.0, levels = 0.0;
#pragma unroll
        for (u32 m = 0; m < PER; ++m) {
            const bool positive = y[m] > 0.0;
            const double size = magnitude(y[m]);
            u32 index = 0;
            // A tie takes the lower level.
            const auto above = [&](u32 i) {
                const double at = threshold(i) * by;
                return positive ? at < size : at <= size;
            };
            if constexpr (bits > 4) {
#pragma unroll 1
                for (u32 step = half / 2; step > 0; step /= 2) index += above(index + step - 1) ? step : 0;
            } else {
#pragma unroll
                for (u32 i = 0; i + 1 < half; ++i) index += above(i);
            }
            codes[m] = index | (positive ? half : 0);
            const double x = level(codes[m]);
            product += x * y[m], levels += x * x;
        }
        const double fitted = larger(warp_total(product) / warp_total(levels), 0.0);
        return round_nearest<F16>(r > 0.0 ? fitted : 0.0);
    }
};
#endif

}  // namespace ckv_encode
