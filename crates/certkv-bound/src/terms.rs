//! The terms of one block, math.md (5.8) and (5.9), with the edge rules of section 14.
//!
//! All functions take unnormalised or normalised masses alike: `mass` is `W` or `rho`, `root` is `P` or `p`.

/// `a * b` for non-negative factors, with `0 * inf = 0` (math.md section 14) and NaN or a negative factor giving
/// `+inf`, so that a damaged annotation can only widen a bound.
#[inline]
pub fn product(a: f64, b: f64) -> f64 {
    if !(a >= 0.0 && b >= 0.0) {
        f64::INFINITY
    } else if a == 0.0 || b == 0.0 {
        0.0
    } else {
        a * b
    }
}

/// `(e^x - 1)/x`, 1 at 0; `+inf` on overflow, NaN or a negative argument.
#[inline]
pub fn phi(x: f64) -> f64 {
    phi_of(x, x.exp_m1())
}

/// [`phi`] of `x`, where `e^x - 1` is known.
#[inline]
fn phi_of(x: f64, grown: f64) -> f64 {
    if !(x >= 0.0) {
        f64::INFINITY
    } else if x == 0.0 {
        1.0
    } else if x == f64::INFINITY {
        f64::INFINITY
    } else {
        grown / x
    }
}

/// The two key terms of a block of `T`: `(g_b, h_b)` of (5.9) for a logit error of at most `delta` in magnitude and at
/// most `lambda` in the 2-norm (`+inf` if unknown).
///
/// `g` bounds `sum a'|e^delta - 1|`, `h` bounds `sum a'(1 - e^delta)^+`.
#[inline]
pub fn key_terms(mass: f64, root: f64, delta: f64, lambda: f64) -> (f64, f64) {
    key_terms_one_sided(mass, root, delta, delta, lambda)
}

/// `g_b` of [`key_terms`] alone, for half of the exponentials: where both sides have one bound, `e^x - 1` is the larger of the two.
#[inline]
pub fn key_growth(mass: f64, root: f64, delta: f64, lambda: f64) -> f64 {
    if mass == 0.0 {
        return 0.0;
    }
    if !(delta >= 0.0 && lambda >= 0.0) {
        return f64::INFINITY;
    }
    let grown = delta.exp_m1();
    product(mass, grown).min(product(phi_of(delta, grown), product(root, lambda)))
}

/// [`key_terms`] with separate bounds `delta_up >= delta_t` and `delta_down >= -delta_t` (4.3).
#[inline]
pub fn key_terms_one_sided(mass: f64, root: f64, delta_up: f64, delta_down: f64, lambda: f64) -> (f64, f64) {
    if mass == 0.0 {
        return (0.0, 0.0);
    }
    if !(delta_up >= 0.0 && delta_down >= 0.0 && lambda >= 0.0) {
        return (f64::INFINITY, f64::INFINITY);
    }
    let down = product(mass, -(-delta_down).exp_m1());
    let grown = delta_up.exp_m1();
    let up = product(mass, grown).max(down);
    let spread = product(root, lambda);
    (up.min(product(phi_of(delta_up, grown), spread)), down.min(spread))
}

/// One block's contribution to `E_val`, `min(mass eta, root sop)` of (5.8).
#[inline]
pub fn value_term(mass: f64, root: f64, eta: f64, sop: f64) -> f64 {
    if mass == 0.0 {
        return 0.0;
    }
    if !(eta >= 0.0 && sop >= 0.0) {
        return f64::INFINITY;
    }
    product(mass, eta).min(product(root, sop))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phi_is_one_at_zero_and_never_below_the_series() {
        assert_eq!(phi(0.0), 1.0);
        for k in -40..9 {
            let x = 2f64.powi(k);
            assert!(phi(x) >= 1.0 + x / 2.0 - 1e-15, "{x}");
        }
        assert_eq!(phi(1e4), f64::INFINITY);
        assert_eq!(phi(f64::INFINITY), f64::INFINITY);
        assert_eq!(phi(f64::NAN), f64::INFINITY);
    }

    #[test]
    fn edge_rules_of_section_14() {
        assert_eq!(key_terms(0.0, 0.0, f64::INFINITY, f64::INFINITY), (0.0, 0.0));
        assert_eq!(key_terms(0.5, 0.5, 0.0, 3.0), (0.0, 0.0));
        assert_eq!(key_terms(0.5, 0.5, f64::INFINITY, 0.0), (0.0, 0.0), "no error in the 2-norm is no error");
        assert_eq!(key_terms(0.5, 0.5, 1e4, 1.0).0, f64::INFINITY, "expm1 overflows");
        assert!(key_terms(0.5, 0.5, 1e4, 1.0).1 <= 0.5);
        assert_eq!(value_term(0.0, 0.0, f64::INFINITY, f64::INFINITY), 0.0);
    }

    #[test]
    fn growth_is_the_first_of_the_key_terms() {
        let numbers = [0.0, 1e-300, 1e-9, 0.03, 0.4, 1.0, 7.0, 1e4, f64::INFINITY, f64::NAN, -1.0];
        for mass in [0.0, 1e-12, 0.3, 1.0] {
            for delta in numbers {
                for lambda in numbers {
                    let (one, both) =
                        (key_growth(mass, mass / 2.0, delta, lambda), key_terms(mass, mass / 2.0, delta, lambda).0);
                    assert_eq!(one.to_bits(), both.to_bits(), "{mass} {delta} {lambda}: {one} {both}");
                }
            }
        }
    }

    #[test]
    fn damage_widens() {
        for bad in [f64::NAN, -1.0] {
            assert_eq!(key_terms(0.1, 0.1, bad, 1.0), (f64::INFINITY, f64::INFINITY));
            assert_eq!(key_terms(0.1, 0.1, 0.1, bad), (f64::INFINITY, f64::INFINITY));
            assert_eq!(value_term(0.1, 0.1, bad, 0.0), f64::INFINITY);
            assert_eq!(value_term(0.1, 0.1, 0.0, bad), f64::INFINITY);
            assert_eq!(value_term(bad, 0.1, 0.1, 0.1), 0.1 * 0.1);
        }
        assert_eq!(value_term(f64::NAN, f64::NAN, 0.1, 0.1), f64::INFINITY);
    }

    #[test]
    fn one_sided_terms_are_never_larger() {
        let (g, h) = key_terms(0.3, 0.2, 0.4, f64::INFINITY);
        let (g1, h1) = key_terms_one_sided(0.3, 0.2, 0.1, 0.4, f64::INFINITY);
        assert!(g1 < g && h1 == h);
        assert!(g1 >= 0.3 * (1.0 - (-0.4f64).exp()), "the first argument of g is the larger of the two sides");
    }
}
