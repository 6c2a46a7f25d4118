//! Attention over plain single-precision rows: the oracle that tests compare a cache with.
use super::{
    attention::{Attention, AttentionError, Pass},
    config::Config,
};
use rayon::prelude::*;

/// A cache that stores what it is given, uncompressed, and computes softmax attention in single precision.
#[derive(Debug, Clone)]
pub struct Flat {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// Keys and values of each layer, `[layer][head][token][channel]`.
    keys: Vec<Vec<Vec<f32>>>,
    values: Vec<Vec<Vec<f32>>>,
    /// Tokens of each layer and head that no query sees.
    hidden: Vec<Vec<Vec<bool>>>,
    length: usize,
    open: Option<usize>,
}

impl Flat {
    /// An empty cache for a model.
    pub fn new(config: &Config) -> Self {
        let empty = vec![vec![Vec::new(); config.kv_heads]; config.layers];
        Self {
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            keys: empty.clone(),
            values: empty,
            hidden: vec![vec![Vec::new(); config.kv_heads]; config.layers],
            length: 0,
            open: None,
        }
    }

    /// Appends the rows of a chunk to `layer` without attending.
    ///
    /// # Errors
    /// [`AttentionError`] when no chunk is open or a slice has the wrong length.
    pub fn store(&mut self, layer: usize, k: &[f32], v: &[f32]) -> Result<(), AttentionError> {
        let n = self.open.ok_or(AttentionError::Order("no chunk is open"))?;
        let (d, kv_width) = (self.head_dim, self.kv_heads * self.head_dim);
        expect("k", k.len(), n * kv_width)?;
        expect("v", v.len(), n * kv_width)?;
        for (stored, rows) in [(&mut self.keys[layer], k), (&mut self.values[layer], v)] {
            for token in rows.chunks_exact(kv_width) {
                for (head, row) in stored.iter_mut().zip(token.chunks_exact(d)) {
                    head.extend_from_slice(row);
                }
            }
        }
        Ok(())
    }

    /// Forgets all tokens from `length` on.
    pub fn truncate(&mut self, length: usize) {
        let elements = length * self.head_dim;
        for rows in self.keys.iter_mut().chain(&mut self.values).flatten() {
            rows.truncate(elements);
        }
        self.hidden.iter_mut().flatten().for_each(|seen| seen.truncate(length));
        self.length = self.length.min(length);
        self.open = None;
    }

    /// Keys of a layer and head, row-major (tokens, channels); nothing of a layer or head that there is not.
    pub fn keys(&self, layer: usize, head: usize) -> &[f32] {
        self.keys.get(layer).and_then(|heads| heads.get(head)).map_or(&[], Vec::as_slice)
    }

    /// Values of a layer and head, as [`Flat::keys`].
    pub fn values(&self, layer: usize, head: usize) -> &[f32] {
        self.values.get(layer).and_then(|heads| heads.get(head)).map_or(&[], Vec::as_slice)
    }

    /// Hides tokens from later queries, or shows them again. A token that was never hidden is seen.
    pub fn hide(&mut self, layer: usize, head: usize, tokens: std::ops::Range<usize>, hidden: bool) {
        if let Some(seen) = self.hidden.get_mut(layer).and_then(|heads| heads.get_mut(head)) {
            seen.resize(seen.len().max(tokens.end), false);
            seen[tokens].fill(hidden);
        }
    }

    /// As [`Flat::replace_keys`], for values.
    pub fn replace_values(&mut self, layer: usize, head: usize, from: usize, values: &[f32]) {
        let stored = self.values.get_mut(layer).and_then(|heads| heads.get_mut(head));
        let part = stored.and_then(|stored| stored.get_mut(from * self.head_dim..));
        part.into_iter().flatten().zip(values).for_each(|(old, new)| *old = *new);
    }

    /// Puts `keys` (rows, channels) in place of those from token `from` on: what later queries see. Rows past the last are left out.
    pub fn replace_keys(&mut self, layer: usize, head: usize, from: usize, keys: &[f32]) {
        let stored = self.keys.get_mut(layer).and_then(|heads| heads.get_mut(head));
        let part = stored.and_then(|stored| stored.get_mut(from * self.head_dim..));
        part.into_iter().flatten().zip(keys).for_each(|(old, new)| *old = *new);
    }

    /// Opens a chunk of `tokens` tokens; what an unfinished one stored is forgotten.
    pub fn open(&mut self, tokens: usize) {
        self.truncate(self.length);
        self.open = Some(tokens);
    }

    /// Closes the open chunk.
    ///
    /// # Errors
    /// [`AttentionError::Order`] when none is open.
    pub fn finish(&mut self) -> Result<(), AttentionError> {
        self.length += self.open.take().ok_or(AttentionError::Order("no chunk is open"))?;
        Ok(())
    }

