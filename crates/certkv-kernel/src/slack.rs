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

/// Conversion to `f32` rounded up, cheaply: a relative 2^-20 exceeds the rounding of the conversion and of the few f64
/// operations before it. Used where the operand is a bound and one extra millionth does not matter.
#[inline]
pub(crate) fn inflate(x: f64) -> f32 {
    (x * (1.0 + 1.0 / (1u64 << 20) as f64)) as f32 + f32::MIN_POSITIVE
}

/// More than the roundings of the few `f32` operations of one bound: 32 u.
const FEW: f32 = 1.0 + 1.0 / (1u32 << 19) as f32;

/// Logits past this, in nats, may reach the clamp; a little below `CLAMP / 2`.
const REACH: f32 = CLAMP / 2.0 * core::f32::consts::LN_2 * (1.0 - 1.0e-6);

/// What turns a block's sums into its bounds: coefficients that are the same for all heads, each rounded up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slack {
    /// Largest norm of the operands of the keys' products, for (4.12).
    pub(crate) magnitude: f32,
    /// `Delta = delta l1 + residual r` and `Lambda = lambda size + root residual r` ((4.2), (4.8), (4.15)).
    pub(crate) delta: f32,
    pub(crate) residual: f32,
    /// The same by the norm of the largest error, `Delta = norm s ||q|| + residual r` (4.5), if that is less; infinite where `delta` is
    /// of the norm itself.
    pub(crate) norm: f32,
    pub(crate) lambda: f32,
    /// Digit term per unit of the largest weight (5.29).
    pub(crate) digit: f32,
    /// Added to the bounds of a coded side so that underflow is covered; 0 for an exact side.
    pub(crate) key_floor: f32,
    pub(crate) value_floor: f32,
}

impl Slack {
    pub(crate) const ZERO: Slack = Slack {
        magnitude: 0.0,
        delta: 0.0,
        residual: 0.0,
        norm: f32::INFINITY,
        lambda: 0.0,
        digit: 0.0,
        key_floor: 0.0,
        value_floor: 0.0,
    };

    /// Coefficients of coded keys.
    #[inline]
    pub(crate) fn set_keys(&mut self, delta: f64, residual: f64, lambda: f64) {
        (self.delta, self.residual, self.lambda) = (inflate(delta), inflate(residual), inflate(lambda));
        self.key_floor = f32::MIN_POSITIVE;
    }

    /// Coefficient of coded values.
    #[inline]
    pub(crate) fn set_values(&mut self, digit: f64) {
        (self.digit, self.value_floor) = (inflate(digit), f32::MIN_POSITIVE);
    }
}

/// `zeta_b` of (4.12), in nats, for a head with `s ||q|| <= reach` and a block side whose largest products' operands
/// have norm `mag`: `A_b <= ||q|| mag` by Cauchy-Schwarz, and `shift >= |s q.c|` more where a centre was taken off the keys (4.12a).
/// A logit past the clamp would not be the logit: infinite then.
#[inline(always)]
pub(crate) fn zeta(reach: f32, mag: f32, shift: f32, gamma: f32) -> f32 {
    let a = reach * mag + shift;
    let z = (a * gamma + EXP as f32) * FEW;
    // The product is infinite, or the NaN that failed the comparison.
    if a < REACH { z } else { a * f32::INFINITY }
}

/// `(Delta_b, Lambda_b)` from the sums of the scaled query: `l1 >= ||y||_1`, `size >= ||y||`, `r` of the digits, `root`
/// the square root of the tokens; `reach >= s ||q||`.
#[inline(always)]
pub(crate) fn key_bounds(s: &Slack, reach: f32, l1: f32, size: f32, r: f32, root: f32) -> (f32, f32) {
    let digit = s.residual * r;
    // The least of those available (4.7); a norm that is not a number is none.
    let (steps, norm) = (s.delta * l1, s.norm * reach);
    let error = if norm < steps { norm } else { steps };
    ((error + digit) * FEW + s.key_floor, (s.lambda * size + root * digit) * FEW + s.key_floor)
}

/// Digit term of a block whose largest weight is at most `most` (5.29); a weight too small for digits loses all, which is
/// `2 levels` halves of a unit.
#[inline(always)]
pub(crate) fn digit_term(s: &Slack, most: f32, levels: f32) -> f32 {
    let small = most < crate::arch::generic::values::LEAST_WEIGHT;
    s.digit * most * if small { 2.0 * levels } else { 1.0 } * FEW + s.value_floor
}
