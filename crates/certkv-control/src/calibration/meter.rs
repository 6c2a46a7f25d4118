//! Gathers energies while a model reads a text.
use super::{CalibrationError, Heads, Seen};

/// Sums over the rows of a model's layers. Rows are those that attention sees: after RoPE, which changes no energy of a pair.
#[derive(Debug, Clone)]
pub struct Meter {
    heads: Heads,
    /// Rows added, by layer.
    tokens: Vec<u64>,
    /// Sums where [`Seen`] has means.
    sums: Vec<Seen>,
}

impl Meter {
    /// Fewest tokens of which a calibration is made: what the source paper takes for its fastest one.
    pub const LEAST_TOKENS: u64 = 64;

    /// Nothing seen yet.
    ///
    /// # Errors
    /// [`CalibrationError::Field`] for heads that cannot be.
    pub fn new(heads: Heads) -> Result<Self, CalibrationError> {
        heads.check()?;
        let (pairs, dim) = (heads.pairs(), heads.head_dim);
        let none = Seen {
            queries: vec![0.0; pairs],
            keys: vec![0.0; pairs],
            mean: vec![0.0; dim],
            low: vec![f32::INFINITY; dim],
            high: vec![f32::NEG_INFINITY; dim],
        };
        Ok(Self { heads, tokens: vec![0; heads.layers], sums: vec![none; heads.layers * heads.kv_heads] })
    }

    /// Adds rows of a layer, token-major: `q` (tokens, q_heads * head_dim), `k` (tokens, kv_heads * head_dim).
    ///
    /// # Errors
    /// [`CalibrationError::Rows`] for a layer or lengths that do not fit, [`CalibrationError::Number`] for a value that is not finite;
    /// nothing was added then.
    pub fn add(&mut self, layer: usize, q: &[f32], k: &[f32]) -> Result<(), CalibrationError> {
        let Heads { layers, q_heads, kv_heads, head_dim: d, rotary, pairing } = self.heads;
        let tokens = k.len() / (kv_heads * d);
        for (what, got, width) in [("keys", k.len(), kv_heads * d), ("queries", q.len(), q_heads * d)] {
            if got != tokens * width {
                return Err(CalibrationError::Rows { what, got, want: tokens * width });
            }
        }
        if layer >= layers {
            return Err(CalibrationError::Rows { what: "layer", got: layer, want: layers - 1 });
        }
        for (what, rows, width, per_key) in
            [("keys", k, kv_heads * d, 1), ("queries", q, q_heads * d, self.heads.group())]
        {
            if let Some(i) = rows.iter().position(|x| !x.is_finite()) {
                return Err(CalibrationError::Number { layer, head: i % width / d / per_key, what, index: i / width });
            }
        }
        let pairs: Vec<[usize; 2]> = (0..d / 2).map(|pair| pairing.channels(rotary, pair)).collect();
        let square = |row: &[f32], [i, j]: [usize; 2]| f64::from(row[i]).powi(2) + f64::from(row[j]).powi(2);
        for (head, sums) in self.sums[layer * kv_heads..(layer + 1) * kv_heads].iter_mut().enumerate() {
            for (token, row) in k.chunks_exact(kv_heads * d).enumerate() {
                let key = &row[head * d..(head + 1) * d];
                sums.keys.iter_mut().zip(&pairs).for_each(|(sum, pair)| *sum += square(key, *pair));
                for (c, x) in key.iter().enumerate() {
                    sums.mean[c] += f64::from(*x);
                    sums.low[c] = sums.low[c].min(*x);
                    sums.high[c] = sums.high[c].max(*x);
                }
                let group = self.heads.group() * d;
                let first = token * q_heads * d + head * group;
                for query in q[first..first + group].chunks_exact(d) {
                    sums.queries.iter_mut().zip(&pairs).for_each(|(sum, pair)| *sum += square(query, *pair));
                }
            }
        }
        self.tokens[layer] += tokens as u64;
        Ok(())
    }

    /// Means over what was added, and the number of tokens.
    ///
    /// # Errors
    /// [`CalibrationError::Tokens`] for fewer than [`Meter::LEAST_TOKENS`] in any layer; [`CalibrationError::Rows`] if the layers saw
    /// different numbers of tokens.
    pub fn finish(mut self) -> Result<(Vec<Seen>, u64), CalibrationError> {
        let (have, most) = (self.tokens.iter().copied().min().unwrap_or(0), self.tokens.iter().copied().max());
        if have < Self::LEAST_TOKENS {
            return Err(CalibrationError::Tokens { have, need: Self::LEAST_TOKENS });
        }
        if most != Some(have) {
            return Err(CalibrationError::Rows {
                what: "tokens of a layer",
                got: have as usize,
                want: most.unwrap_or(0) as usize,
            });
        }
        let (keys, queries) = (have as f64, (have * self.heads.group() as u64) as f64);
        for sums in &mut self.sums {
            sums.queries.iter_mut().for_each(|x| *x /= queries);
            sums.keys.iter_mut().chain(&mut sums.mean).for_each(|x| *x /= keys);
        }
        Ok((self.sums, have))
    }
}
