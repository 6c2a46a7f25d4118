//! Logit-error bounds that any codec can use, math.md section 4.
//!
//! Queries and errors are slices over channels, `scale` is the logit scale `s`. Results are in nats, computed in
//! float64 and multiplied by `1 + 2^-40`, so that the rounding of the sum cannot take a bound below its formula.
use crate::numeric::{UP, norm};

/// `Delta = s sum_c |q_c| e_c`, math.md (4.2). `errors[c]` bounds `|k_tc - k^_tc|` over the block.
pub fn delta_channels(q: &[f64], errors: &[f64], scale: f64) -> f64 {
    scale * q.iter().zip(errors).map(|(q, e)| q.abs() * e).sum::<f64>() * UP
}

/// One-sided form `(Delta+, Delta-)`, math.md (4.3). `above[c]` bounds `k - k^`, `below[c]` bounds `k^ - k`, both >= 0.
pub fn delta_signed(q: &[f64], above: &[f64], below: &[f64], scale: f64) -> (f64, f64) {
    let (mut up, mut down) = (0.0, 0.0);
    for (q, (a, b)) in q.iter().zip(above.iter().zip(below)) {
        let (plus, minus) = (q.max(0.0), (-q).max(0.0));
        up += plus * a + minus * b;
        down += plus * b + minus * a;
    }
    (scale * up * UP, scale * down * UP)
}

/// `Delta = s sum_G ||q_G|| e_G`, math.md (4.4), for groups of `group` neighbouring channels; with
/// `errors[G] = ||E_G||_op` it is `Lambda`, (4.9).
pub fn delta_groups(q: &[f64], errors: &[f64], group: usize, scale: f64) -> f64 {
    scale * q.chunks(group.max(1)).zip(errors).map(|(q, e)| norm(q) * e).sum::<f64>() * UP
}

/// `Delta = s ||q|| eps`, math.md (4.5); with `eps = ||E||_op` it is `Lambda`, (4.9) with one group.
pub fn delta_norm(q: &[f64], eps: f64, scale: f64) -> f64 {
    scale * norm(q) * eps * UP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_agree_where_they_must() {
        let q = [1.0, -2.0, 0.5, 4.0];
        let e = [0.25, 0.5, 0.125, 1.0];
        let two_sided = delta_channels(&q, &e, 0.5);
        assert!((two_sided - 0.5 * (0.25 + 1.0 + 0.0625 + 4.0)).abs() < 1e-9);
        // Equal errors on both sides give the two-sided form, and groups of one channel the channel form.
        let (up, down) = delta_signed(&q, &e, &e, 0.5);
        assert_eq!((up, down), (two_sided, two_sided));
        assert_eq!(delta_groups(&q, &e, 1, 0.5), two_sided);
        assert_eq!(delta_groups(&q, &[3.0], 4, 0.5), delta_norm(&q, 3.0, 0.5));
        // One-sided errors: only positive q with positive errors push up.
        assert_eq!(delta_signed(&[1.0, -1.0], &[1.0, 0.0], &[0.0, 0.0], 1.0), (UP, 0.0));
    }
}
