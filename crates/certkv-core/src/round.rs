//! Directed rounding of real numbers to the storage formats, math.md (0.1) and rule (0.2).
//!
//! Everything takes and returns `f64`; a result is exactly representable in the format (or infinite). Stored upper
//! bounds are rounded with [`up`], stored lower bounds with [`down`].

/// A floating-point format by precision, least normal exponent and largest finite value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fp {
    /// Precision in bits, hidden bit included.
    pub precision: i32,
    /// Least exponent of a normal number.
    pub emin: i32,
    /// Largest finite value.
    pub max: f64,
    /// FP8 formats saturate to the largest value where others overflow to infinity.
    pub saturates: bool,
}

/// Single precision.
pub const F32: Fp = Fp { precision: 24, emin: -126, max: f32::MAX as f64, saturates: false };
/// Half precision.
pub const F16: Fp = Fp { precision: 11, emin: -14, max: 65504.0, saturates: false };
/// bfloat16.
pub const BF16: Fp = Fp { precision: 8, emin: -126, max: 3.389_531_389_251_535_5e38, saturates: false };
/// FP8 with 4 exponent bits.
pub const E4M3: Fp = Fp { precision: 4, emin: -6, max: 448.0, saturates: true };
/// FP8 with 5 exponent bits.
pub const E5M2: Fp = Fp { precision: 3, emin: -14, max: 57344.0, saturates: true };

impl From<crate::Dtype> for Fp {
    fn from(t: crate::Dtype) -> Self {
        match t {
            crate::Dtype::F16 => F16,
            crate::Dtype::Bf16 => BF16,
            crate::Dtype::F32 => F32,
        }
    }
}

/// Spacing of the format's grid around `x`: `2^(max(floor(log2 |x|), emin) - p + 1)`.
#[inline]
pub fn quantum(x: f64, fp: Fp) -> f64 {
    // Every format here has a smaller exponent range than f64, so an f64 subnormal only meets the `max` below.
    let exponent = ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    exp2i(exponent.max(fp.emin) - (fp.precision - 1))
}

/// `2^k` exactly, for `k` in the range of normal doubles.
#[inline]
pub fn exp2i(k: i32) -> f64 {
    f64::from_bits(((k + 1023) as u64) << 52)
}

/// Nearest value of the format, ties to even. Overflow gives an infinity (FP8: the largest value). NaN stays NaN.
#[inline]
pub fn nearest(x: f64, fp: Fp) -> f64 {
    if !x.is_finite() {
        return if fp.saturates && !x.is_nan() { fp.max.copysign(x) } else { x };
    }
    let q = quantum(x, fp);
    let y = (x / q).round_ties_even() * q;
    if y.abs() <= fp.max {
        y + 0.0
    } else if fp.saturates {
        fp.max.copysign(x)
    } else if x.abs() >= fp.max + 0.5 * quantum(fp.max, fp) {
        f64::INFINITY.copysign(x)
    } else {
        fp.max.copysign(x)
    }
}

/// Least value of the format not below `x`; `+inf` above the largest value. NaN stays NaN.
#[inline]
pub fn up(x: f64, fp: Fp) -> f64 {
    if !x.is_finite() {
        return x;
    }
    let q = quantum(x, fp);
    let y = (x / q).ceil() * q;
    if y > fp.max { f64::INFINITY } else { y.max(-fp.max) + 0.0 }
}

/// Greatest value of the format not above `x`; `-inf` below the least value. NaN stays NaN.
#[inline]
pub fn down(x: f64, fp: Fp) -> f64 {
    -up(-x, fp) + 0.0
}

/// `up` to single precision, as the `f32` itself: for error summaries and certificates.
#[inline]
pub fn up_f32(x: f64) -> f32 {
    up(x, F32) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_half_on_every_pattern_and_between() {
        for bits in 0..0x7c00u16 {
            let x = half::f16::from_bits(bits).to_f64();
            assert_eq!((nearest(x, F16), up(x, F16), down(x, F16)), (x, x, x), "{bits:#x}");
            let y = half::f16::from_bits(bits + 1).to_f64();
            if y.is_finite() {
                let mid = x + (y - x) * 0.4;
                assert_eq!((nearest(mid, F16), up(mid, F16), down(mid, F16)), (x, y, x));
                assert_eq!((nearest(-mid, F16), up(-mid, F16), down(-mid, F16)), (-x + 0.0, -x + 0.0, -y));
            }
        }
    }

    #[test]
    fn overflow_follows_each_format() {
        assert_eq!(nearest(65519.0, F16), 65504.0);
        assert_eq!(nearest(65520.0, F16), f64::INFINITY);
        assert_eq!(up(65504.5, F16), f64::INFINITY);
        assert_eq!(down(65520.0, F16), 65504.0);
        assert_eq!(nearest(1e9, E4M3), 448.0);
        assert!(nearest(f64::NAN, F16).is_nan() && up(f64::NAN, F32).is_nan());
    }

    #[test]
    fn negative_zero_is_written_as_zero() {
        for f in [nearest, up, down] {
            assert_eq!(f(-0.0, F16).to_bits(), 0);
        }
        assert_eq!(up(-1e-30, F16).to_bits(), 0);
    }
}
