//! What each block's keys and values contribute to a head's certificate: the gains of math.md (6.5).
use certkv_kernel::{Mass, Masses, Partial, TILE};

/// One head's scale: what turns the pass's sums into masses and distances.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadScale {
    /// Base-2 exponent of the pass.
    pub(crate) exponent: f32,
    /// Total weight at that exponent.
    pub(crate) total: f64,
    /// `||O' - c||`.
    pub(crate) radius: f64,
    /// Absolute tolerance of the head.
    pub(crate) eps: f64,
}

impl HeadScale {
    pub(crate) fn of(partial: &Partial, head: usize, radius: f64, eps: f64) -> Self {
        Self { exponent: partial.exponent(head), total: f64::from(partial.weight_sum(head)), radius, eps }
    }

    /// `(rho_b, p_b)` of an entry (1.5).
    pub(crate) fn masses(&self, m: &Mass) -> (f64, f64) {
        let to = self.unit(m);
        (f64::from(m.w) * to, f64::from(m.p) * to)
    }

    /// Sums of an entry as shares of the pass's weight.
    pub(crate) fn shares(&self, m: &Mass, sums: [f32; 2]) -> [f32; 2] {
        let to = self.unit(m);
        sums.map(|sum| (f64::from(sum) * to) as f32)
    }

    /// What one of an entry's weights is of all.
    fn unit(&self, m: &Mass) -> f64 {
        f64::from(m.exponent - self.exponent).exp2() / self.total
    }
}

/// `2^k` for an integer-valued `k`, clamped to the normal range: what lies below it weighs nothing here.
#[inline]
fn power(k: f32) -> f32 {
    f32::from_bits(((k.clamp(-126.0, 127.0) + 127.0) as u32) << 23)
}

/// `expm1(x)` to a part in a thousand, without a call where `x` is small. Promotion is a heuristic; the certificate
/// itself is computed elsewhere.
#[inline]
fn expm1(x: f32) -> f32 {
    if x <= 1.0 { x * (1.0 + x * (0.5 + x * (1.0 / 6.0 + x * (1.0 / 24.0 + x / 100.0)))) } else { x.exp_m1() }
}

/// What cannot be judged is read exactly: NaN becomes an infinite gain.
#[inline]
fn judged(x: f32) -> f32 {
    if x.is_nan() { f32::INFINITY } else { x }
}

/// One head's scale, ready for many blocks.
#[derive(Debug, Clone, Copy)]
struct Unit {
    exponent: f32,
    inverse: f32,
    radius: f32,
    eps: f32,
}

impl Unit {
    fn of(scale: &HeadScale) -> Self {
        let inverse = (1.0 / scale.total) as f32;
        Self { exponent: scale.exponent, inverse, radius: scale.radius as f32, eps: scale.eps as f32 }
    }

    /// Gain of reading keys exactly, `g_b D_b + eps h_b` of (6.5).
    #[inline]
    fn key(&self, [w, p, exponent]: [f32; 3], radius: f32, delta: f32, lambda: f32) -> f32 {
        let to = power(exponent - self.exponent) * self.inverse;
        let (rho, spread) = (w * to, p * to * lambda);
        if delta == 0.0 || w == 0.0 {
            return 0.0;
        }
        let grow = expm1(delta);
        // `min` would drop a NaN; the comparison keeps it.
        let (a, b) = (rho * grow, spread * grow / delta);
        let g = if b < a { b } else { a };
        let (a, b) = (rho * delta, spread);
        let h = if b < a { b } else { a };
        judged(g * (radius + self.radius) + self.eps * h)
    }

    /// Gain of reading values exactly, `c_b` of (6.4).
    #[inline]
    fn value(&self, [w, p, exponent]: [f32; 3], eta: f32, sop: f32, digit: f32) -> f32 {
        let to = power(exponent - self.exponent) * self.inverse;
        let (a, b) = (w * to * eta, p * to * sop);
        if w == 0.0 {
            return 0.0;
        }
        judged(if b < a { b } else { a } + digit * to)
    }
}

/// Gains of `head` over `blocks` blocks, keys then values, 0 where a side is exact already. A few nanoseconds a block.
pub(crate) fn gains(scale: &HeadScale, masses: &Masses, head: usize, blocks: usize, out: &mut Vec<f32>) {
    let unit = Unit::of(scale);
    let tiles =
        || masses.block_tiles().iter().enumerate().filter_map(|(t, b)| Some((t, b, masses.head_tile(head, t)?)));
    let start = out.len();
    for (t, b, r) in tiles() {
        let n = blocks.saturating_sub(t * TILE).min(TILE);
        out.extend((0..n).map(|i| unit.key([r.w[i], r.p[i], r.exponent[i]], b.radius[i], r.delta[i], r.lambda[i])));
    }
    out.resize(start + blocks, 0.0);
    for (t, b, r) in tiles() {
        let n = blocks.saturating_sub(t * TILE).min(TILE);
        out.extend((0..n).map(|i| unit.value([r.w[i], r.p[i], r.exponent[i]], b.eta[i], b.sop[i], r.digit[i])));
    }
    out.resize(start + 2 * blocks, 0.0);
}

/// What `head` attends to of each block: `rho_b` (1.5).
pub(crate) fn masses(scale: &HeadScale, masses: &Masses, head: usize, blocks: usize, out: &mut Vec<f32>) {
    let unit = Unit::of(scale);
    for t in 0..blocks.div_ceil(TILE) {
        let (Some(r), n) = (masses.head_tile(head, t), (blocks - t * TILE).min(TILE)) else { continue };
        out.extend((0..n).map(|i| r.w[i] * power(r.exponent[i] - unit.exponent) * unit.inverse));
    }
}

/// What leaving the values of each block unread would cost `head`'s bound: `rho_b R_b`.
pub(crate) fn skips(scale: &HeadScale, masses: &Masses, head: usize, blocks: usize, out: &mut Vec<f32>) {
    let unit = Unit::of(scale);
    for (t, b) in masses.block_tiles().iter().enumerate() {
        let (Some(r), n) = (masses.head_tile(head, t), blocks.saturating_sub(t * TILE).min(TILE)) else { continue };
        out.extend((0..n).map(|i| r.w[i] * power(r.exponent[i] - unit.exponent) * unit.inverse * b.radius[i]));
    }
}

/// What a side that was read exactly would have cost the bound, from what is remembered of its codes.
pub(crate) fn key_gain(scale: &HeadScale, m: &Mass, delta: f32, lambda: f32) -> f32 {
    Unit::of(scale).key([m.w, m.p, m.exponent], m.radius, delta, lambda)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quick_exponentials_are_near_enough() {
        for i in 1..=300 {
            let x = i as f32 * 0.01;
            assert!((expm1(x) / x.exp_m1() - 1.0).abs() < 2e-3, "{x}");
        }
        assert_eq!((power(3.0), power(-200.0)), (8.0, f32::MIN_POSITIVE));
        assert!(judged(f32::NAN).is_infinite());
    }
}
