//! Attention in double precision over the stored originals: what a certificate speaks about.
use crate::model::tape::LayerRows;
use half::f16;

/// Exact attention of the query heads of one layer and step.
#[derive(Debug, Clone, Default)]
pub struct Exact {
    /// Outputs, `[heads][head_dim]`.
    pub outputs: Vec<f64>,
    /// Softmax weight of each token, `[heads][tokens]`.
    pub weights: Vec<f64>,
}

/// Recomputes one step from half-precision rows given in pieces (prompt, then what was decoded since).
/// `q` is `[heads][head_dim]`.
pub fn attention(pieces: [&LayerRows; 2], q: &[f32], heads: usize, kv_heads: usize) -> Exact {
    let d = q.len() / heads.max(1);
    let (width, group) = (kv_heads * d, heads / kv_heads.max(1));
    let tokens = pieces.iter().map(|p| p.keys.len()).sum::<usize>() / width.max(1);
    let scale = (d as f64).powf(-0.5);
    let mut exact = Exact { outputs: vec![0.0; q.len()], weights: vec![0.0; heads * tokens] };
    let rows = |side: fn(&LayerRows) -> &Vec<f16>| pieces.map(|p| side(p).chunks_exact(width)).into_iter().flatten();
    let mut wide = vec![0.0f64; d];
    for head in 0..kv_heads {
        let queries = head * group..(head + 1) * group;
        for (t, row) in rows(|p| &p.keys).enumerate() {
            widen(&row[head * d..(head + 1) * d], &mut wide);
            for h in queries.clone() {
                let dot: f64 = q[h * d..(h + 1) * d].iter().zip(&wide).map(|(a, b)| f64::from(*a) * b).sum();
                exact.weights[h * tokens + t] = dot * scale;
            }
        }
        for h in queries.clone() {
            let scores = &mut exact.weights[h * tokens..(h + 1) * tokens];
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores
                .iter_mut()
                .map(|s| {
                    *s = (*s - largest).exp();
                    *s
                })
                .sum();
            scores.iter_mut().for_each(|s| *s /= sum);
        }
        for (t, row) in rows(|p| &p.values).enumerate() {
            widen(&row[head * d..(head + 1) * d], &mut wide);
            for h in queries.clone() {
                let weight = exact.weights[h * tokens + t];
                for (o, v) in exact.outputs[h * d..(h + 1) * d].iter_mut().zip(&wide) {
                    *o += weight * v;
                }
            }
        }
    }
    exact
}

fn widen(from: &[f16], to: &mut [f64]) {
    for (t, f) in to.iter_mut().zip(from) {
        *t = f64::from(f.to_f32());
    }
}

impl Exact {
    /// `||O - out||` of query head `head`.
    pub fn error(&self, head: usize, out: &[f32]) -> f64 {
        let d = out.len();
        let sum: f64 =
            self.outputs[head * d..(head + 1) * d].iter().zip(out).map(|(a, b)| (a - f64::from(*b)).powi(2)).sum();
        sum.sqrt()
    }

    /// `||O||` of query head `head` of `d` channels.
    pub fn norm(&self, head: usize, d: usize) -> f64 {
        self.outputs[head * d..(head + 1) * d].iter().map(|x| x * x).sum::<f64>().sqrt()
    }

    /// Mass of the heaviest blocks of `block` tokens: entry `i` is what the heaviest `shares[i]` of all blocks hold.
    pub fn coverage(&self, head: usize, heads: usize, block: usize, shares: &[f64]) -> Vec<f64> {
        let tokens = self.weights.len() / heads.max(1);
        let mut masses: Vec<f64> =
            self.weights[head * tokens..(head + 1) * tokens].chunks(block.max(1)).map(|b| b.iter().sum()).collect();
        masses.sort_unstable_by(|a, b| b.total_cmp(a));
        let mut covered = vec![0.0];
        for m in &masses {
            covered.push(covered[covered.len() - 1] + m);
        }
        shares
            .iter()
            .map(|share| {
                let at = (share.clamp(0.0, 1.0) * masses.len() as f64).clamp(0.0, masses.len() as f64);
                let (low, high) = (covered[at.floor() as usize], covered[at.ceil() as usize]);
                low + (high - low) * at.fract()
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_tokens_by_hand() {
        let rows = |k: &[f32], v: &[f32]| LayerRows {
            keys: k.iter().map(|&x| f16::from_f32(x)).collect(),
            values: v.iter().map(|&x| f16::from_f32(x)).collect(),
        };
        // One kv head of 4 channels; scores 0 and ln 3 give weights 1/4 and 3/4.
        let q = [2.0 * 3f32.ln(), 0.0, 0.0, 0.0];
        let e = attention(
            [&rows(&[0.0; 4], &[4.0, 0.0, 0.0, 0.0]), &rows(&[1.0, 0.0, 0.0, 0.0], &[0.0, 4.0, 0.0, 0.0])],
            &q,
            1,
            1,
        );
        assert!((e.outputs[0] - 1.0).abs() < 1e-6 && (e.outputs[1] - 3.0).abs() < 1e-6, "{e:?}");
        assert!((e.error(0, &[1.0, 3.0, 0.0, 2.0]) - 2.0).abs() < 1e-6);
        assert!((e.norm(0, 4) - 10f64.sqrt()).abs() < 1e-6);
        let c = e.coverage(0, 1, 1, &[0.0, 0.25, 0.5, 1.0]);
        for (got, want) in c.iter().zip([0.0, 0.375, 0.75, 1.0]) {
            assert!((got - want).abs() < 1e-6);
        }
    }
}