    /// As [`Pass::attend`], on the open chunk.
    ///
    /// # Errors
    /// As [`Flat::store`].
    pub fn attend(
        &mut self,
        layer: usize,
        k: &[f32],
        v: &[f32],
        q: &[f32],
        out: &mut [f32],
    ) -> Result<(), AttentionError> {
        let n = self.open.ok_or(AttentionError::Order("no chunk is open"))?;
        let (d, group) = (self.head_dim, self.heads / self.kv_heads);
        let q_width = self.heads * d;
        expect("q", q.len(), n * q_width)?;
        expect("out", out.len(), n * q_width)?;
        self.store(layer, k, v)?;
        let (keys, values, hidden) = (&self.keys[layer], &self.values[layer], &self.hidden[layer]);
        let start = self.length;
        let scale = (d as f32).powf(-0.5);
        out.par_chunks_exact_mut(d).zip(q.par_chunks_exact(d)).enumerate().for_each(|(row, (out, q))| {
            let (token, head) = (row / self.heads, row % self.heads / group);
            let visible = start + token + 1;
            let mut scores: Vec<f32> =
                keys[head].chunks_exact(d).take(visible).map(|key| dot(q, key) * scale).collect();
            // The query's own token is never hidden, so that something is left.
            let seen = scores.iter_mut().zip(&hidden[head]);
            seen.filter(|(_, hidden)| **hidden).for_each(|(score, _)| *score = f32::NEG_INFINITY);
            let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut sum = 0.0f64;
            for s in &mut scores {
                *s = (*s - largest).exp();
                sum += f64::from(*s);
            }
            out.fill(0.0);
            for (p, value) in scores.iter().zip(values[head].chunks_exact(d)) {
                for (o, x) in out.iter_mut().zip(value) {
                    *o += p * x;
                }
            }
            for o in out.iter_mut() {
                *o = (f64::from(*o) / sum) as f32;
            }
        });
        Ok(())
    }
}

fn expect(argument: &'static str, found: usize, expected: usize) -> Result<(), AttentionError> {
    if found == expected { Ok(()) } else { Err(AttentionError::Length { argument, expected, found }) }
}

/// Eight partial sums keep the vector units busy and the rounding error small.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    for (x, y) in a.as_chunks::<16>().0.iter().zip(b.as_chunks::<16>().0) {
        for i in 0..16 {
            sums[i] += x[i] * y[i];
        }
    }
    let tail = a.len() / 16 * 16;
    sums.iter().sum::<f32>() + a[tail..].iter().zip(&b[tail..]).map(|(x, y)| x * y).sum::<f32>()
}

impl Attention for Flat {
    fn length(&self) -> usize {
        self.length
    }

    fn begin(&mut self, tokens: usize) -> Result<Box<dyn Pass + '_>, AttentionError> {
        self.open(tokens);
        Ok(Box::new(Open(self)))
    }
}

/// A chunk of a [`Flat`] cache.
struct Open<'a>(&'a mut Flat);

impl Pass for Open<'_> {
    fn attend(&mut self, layer: usize, k: &[f32], v: &[f32], q: &[f32], out: &mut [f32]) -> Result<(), AttentionError> {
        self.0.attend(layer, k, v, q, out)
    }

    fn finish(self: Box<Self>) -> Result<(), AttentionError> {
        self.0.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config::shape(1, 2, 1, 2)
    }

    fn fill(tokens: &[usize], change: impl Fn(&mut Flat)) -> Vec<f32> {
        let row = |t: usize, by: f64| [(t as f64 * by).sin() as f32, (t as f64 * by).cos() as f32];
        let mut flat = Flat::new(&config());
        for (number, &t) in tokens.iter().enumerate() {
            flat.open(1);
            let mut out = [0.0; 4];
            if number + 1 == tokens.len() {
                change(&mut flat);
            }
            flat.attend(0, &row(t, 0.7), &row(t, 1.3), &[1.0, -2.0, 0.5, 3.0], &mut out).unwrap();
            flat.finish().unwrap();
            if number + 1 == tokens.len() {
                return out.to_vec();
            }
        }
        Vec::new()
    }

    /// A hidden token is as one that was never there, until it is shown again; what is put in place of values is what is read.
    #[test]
    fn hidden_tokens_are_not_seen() {
        let all = fill(&[1, 2, 3, 4, 5], |_| ());
        let without = fill(&[1, 4, 5], |_| ());
        let hidden = fill(&[1, 2, 3, 4, 5], |flat| flat.hide(0, 0, 1..3, true));
        let near = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(near(&hidden, &without) && !near(&hidden, &all), "{hidden:?} {without:?}");
        let shown = fill(&[1, 2, 3, 4, 5], |flat| {
            flat.hide(0, 0, 1..3, true);
            flat.hide(0, 0, 1..3, false);
        });
        assert!(near(&shown, &all));
        let zeros = fill(&[1, 2, 3, 4, 5], |flat| flat.replace_values(0, 0, 0, &[0.0; 8]));
        assert!(!near(&zeros, &all) && zeros.iter().map(|x| x.abs()).sum::<f32>() < all.iter().map(|x| x.abs()).sum());
        let mut flat = Flat::new(&config());
        flat.hide(0, 0, 0..4, true);
        flat.truncate(2);
        assert_eq!(flat.hidden[0][0], [true; 2]);
    }
}
