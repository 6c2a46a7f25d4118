// Residual refinement of a coded element, math.md (2.23): BITS more bits of its error. Encoder; twin of refine.rs.
#pragma once
#include "codec/round.cuh"

namespace ckv_encode {

template <int BITS> struct Residual {
    // Code, stored unsigned, of an error in steps of `scale`, of which `inverse` is the double reciprocal, or 1 for a scale of 0;
    // `error` becomes what it leaves. The product is exact.
    static __device__ __forceinline__ u32 code(double& error, double scale, double inverse) {
        constexpr double fine = (double)(1u << BITS), half = 0.5 * fine;
        const double x = error * inverse * fine, near = rint_near(x);
        double r = near > x ? near - 1.0 : near;
        r = r < -half ? -half : r > half - 1.0 ? half - 1.0 : r;
        error -= (r + 0.5) * (1.0 / fine) * scale;
        return (u32)(int)(r + half);
    }
};

}  // namespace ckv_encode
