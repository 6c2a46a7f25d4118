//! From masses to a certificate: the sums of math.md (5.11), the bound (5.10) with arithmetic (5.26)-(5.28), the cap (5.14).
use crate::arch::generic::softmax::two_to;
use crate::error::KernelError;
use crate::masses::{BlockTile, HeadTile, Masses, TILE};
use crate::partial::Partial;
use crate::query::Cursor;
use crate::slack::{U, gamma, up};

/// The terms of one head's certificate, in the unit of the values, each rounded up. Infinite where no bound holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Certificate {
    /// Key term of (5.10), denominator included.
    pub e_key: f32,
    /// Value term of (5.10), denominator included; holds the rounding of the weight digits.
    pub e_val: f32,
    /// What the kernel's own arithmetic adds: `bound - min(e_key + e_val, cap)` (5.28).
    pub e_arith: f32,
    /// Upper bound of `||O - O'||` for the output that was returned: (5.15) and (5.28).
    pub bound: f32,
    /// Trivial cap (5.14), without the arithmetic term.
    pub cap: f32,
    /// `sum_{b in T} h_b`, relative to the mass (5.5).
    pub h: f32,
}

impl Certificate {
    /// The certificate that promises nothing.
    pub const NONE: Certificate = Certificate {
        e_key: f32::INFINITY,
        e_val: f32::INFINITY,
        e_arith: f32::INFINITY,
        bound: f32::INFINITY,
        cap: f32::INFINITY,
        h: f32::INFINITY,
    };

    /// The bound without arithmetic, `min(e_key + e_val, cap)`: what a tolerance is compared with (8.2).
    pub fn e_quant(&self) -> f32 {
        let sum = up(f64::from(self.e_key) + f64::from(self.e_val));
        // `!(sum <= cap)` also takes the cap for a NaN sum; the cap is NaN where nothing holds.
        if sum <= self.cap { sum } else { self.cap }
    }
}

/// Running sums over tiles, one lane per block of a tile.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Sums {
    pub(crate) g: [f32; TILE],
    pub(crate) g_radius: [f32; TILE],
    pub(crate) h: [f32; TILE],
    pub(crate) v: [f32; TILE],
    /// `g`, `g_radius` and `h` with the arithmetic slack in the logits.
    pub(crate) g_all: [f32; TILE],
    pub(crate) g_radius_all: [f32; TILE],
    pub(crate) h_all: [f32; TILE],
    pub(crate) digit: [f32; TILE],
    pub(crate) radius: [f32; TILE],
    pub(crate) value_norm: [f32; TILE],
}

/// Sums over all tiles: block tiles, the heads' tiles from the wanted head's first on, tiles from one to the head's next, and
/// the head's exponent.
pub(crate) type TilesFn = fn(&[BlockTile], &[HeadTile], usize, f32) -> Sums;

/// Tiles between the one that is summed and the one that is asked for: a pass over more than the caches leaves its masses in
/// the last of them, and no hardware foresees the strides between a head's tiles.
const TILES_AHEAD: usize = 4;

impl Sums {
    pub(crate) const ZERO: Sums = Sums {
        g: [0.0; TILE],
        g_radius: [0.0; TILE],
        h: [0.0; TILE],
        v: [0.0; TILE],
        g_all: [0.0; TILE],
        g_radius_all: [0.0; TILE],
        h_all: [0.0; TILE],
        digit: [0.0; TILE],
        radius: [0.0; TILE],
        value_norm: [0.0; TILE],
    };
}

/// `a b + c`, fused where the caller is compiled for it (a library call elsewhere).
#[inline(always)]
fn madd<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// `e^x` within 4e-7 relative for `|x| <= 80`, lane by lane.
#[inline(always)]
fn exp<const FUSED: bool>(x: f32) -> f32 {
    let y = x * core::f32::consts::LOG2_E;
    let whole = y.round_ties_even();
    let f = x - whole * 0.693_359_4 + whole * 2.121_944_4e-4;
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = madd::<FUSED>(p, f, c);
    }
    p * two_to(whole)
}

/// Relative inflation that covers [`exp`], the series below and the products around them: 3e-6.
const UP: f32 = 1.0 + 3.0e-6;

/// Series of `phi(x) = expm1(x)/x` to `x^7` at `x` and `-x`, for `|x| <= 1/2`: the rest is below `1/2^8/9! = 1.1e-8`.
#[inline(always)]
fn phi_series<const FUSED: bool>(x: f32) -> (f32, f32) {
    let square = x * x;
    let (mut even, mut odd) = (1.0 / 5040.0, 1.0 / 40320.0);
    for (e, o) in [(1.0 / 120.0, 1.0 / 720.0), (1.0 / 6.0, 1.0 / 24.0), (1.0, 0.5)] {
        (even, odd) = (madd::<FUSED>(even, square, e), madd::<FUSED>(odd, square, o));
    }
    (madd::<FUSED>(odd, x, even), madd::<FUSED>(odd, -x, even))
}

