//! Attention in f64.

/// Attention over some tokens, and their logits.
pub fn dense_over(seen: &[usize], q: &[f64], keys: &[f64], values: &[f64], scale: f64) -> (Vec<f64>, Vec<f64>) {
    let of = |rows: &[f64]| -> Vec<f64> {
        seen.iter().flat_map(|t| rows[t * q.len()..(t + 1) * q.len()].iter().copied()).collect()
    };
    dense(q, &of(keys), &of(values), scale)
}

pub fn dense(q: &[f64], keys: &[f64], values: &[f64], scale: f64) -> (Vec<f64>, Vec<f64>) {
    let d = q.len();
    let logits: Vec<f64> =
        keys.chunks_exact(d).map(|k| scale * k.iter().zip(q).map(|(a, b)| a * b).sum::<f64>()).collect();
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logits.iter().map(|z| (z - most).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut out = vec![0.0; d];
    for (v, w) in values.chunks_exact(d).zip(&weights) {
        out.iter_mut().zip(v).for_each(|(o, v)| *o += w / total * v);
    }
    (out, logits)
}

pub fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| (x - y).powi(2)).sum::<f64>().sqrt()
}
