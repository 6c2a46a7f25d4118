//! What to do with one head after a pass, math.md (8.1).

/// What is known after the pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Situation {
    /// Emitted certificate `E` (5.15).
    pub bound: f64,
    /// Its key component.
    pub e_key: f64,
    /// Its value component.
    pub e_val: f64,
    /// Absolute tolerance.
    pub tol: f64,
    /// The requested ranking condition holds, or none was requested.
    pub rank_ok: bool,
    /// No canary failed.
    pub integrity_ok: bool,
    /// The slow tier can be read.
    pub tier_ok: bool,
    /// `|F|`.
    pub promoted_keys: usize,
    /// Largest `|F|` allowed.
    pub key_cap: usize,
    /// Repairs made so far.
    pub repairs: u32,
    /// Repairs allowed.
    pub max_repairs: u32,
}

/// The decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Return the output.
    Accept,
    /// Rung 1: more exact keys, by (6.6).
    MoreKeys,
    /// Rung 2: more exact values, by (6.6).
    ExactValues,
    /// Rung 3: dense for the head.
    DenseHead,
    /// Rung 4: dense for the layer.
    DenseLayer,
    /// The slow tier is needed and unavailable: an error and no output.
    Unavailable,
}

/// The first match of (8.1). NaN in a component counts as too large.
pub fn decide(s: &Situation) -> Action {
    let action = if !s.integrity_ok {
        Action::DenseLayer
    } else if !s.rank_ok {
        Action::DenseHead
    } else if s.bound <= s.tol {
        return Action::Accept;
    } else if s.repairs >= s.max_repairs {
        Action::DenseHead
    } else if !(s.e_key < s.e_val) && s.promoted_keys < s.key_cap {
        Action::MoreKeys
    } else if !(s.e_val <= 0.0) {
        Action::ExactValues
    } else {
        Action::DenseHead
    };
    if s.tier_ok { action } else { Action::Unavailable }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Situation = Situation {
        bound: 1.5,
        e_key: 1.0,
        e_val: 0.5,
        tol: 0.1,
        rank_ok: true,
        integrity_ok: true,
        tier_ok: true,
        promoted_keys: 4,
        key_cap: 8,
        repairs: 0,
        max_repairs: 2,
    };

    #[test]
    fn first_match_wins() {
        for (s, want) in [
            (BASE, Action::MoreKeys),
            (Situation { promoted_keys: 8, ..BASE }, Action::ExactValues),
            (Situation { e_key: 0.1, ..BASE }, Action::ExactValues),
            (Situation { promoted_keys: 8, e_val: 0.0, ..BASE }, Action::DenseHead),
            (Situation { repairs: 2, ..BASE }, Action::DenseHead),
            (Situation { tol: 2.0, ..BASE }, Action::Accept),
            (Situation { tol: 2.0, tier_ok: false, ..BASE }, Action::Accept),
            (Situation { tol: 2.0, rank_ok: false, ..BASE }, Action::DenseHead),
            (Situation { tol: 2.0, rank_ok: false, integrity_ok: false, ..BASE }, Action::DenseLayer),
            (Situation { tier_ok: false, ..BASE }, Action::Unavailable),
            (Situation { bound: f64::NAN, tol: 2.0, ..BASE }, Action::MoreKeys),
            (Situation { tol: f64::NAN, ..BASE }, Action::MoreKeys),
            (Situation { e_val: f64::NAN, promoted_keys: 8, ..BASE }, Action::ExactValues),
        ] {
            assert_eq!(decide(&s), want, "{s:?}");
        }
    }
}