/// `(expm1(x), phi(x), 1 - e^-x)` from above, for `x >= 0`; NaN stays NaN, large `x` gives infinities. `SMALL`: `x <= 1/2`.
#[inline(always)]
fn expm1_phi_h<const FUSED: bool, const SMALL: bool>(x: f32) -> (f32, f32, f32) {
    let clamped = if x > 80.0 { 80.0 } else { x };
    let (up, down) = phi_series::<FUSED>(clamped);
    if SMALL {
        return (up * UP * x * UP, up * UP, down * x * UP);
    }
    let e = exp::<FUSED>(clamped);
    let is_small = x <= 0.5;
    let large = (e * UP - 1.0) / clamped;
    let phi = if is_small { up } else { large } * UP;
    let grow = if x > 80.0 { f32::INFINITY } else { 0.0 };
    // exp(-x) has the same relative error as exp(x), so 1 - e^-x is at most 1 - (1/e)/UP.
    let far = 1.0 - (1.0 / e) * (2.0 - UP);
    let near = down * clamped * UP;
    (phi * x * UP + grow, phi + grow, if is_small { near } else { far })
}

/// At least `expm1(x)`, for `x >= 0`: `x + 0.72 x^2` up to 1 (`e - 2 < 0.72`), then the next power of two. NaN stays. `SMALL`:
/// `x <= 1`.
#[inline(always)]
fn expm1_above<const SMALL: bool>(x: f32) -> f32 {
    let near = (x + 0.72 * x * x) * UP;
    if SMALL {
        return near;
    }
    let y = if x > 80.0 { 80.0 } else { x };
    // The product brings back the NaN that the bits of the power would lose.
    let far = two_to((y * core::f32::consts::LOG2_E).ceil() + 1.0) + y * 0.0;
    let far = if x > 80.0 { f32::INFINITY } else { far };
    if x <= 1.0 { near } else { far }
}

/// `2^-146` and `2^-70`.
const WEIGHT_FLOOR: f32 = f32::from_bits(1 << 3);
const ROOT_FLOOR: f32 = f32::from_bits((127 - 70) << 23);

/// Smaller of two bounds; NaN in the first is kept.
#[inline(always)]
fn least(a: f32, b: f32) -> f32 {
    if b < a { b } else { a }
}

/// The plain form of [`TilesFn`]; compiled again with wide instructions by the instruction-set folders.
#[inline(always)]
pub(crate) fn tiles_body<const FUSED: bool>(
    b: &[BlockTile],
    r: &[HeadTile],
    stride: usize,
    exponent: f32,
    finish: impl Fn(&mut Cursor),
) -> Sums {
    let mut s = Sums::ZERO;
    for (t, (block, row)) in b.iter().zip(r.iter().step_by(stride)).enumerate() {
        let later = t + TILES_AHEAD;
        if let (Some(block), Some(row)) = (b.get(later), r.get(later * stride)) {
            finish(&mut Cursor::of(block));
            finish(&mut Cursor::of(row));
        }
        // What most tiles are: nothing in them takes an exponential. NaN is not small.
        let small = row.delta.iter().all(|x| *x <= 0.5) && row.zeta.iter().all(|x| *x <= 1.0);
        if small {
            tile::<FUSED, true>(block, row, exponent, &mut s);
        } else {
            tile::<FUSED, false>(block, row, exponent, &mut s);
        }
    }
    s
}

/// Adds one tile. `SMALL`: every `Delta_b <= 1/2` and `zeta_b <= 1`.
#[inline(always)]
fn tile<const FUSED: bool, const SMALL: bool>(b: &BlockTile, r: &HeadTile, exponent: f32, s: &mut Sums) {
    for i in 0..TILE {
        // 2^(e_b - m) by its bits: entries are never above the exponent of the whole; below 2^-126 it is taken as 2^-126.
        let e = r.exponent[i] - exponent;
        let e = if e < -126.0 {
            -126.0
        } else if e > 127.0 {
            127.0
        } else {
            e
        };
        let f = two_to(e);
        // Floors for what underflowed: a weight loses at most 2^-149, a root of sums of squares (n <= 64) 2^-71.
        let none = b.root_tokens[i] == 0.0;
        let w = r.w[i] * f + b.root_tokens[i] * b.root_tokens[i] * WEIGHT_FLOOR;
        let p = (r.p[i] + ROOT_FLOOR) * f;
        // `(g, h)` of (5.9), unnormalised.
        let (grow, phi, shrink) = expm1_phi_h::<FUSED, SMALL>(r.delta[i]);
        let two = p * r.lambda[i] * UP;
        let (g, h) = (least(w * grow, phi * two), least(w * shrink, two));
        // The same for `Delta + zeta`, from what is there: `e^(x+y) - 1 = e^x - 1 + e^x (e^y - 1)`, `phi(x+y) <= phi(x) e^y`,
        // `1 - e^-(x+y) <= 1 - e^-x + y`.
        let zeta = r.zeta[i];
        let more = expm1_above::<SMALL>(zeta);
        let grow = (grow + (1.0 + grow) * more) * UP;
        let shrink = least((shrink + zeta) * UP, 1.0);
        let two = p * (r.lambda[i] + zeta * b.root_tokens[i]) * UP;
        let (g_all, h_all) = (least(w * grow, (phi + phi * more) * two * UP), least(w * shrink, two));
        let (g, h) = if none { (0.0, 0.0) } else { (g, h) };
        let (g_all, h_all) = if none { (0.0, 0.0) } else { (g_all, h_all) };
        let v = if none { 0.0 } else { least(w * b.eta[i], p * b.sop[i]) };
        s.g[i] += g;
        s.h[i] += h;
        s.g_radius[i] += if none { 0.0 } else { g * b.radius[i] };
        s.g_all[i] += g_all;
        s.h_all[i] += h_all;
        s.g_radius_all[i] += if none { 0.0 } else { g_all * b.radius[i] };
        s.v[i] += v;
        s.digit[i] += r.digit[i] * f;
        // Maxima that keep NaN: `!(x <= max)` lets it in, and nothing is larger than NaN.
        s.radius[i] = if b.radius[i] <= s.radius[i] { s.radius[i] } else { b.radius[i] };
        s.value_norm[i] = if b.value_norm[i] <= s.value_norm[i] { s.value_norm[i] } else { b.value_norm[i] };
    }
}

