//! What codes of keys do to the logits of a text that they were not calibrated on.
use super::{run::watch, watch::Rows};
use crate::model::{AttentionError, Llama, ModelError};
use certkv_codec::CodecError;
use certkv_control::{calibration::Heads, danger};
use certkv_core::{Dtype, round};
use rayon::prelude::*;

/// Most attended tokens that are compared.
pub(crate) const TOP: usize = 10;
/// Tokens of a block: what the default format has.
pub const BLOCK: usize = 64;
/// Every so manyth query of the second half is measured.
const STRIDE: usize = 4;

/// Queries and keys of a text, by layer, token-major.
#[derive(Debug, Clone)]
pub struct Captured {
    heads: Heads,
    layers: Vec<(Vec<f32>, Vec<f32>)>,
}

impl Rows for Captured {
    fn see(&mut self, layer: usize, q: &[f32], k: &[f32], _: &[f32]) -> Result<(), AttentionError> {
        let rows = self.layers.get_mut(layer).ok_or(AttentionError::Order("layer past the end"))?;
        rows.0.extend_from_slice(q);
        rows.1.extend(originals(k));
        Ok(())
    }
}

/// Keys as a cache stores them: its originals have half precision, and codes are made from those.
pub(crate) fn originals(k: &[f32]) -> impl Iterator<Item = f32> {
    k.iter().map(|x| round::nearest(f64::from(*x), Dtype::F16.into()) as f32)
}

/// Runs the model over one sequence and keeps its queries and keys.
///
/// # Errors
/// What the model says.
pub fn capture(model: &Llama, heads: Heads, tokens: &[u32], done: impl FnMut(usize)) -> Result<Captured, ModelError> {
    let mut rows = Captured { heads, layers: vec![Default::default(); heads.layers] };
    watch(model, &[tokens], &mut rows, done)?;
    Ok(rows)
}

/// Decoded keys (tokens, channels) of a layer's key head, and the bytes of one key.
type Coded = Result<(Vec<f64>, f64), CodecError>;

/// Codes the keys (tokens, channels) of a layer and key head.
type Coder<'a> = dyn Fn(usize, usize, &[f64]) -> Coded + Sync + 'a;

/// A way to code keys.
pub struct Way<'a> {
    /// Its name in tables.
    pub name: String,
    /// What it does with keys.
    pub code: Box<Coder<'a>>,
}

/// Errors of one way to code over one text.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Name of the way.
    pub name: String,
    /// Mean absolute error of a logit, by layer, in nats.
    pub error: Vec<f64>,
    /// Mean `KL(p || p')` of attention over all layers and heads, in nats.
    pub divergence: f64,
    /// Mean share of the ten most attended tokens that stay among the ten.
    pub overlap: f64,
    /// Mean share of attention that goes elsewhere, half the sum of its changes, by layer.
    pub moved: Vec<f64>,
    /// Share of queries whose heaviest block of [`BLOCK`] tokens is certain (9.23) were the largest true error of each block its bound: no
    /// bound leaves more of them certain.
    pub certain: f64,
    /// Bytes of a key: codes packed, two for each radius.
    pub bytes: f64,
}

/// Sums over the queries of one key head.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    logits: f64,
    error: f64,
    queries: f64,
    divergence: f64,
    overlap: f64,
    moved: f64,
    certain: f64,
    bytes: f64,
}

