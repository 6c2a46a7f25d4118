// TurboQuant rows: a rotated row's codes, and the radius that leaves the least error, math.md (2.14), (2.16), (2.17b).
// Encoder; twin of turboquant.rs. A row is a warp's: channel 32 m + lane in y[m].
//
// Macros beside those of rotate.cuh: of each side that is coded so eight magnitudes of levels, a byte each, and
// the thresholds between them, as bits of doubles: CKV_KEY_LEVELS, CKV_KEY_THRESHOLD_1 .. _7, CKV_VALUE_LEVELS and so on.
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
template <bool KEY> struct Turbo {
#if CKV_TURBO_KEYS
    static constexpr bool keys = KEY;
#else
    static constexpr bool keys = false;
#endif
    static constexpr int bits = keys ? CKV_KEY_BITS : CKV_VALUE_BITS;
    static constexpr u32 half = 1u << (bits - 1);

    static __device__ __forceinline__ double level(u32 code) {
#if CKV_TURBO_KEYS && CKV_VALUE == 2
        const u64 all = keys ? CKV_KEY_LEVELS : CKV_VALUE_LEVELS;
#elif CKV_TURBO_KEYS
        const u64 all = CKV_KEY_LEVELS;
#else
        const u64 all = CKV_VALUE_LEVELS;
#endif
        const double size = (double)(u32)(all >> (8 * (code & (half - 1))) & 0xff);
        return code & half ? size : -size;
    }
    static __device__ __forceinline__ double threshold(u32 i) {
#if CKV_TURBO_KEYS
        constexpr u64 KEYS[7] = {CKV_KEY_THRESHOLD_1, CKV_KEY_THRESHOLD_2, CKV_KEY_THRESHOLD_3, CKV_KEY_THRESHOLD_4,
                                 CKV_KEY_THRESHOLD_5, CKV_KEY_THRESHOLD_6, CKV_KEY_THRESHOLD_7};
        if (keys) return double_of(KEYS[i]);
#endif
#if CKV_VALUE == 2
        constexpr u64 VALUES[7] = {CKV_VALUE_THRESHOLD_1, CKV_VALUE_THRESHOLD_2, CKV_VALUE_THRESHOLD_3, CKV_VALUE_THRESHOLD_4,
                                   CKV_VALUE_THRESHOLD_5, CKV_VALUE_THRESHOLD_6, CKV_VALUE_THRESHOLD_7};
        if (!keys) return double_of(VALUES[i]);
#endif
        return 0.0;
    }

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
#pragma unroll
            for (u32 i = 0; i + 1 < half; ++i) {
                // A tie takes the lower level.
                const double at = threshold(i) * by;
                index += positive ? at < size : at <= size;
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
