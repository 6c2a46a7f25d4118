//! The kernel's own arithmetic, as numbers that enter the bound: math.md (4.11), (4.12), (5.27).

/// Unit roundoff of `f32`.
pub(crate) const U: f64 = 1.0 / (1u64 << 24) as f64;

/// `gamma_n = n u / (1 - n u)`, math.md (4.11).
pub(crate) fn gamma(n: usize) -> f64 {
    let nu = n as f64 * U;
    if nu < 1.0 { nu / (1.0 - nu) } else { f64::INFINITY }
}

/// Longest chain of roundings between the operands of a logit and the logit, for `dim` channels: every path sums 16
/// interleaved lanes (`dim / 16` additions), then the lanes (4), then applies at most 12 further roundings (scale of
/// the query, digit step and its inverse, conversion of the integer sum, offset). See docs/kernels.md, "Logits".
pub(crate) const fn logit_chain(dim: usize) -> usize {
    dim / 16 + 16
}

/// Rounding of the logarithm of a computed weight beyond that of its logit: the polynomial is within 2.5 u of
/// `2^f`, the split into integer and fraction and the power of two are exact. 4 u as in (4.12).
pub(crate) const EXP: f64 = 4.0 * U;

/// Logits (base 2) are clamped to this magnitude; a block whose bound on `|z|` exceeds half of it gets `zeta = inf`.
pub(crate) const CLAMP: f32 = 4_194_304.0;

/// Rounds a non-negative `f64` up to `f32`. NaN stays NaN, overflow gives infinity.
pub(crate) fn up(x: f64) -> f32 {
    certkv_core::round::up_f32(x)
}

/// `zeta_b` of (4.12), in nats, for a head with `s ||q|| = reach` and a block side whose largest products' operands
/// have norm `mag`: `A_b <= ||q|| mag` by Cauchy-Schwarz.
#[inline]
pub(crate) fn zeta(reach: f64, mag: f32, logit_gamma: f64) -> f32 {
    let a = reach * f64::from(mag);
    // A logit past the clamp would not be the logit: such a block has no bound.
    if !(a * core::f64::consts::LOG2_E < f64::from(CLAMP) / 2.0) {
        return if a.is_nan() { f32::NAN } else { f32::INFINITY };
    }
    inflate(a * logit_gamma + EXP)
}

/// Conversion to `f32` rounded up, cheaply: a relative 2^-20 exceeds the rounding of the conversion and of the few f64
/// operations before it. Used where the operand is a bound and one extra millionth does not matter.
#[inline]
pub(crate) fn inflate(x: f64) -> f32 {
    (x * (1.0 + 1.0 / (1u64 << 20) as f64)) as f32 + f32::MIN_POSITIVE
}
