//! What each block's keys and values contribute to a head's certificate: the gains of math.md (6.5).
use certkv_bound::terms;
use certkv_kernel::{Mass, Masses, Partial};

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
        let to = f64::from(m.exponent - self.exponent).exp2() / self.total;
        (f64::from(m.w) * to, f64::from(m.p) * to)
    }
}

/// What cannot be judged is read exactly: NaN becomes an infinite gain.
fn judged(x: f64) -> f32 {
    if x.is_nan() { f32::INFINITY } else { x as f32 }
}

/// Gain of reading the block's keys exactly, `g_b D_b + eps h_b`, for a given `Delta_b` and `Lambda_b`.
pub(crate) fn key_gain(scale: &HeadScale, mass: &Mass, delta: f32, lambda: f32) -> f32 {
    let (rho, p) = scale.masses(mass);
    if !(delta > 0.0) {
        return if delta == 0.0 { 0.0 } else { f32::INFINITY };
    }
    let (g, h) = terms::key_terms(rho, p, f64::from(delta), f64::from(lambda));
    judged(g * (f64::from(mass.radius) + scale.radius) + scale.eps * h)
}

/// Gain of reading the block's values exactly, `c_b`, for given `eta_b` and `sop_b`.
pub(crate) fn value_gain(scale: &HeadScale, mass: &Mass, eta: f32, sop: f32) -> f32 {
    let (rho, p) = scale.masses(mass);
    let digit = f64::from(mass.digit) * f64::from(mass.exponent - scale.exponent).exp2() / scale.total;
    judged(terms::value_term(rho, p, f64::from(eta), f64::from(sop)) + digit)
}

/// Gains of head `head` over `blocks` blocks, keys then values, 0 where a side is exact already.
pub(crate) fn gains(scale: &HeadScale, masses: &Masses, head: usize, blocks: usize, out: &mut Vec<f32>) {
    let entry = |b: usize| masses.get(head, b);
    out.extend((0..blocks).map(|b| match entry(b) {
        Some(m) if !m.exact_keys => key_gain(scale, &m, m.delta, m.lambda),
        _ => 0.0,
    }));
    out.extend((0..blocks).map(|b| match entry(b) {
        Some(m) if !m.exact_values => value_gain(scale, &m, m.eta, m.sop),
        _ => 0.0,
    }));
}
