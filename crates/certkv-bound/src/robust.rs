//! A certificate promised before anything is promoted, math.md (6.10).
use crate::stream::{Annotation, LEAST_SLACK};
use crate::terms::{key_terms, product, value_term};

/// One compressed block after an all-code pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// `rho_b` with every compressed block in `T`.
    pub mass: f64,
    /// `p_b` of the same pass.
    pub root: f64,
    /// The block's bounds for this head.
    pub annotation: Annotation,
    /// Its keys will be exact.
    pub promote_keys: bool,
    /// Its values will be exact.
    pub promote_values: bool,
}

/// (6.10): no certificate achieved after the promotions exceeds this. `out_cap >= ||O'' - c||` for the output after
/// promotion, for instance `max_b (R_b + eta_b)` over all visible blocks. Nothing may have been dropped.
pub fn robust_bound(blocks: &[Candidate], out_cap: f64) -> f64 {
    let (mut numerator, mut h_all) = (0.0, 0.0);
    for b in blocks {
        let a = &b.annotation;
        let (g, h) = key_terms(b.mass, b.root, a.delta, a.lambda);
        h_all += h;
        if !b.promote_keys {
            numerator += product(g, a.radius + out_cap);
        }
        if !b.promote_values {
            let growth = if b.promote_keys { a.delta.exp() } else { 1.0 };
            numerator += product(value_term(b.mass, b.root, a.eta, a.sop), growth);
        }
    }
    let slack = 1.0 - h_all;
    if slack > LEAST_SLACK && numerator < f64::INFINITY { numerator / slack } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promotion_only_lowers_it_and_damage_is_infinite() {
        let annotation = Annotation { delta: 0.1, lambda: f64::INFINITY, radius: 1.0, eta: 0.2, sop: f64::INFINITY };
        let b = Candidate { mass: 0.3, root: 0.2, annotation, promote_keys: false, promote_values: false };
        let none = robust_bound(&[b, b], 1.5);
        let keys = robust_bound(&[Candidate { promote_keys: true, ..b }, b], 1.5);
        let both = robust_bound(&[Candidate { promote_keys: true, promote_values: true, ..b }, b], 1.5);
        assert!(both < keys && keys < none && none < f64::INFINITY);
        let bad = Candidate { annotation: Annotation { eta: f64::NAN, ..annotation }, ..b };
        assert_eq!(robust_bound(&[bad], 1.5), f64::INFINITY);
        assert_eq!(robust_bound(&[b], f64::NAN), f64::INFINITY);
        assert_eq!(robust_bound(&[], 1.0), 0.0);
    }
}