fn total(lanes: &[f32; TILE]) -> f64 {
    lanes.iter().map(|&x| f64::from(x)).sum()
}

/// Largest lane; NaN if a lane is NaN.
fn most(lanes: &[f32; TILE]) -> f64 {
    lanes.iter().fold(0.0f64, |a, &b| if f64::from(b) <= a { a } else { f64::from(b) })
}

/// The certificate of `head` after a pass (and repairs): `output_radius` is an upper bound of `||O' - c||` for the
/// output returned by [`Partial::finish`].
pub(crate) fn certify(
    tiles: TilesFn,
    masses: &Masses,
    partial: &Partial,
    head: usize,
    output_radius: f32,
) -> Result<Certificate, KernelError> {
    if partial.tokens == 0 {
        return Err(KernelError::NoToken);
    }
    if head >= partial.heads || masses.heads() != partial.heads {
        return Err(KernelError::Length { argument: "head", expected: partial.heads, given: head });
    }
    let s = tiles(masses.block_tiles(), masses.tiles_from(head), masses.heads(), partial.exponent[head]);
    let l = f64::from(partial.l[head]);
    if !(l > 0.0 && l.is_finite()) {
        return Ok(Certificate::NONE);
    }
    // (5.26): all sums are of non-negative terms; chains of one addition per tile, the weights' own sums and rescaling.
    let nacc = partial.chain + masses.block_tiles().len() + 16;
    let slack = gamma(nacc);
    let amplification = f64::from(partial.gross[head]) / l;
    // (5.27). After a repair the errors in `o` and `l` are relative to everything ever added, and to the largest of it.
    let (nu, digit) = (f64::from(partial.gone), total(&s.digit) / l);
    let nu = if most(&s.value_norm) <= nu { nu } else { most(&s.value_norm) };
    // Underflow of a weight or of
    // a rescaled entry loses at most 2^-149; 2^-140 a token covers the chain of rescalings.
    let accumulated = nu * (2.0 * slack * amplification / (1.0 - slack * amplification) + 4.0 * U)
        + partial.tokens as f64 * (1.0 + nu) * (-140f64).exp2() / l;
    let accumulated = if slack * amplification < 0.5 { accumulated } else { f64::INFINITY };
    let radius = f64::from(output_radius) + digit + accumulated;
    let side = |g: f64, g_radius: f64, h: f64| {
        let m = 1.0 - h / l;
        // h/l above 1/2 magnifies the rounding of h itself (5.26).
        let grow = (1.0 + 8.0 * slack * amplification / m.max(1e-300)) * (1.0 + 1e-6);
        let ok = m > 0.0;
        let key = if ok { (g_radius + radius * g) / l / m * grow } else { f64::INFINITY };
        let value = if ok { (total(&s.v) / l + digit) / m * grow } else { f64::INFINITY };
        (key, value)
    };
    let (key, value) = side(total(&s.g), total(&s.g_radius), total(&s.h));
    let (key_all, value_all) = side(total(&s.g_all), total(&s.g_radius_all), total(&s.h_all));
    let cap = most(&s.radius) + radius;
    let clip = |x: f64| if x <= cap { x } else { cap };
    let sum = key + value;
    let all = key_all + value_all;
    if cap.is_nan() || sum.is_nan() || all.is_nan() || accumulated.is_nan() {
        return Ok(Certificate::NONE);
    }
    let (quant, bound) = (clip(sum), clip(all) + accumulated);
    Ok(Certificate {
        e_key: up(key),
        e_val: up(value),
        e_arith: up((bound - quant).max(0.0)),
        bound: up(bound),
        cap: up(cap),
        h: up(total(&s.h) / l),
    })
}
