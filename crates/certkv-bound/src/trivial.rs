//! The cap that needs no logits, and the certificate that is emitted, math.md (5.14) and (5.15).

/// `||O - O'|| <= max D_b` over the visible blocks (5.14): `O` is an average of visible values, all within
/// `D_b = R_b + ||O' - c||` of `O'`. `radii` are the `R_b` of every block with a visible token, dropped ones included;
/// `sink_out_norm` is `||O'||` if a sink token of value 0 takes part. NaN gives `+inf`.
pub fn trivial_cap(radii: impl IntoIterator<Item = f64>, out_distance: f64, sink_out_norm: Option<f64>) -> f64 {
    let larger = |m: f64, x: f64| {
        if x <= m {
            m
        } else if x.is_nan() {
            f64::INFINITY
        } else {
            x
        }
    };
    let blocks = radii.into_iter().map(|r| r + out_distance).fold(0.0, larger);
    sink_out_norm.into_iter().fold(blocks, larger)
}

/// The emitted certificate `E` (5.15): the least of the streaming form (5.10), the root (5.13) if it was computed and
/// the cap (5.14). Each is a bound by itself, so one that is NaN counts as not computed.
pub fn emitted(streaming: f64, root: Option<f64>, cap: f64) -> f64 {
    [streaming, root.unwrap_or(f64::INFINITY), cap].into_iter().fold(f64::INFINITY, |m, x| if x < m { x } else { m })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cap_is_the_largest_distance_and_nan_fails_closed() {
        assert_eq!(trivial_cap([1.0, 3.0, 2.0], 0.5, None), 3.5);
        assert_eq!(trivial_cap([1.0], 0.5, Some(4.0)), 4.0);
        assert_eq!(trivial_cap([f64::NAN, 1.0], 0.5, None), f64::INFINITY);
        assert_eq!(trivial_cap([1.0], 0.5, Some(f64::NAN)), f64::INFINITY);
        assert_eq!(trivial_cap([1.0], f64::NAN, None), f64::INFINITY);
    }

    #[test]
    fn the_least_is_emitted() {
        assert_eq!(emitted(0.3, Some(0.2), 0.5), 0.2);
        assert_eq!(emitted(f64::INFINITY, None, 0.5), 0.5);
        assert_eq!(emitted(f64::NAN, None, f64::NAN), f64::INFINITY);
    }
}
