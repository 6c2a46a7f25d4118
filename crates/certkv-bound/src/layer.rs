//! What head certificates say about a layer and about a sampled token, math.md section 11, and no more than that.
use crate::terms::product;

/// `||y - y'|| <= sum_h ||W_h||_op E_h` (11.1), `y` the layer's output projection. NaN and missing entries give `+inf`.
pub fn layer_sum(projection_norms: &[f64], errors: &[f64]) -> f64 {
    if projection_norms.len() != errors.len() {
        return f64::INFINITY;
    }
    projection_norms.iter().zip(errors).map(|(&w, &e)| product(w, e)).sum()
}

/// `||y - y'|| <= ||W_o||_op (sum_h E_h^2)^(1/2)` (11.1), the other form; use the lesser.
pub fn layer_norm(projection_norm: f64, errors: &[f64]) -> f64 {
    product(projection_norm, errors.iter().map(|&e| product(e, e)).sum::<f64>().sqrt())
}

/// Equal split of a layer budget over heads, `eps_h = eps_L/(H ||W_h||_op)` (11.2).
pub fn equal_split(budget: f64, heads: usize, head_projection_norm: f64) -> f64 {
    budget / (heads as f64 * head_projection_norm)
}

/// Equal split by the joint norm, `eps_h = eps_L/(sqrt(H) ||W_o||_op)` (11.2).
pub fn norm_split(budget: f64, heads: usize, projection_norm: f64) -> f64 {
    budget / ((heads as f64).sqrt() * projection_norm)
}

/// Total variation between the token distributions of two runs whose final logits differ by at most `lam` in the max
/// norm, at temperature `tau` (11.4). A statement given `lam`; nothing here provides a rigorous `lam` for a deep network.
pub fn token_tv(lam: f64, temperature: f64) -> f64 {
    if !(lam >= 0.0 && temperature > 0.0) {
        return 1.0;
    }
    (lam / (2.0 * temperature)).tanh()
}

/// Greedy tokens of the two runs agree: the top-two margin exceeds `2 lam` (11.4).
pub fn greedy_agrees(margin: f64, lam: f64) -> bool {
    margin > 2.0 * lam
}

/// There is a coupling in which all tokens agree with at least this probability, `1 - sum TV` (11.4), at least 0.
pub fn agreement_probability(token_tvs: &[f64]) -> f64 {
    let p = 1.0 - token_tvs.iter().sum::<f64>();
    if p >= 0.0 { p } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_splits_meet_their_budget() {
        let (h, w) = (8, 3.0);
        let e = equal_split(0.6, h, w);
        assert!((layer_sum(&[w; 8], &[e; 8]) - 0.6).abs() < 1e-12);
        let e = norm_split(0.6, h, w);
        assert!((layer_norm(w, &[e; 8]) - 0.6).abs() < 1e-12);
    }

    #[test]
    fn unknown_is_infinite_or_certain_disagreement() {
        assert_eq!(layer_sum(&[1.0], &[f64::NAN]), f64::INFINITY);
        assert_eq!(layer_sum(&[1.0], &[]), f64::INFINITY);
        assert_eq!(layer_norm(1.0, &[f64::NAN]), f64::INFINITY);
        assert_eq!(token_tv(f64::NAN, 1.0), 1.0);
        assert!(!greedy_agrees(f64::NAN, 0.0) && greedy_agrees(0.3, 0.1) && !greedy_agrees(0.2, 0.1));
        assert_eq!(agreement_probability(&[f64::NAN]), 0.0);
    }

    /// (11.4) on the two-token distribution, where the tanh is attained.
    #[test]
    fn token_tv_is_attained_at_even_odds() {
        let lam: f64 = 0.2;
        // From (-lam/2, lam/2) to (lam/2, -lam/2) each logit moves by lam and the distributions differ by the bound.
        let a = 1.0 / (1.0 + (-lam).exp());
        assert!(((2.0 * a - 1.0) - token_tv(lam, 1.0)).abs() < 1e-12);
        assert!((agreement_probability(&[0.1, 0.2]) - 0.7).abs() < 1e-12);
    }
}