/// Codes the keys of `rows` in each of the ways, and compares logits: queries of the second half, each with all tokens up to its own.
///
/// # Errors
/// What a codec refuses.
pub fn measure(rows: &Captured, ways: &[Way<'_>], mut done: impl FnMut()) -> Result<Vec<Measured>, CodecError> {
    let heads = rows.heads;
    let mut sums = vec![vec![Sums::default(); heads.layers]; ways.len()];
    for layer in 0..heads.layers {
        for head in 0..heads.kv_heads {
            let seen = Head::new(rows, layer, head);
            let found: Vec<Sums> = ways
                .par_iter()
                .map(|way| {
                    let (decoded, bytes) = (way.code)(layer, head, &seen.keys)?;
                    Ok(seen.compare(&decoded, bytes))
                })
                .collect::<Result<_, CodecError>>()?;
            for (sums, found) in sums.iter_mut().zip(found) {
                let sum = &mut sums[layer];
                *sum = Sums {
                    logits: sum.logits + found.logits,
                    error: sum.error + found.error,
                    queries: sum.queries + found.queries,
                    divergence: sum.divergence + found.divergence,
                    overlap: sum.overlap + found.overlap,
                    moved: sum.moved + found.moved,
                    certain: sum.certain + found.certain,
                    bytes: sum.bytes + found.bytes,
                };
            }
            done();
        }
    }
    Ok(ways.iter().zip(sums).map(|(way, layers)| finish(way.name.clone(), &heads, &layers)).collect())
}

fn finish(name: String, heads: &Heads, layers: &[Sums]) -> Measured {
    let total = |f: fn(&Sums) -> f64| layers.iter().map(f).sum::<f64>();
    let queries = total(|s| s.queries);
    Measured {
        name,
        error: layers.iter().map(|s| s.error / s.logits).collect(),
        divergence: total(|s| s.divergence) / queries,
        overlap: total(|s| s.overlap) / queries,
        moved: layers.iter().map(|s| s.moved / s.queries).collect(),
        certain: total(|s| s.certain) / queries,
        bytes: total(|s| s.bytes) / (heads.layers * heads.kv_heads) as f64,
    }
}

/// The keys of one head, the queries that read them, and what those say of the keys as they are.
struct Head {
    dim: usize,
    keys: Vec<f64>,
    queries: Vec<Query>,
}

/// A query that is measured.
struct Query {
    q: Vec<f32>,
    /// Of the tokens that it sees.
    logits: Vec<f64>,
    top: Vec<usize>,
}

impl Head {
    fn new(rows: &Captured, layer: usize, head: usize) -> Self {
        let Heads { q_heads, kv_heads, head_dim: dim, .. } = rows.heads;
        let (q, k) = &rows.layers[layer];
        let keys: Vec<f32> =
            k.chunks_exact(kv_heads * dim).flat_map(|row| &row[head * dim..(head + 1) * dim]).copied().collect();
        let tokens = keys.len() / dim;
        let mut queries = Vec::new();
        for token in (tokens / 2..tokens).step_by(STRIDE) {
            for reader in head * rows.heads.group()..(head + 1) * rows.heads.group() {
                let at = (token * q_heads + reader) * dim;
                let q = q[at..at + dim].to_vec();
                let logits = logits(&q, &keys[..(token + 1) * dim]);
                queries.push(Query { q, top: top(&logits), logits });
            }
        }
        Self { dim, keys: keys.iter().map(|x| f64::from(*x)).collect(), queries }
    }

    fn compare(&self, decoded: &[f64], bytes: f64) -> Sums {
        let decoded: Vec<f32> = decoded.iter().map(|x| *x as f32).collect();
        let mut sums = Sums { bytes, ..Sums::default() };
        for Query { q, logits: exact, top: before } in &self.queries {
            let coded = logits(q, &decoded[..exact.len() * self.dim]);
            sums.logits += exact.len() as f64;
            sums.error += exact.iter().zip(&coded).map(|(a, b)| (a - b).abs()).sum::<f64>();
            sums.queries += 1.0;
            sums.divergence += divergence(exact, &coded);
            sums.moved += moved(exact, &coded);
            sums.certain += f64::from(u8::from(certain(exact, &coded)));
            let after = top(&coded);
            sums.overlap += before.iter().filter(|t| after.contains(t)).count() as f64 / before.len().max(1) as f64;
        }
        sums
    }
}

/// `q.k / sqrt(dim)` for every key. Keys and queries are single precision, so are the products: their rounding is far below any code's.
pub(crate) fn logits(q: &[f32], keys: &[f32]) -> Vec<f64> {
    let scale = (q.len() as f64).powf(-0.5);
    let dot = |key: &[f32]| {
        let mut sums = [0.0f32; 16];
        let ((a, rest_a), (b, rest_b)) = (q.as_chunks::<16>(), key.as_chunks::<16>());
        for (a, b) in a.iter().zip(b) {
            sums.iter_mut().zip(a.iter().zip(b)).for_each(|(s, (a, b))| *s += a * b);
        }
        let rest: f32 = rest_a.iter().zip(rest_b).map(|(a, b)| a * b).sum();
        f64::from(sums.iter().sum::<f32>() + rest)
    };
    keys.chunks_exact(q.len()).map(|key| scale * dot(key)).collect()
}

pub(crate) fn log_sum(z: &[f64]) -> f64 {
    let most = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    most + z.iter().map(|z| (z - most).exp()).sum::<f64>().ln()
}

/// `KL(p || p')` of the softmax of two rows of logits.
pub(crate) fn divergence(exact: &[f64], coded: &[f64]) -> f64 {
    let (a, b) = (log_sum(exact), log_sum(coded));
    // Rounding can take what is 0 a little below it.
    exact.iter().zip(coded).map(|(x, y)| (x - a).exp() * ((x - a) - (y - b))).sum::<f64>().max(0.0)
}

/// Half the sum of `|p - p'|` of the softmax of two rows of logits: the share that goes elsewhere.
fn moved(exact: &[f64], coded: &[f64]) -> f64 {
    let (a, b) = (log_sum(exact), log_sum(coded));
    0.5 * exact.iter().zip(coded).map(|(x, y)| ((x - a).exp() - (y - b).exp()).abs()).sum::<f64>()
}

/// Whether the heaviest block is certain by (9.23), the largest error of each block being its bound. Of a block alone it is.
fn certain(exact: &[f64], coded: &[f64]) -> bool {
    let mass: Vec<f64> = coded.chunks(BLOCK).map(log_sum).collect();
    let off = |(a, b): (&[f64], &[f64])| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    let delta: Vec<f64> = exact.chunks(BLOCK).zip(coded.chunks(BLOCK)).map(off).collect();
    let mut found = Vec::new();
    // What is no number is certain of nothing.
    danger(&mass, &delta, &mut found).is_ok() && found.iter().all(|danger| *danger < 1.0)
}

/// Positions of the largest logits, ties to the lowest.
pub(crate) fn top(z: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..z.len()).collect();
    let most = TOP.min(z.len());
    if most < z.len() {
        order.select_nth_unstable_by(most, |a, b| z[*b].total_cmp(&z[*a]).then(a.cmp(b)));
    }
    order.truncate(most);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_are_what_they_are_called() {
        let (p, q) = ([0.0, 1.0, -1.0], [0.5, 1.0, -2.0]);
        let softmax = |z: &[f64]| z.iter().map(|x| (x - log_sum(z)).exp()).collect::<Vec<f64>>();
        let want: f64 = softmax(&p).iter().zip(softmax(&q)).map(|(a, b)| a * (a / b).ln()).sum();
        assert!((divergence(&p, &q) - want).abs() < 1e-15 && divergence(&p, &p) == 0.0);
        // A shift of all logits is no difference.
        assert!(divergence(&p, &p.map(|z| z + 7.0)) < 1e-14);
        let half: f64 = softmax(&p).iter().zip(softmax(&q)).map(|(a, b)| (a - b).max(0.0)).sum();
        let far: Vec<f64> = (0..128).map(|i| if i < 64 { 9.0 } else { 0.0 }).collect();
        let (near, past) =
            (far.iter().map(|z| z + 0.1).collect::<Vec<_>>(), far.iter().map(|z| 9.0 - z).collect::<Vec<_>>());
        assert!(certain(&far, &near) && certain(&p, &q) && !certain(&far, &past));
        assert!((moved(&p, &q) - half).abs() < 1e-15 && half > 0.05);
        let z: Vec<f64> = (0..40).map(|i| f64::from((i * 7) % 40)).collect();
        let mut found = top(&z);
        found.sort_unstable_by_key(|i| std::cmp::Reverse(z[*i] as u64));
        assert_eq!(found.iter().map(|i| z[*i] as u64).collect::<Vec<_>>(), (30..40).rev().collect::<Vec<_>>());
        assert_eq!(top(&[1.0; 12]).len(), 10);
        assert_eq!(top(&[1.0, 2.0]).len(), 2);
        let keys = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(logits(&[1.0, 1.0], &keys), [3.0 * 2f64.powf(-0.5), 7.0 * 2f64.powf(-0.5)]);
    }
}
