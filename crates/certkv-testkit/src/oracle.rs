//! Naive `f64` attention, exact and mixed, and the error summaries of a block: the slow obvious twin of everything else
//! (math.md (1.1)-(1.6), (3.1)-(3.7), (5.1)). Matrices are row-major `[token][channel]`.
use std::fmt;

/// Why the oracle refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OracleError {
    /// A slice does not fit the number of tokens, channels or blocks.
    Length(&'static str),
    /// NaN or infinity in a key, value or query.
    NotFinite(&'static str),
    /// No token is visible.
    NothingVisible,
}

impl fmt::Display for OracleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(what) => write!(f, "{what} has the wrong length"),
            Self::NotFinite(what) => write!(f, "{what} holds NaN or infinity"),
            Self::NothingVisible => f.write_str("no token is visible"),
        }
    }
}
impl std::error::Error for OracleError {}

/// One head's query and how its logits are made (1.1).
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    /// Query after RoPE.
    pub query: &'a [f64],
    /// Logit scale.
    pub scale: f64,
    /// Visible tokens; `None`: all.
    pub mask: Option<&'a [bool]>,
    /// Added to the logits after capping.
    pub bias: Option<&'a [f64]>,
    /// `C` of `C tanh(z/C)`; 0: none.
    pub softcap: f64,
    /// Learned logit of a token of value 0.
    pub sink: Option<f64>,
}

impl<'a> Attention<'a> {
    /// Plain attention: everything visible, no bias, cap or sink.
    pub const fn plain(query: &'a [f64], scale: f64) -> Self {
        Self { query, scale, mask: None, bias: None, softcap: 0.0, sink: None }
    }
}

/// What one block is read from, and where the block starts and ends.
#[derive(Debug, Clone, Copy)]
pub struct Sides<'a> {
    /// Original keys.
    pub keys: &'a [f64],
    /// Decoded keys.
    pub decoded_keys: &'a [f64],
    /// Original values.
    pub values: &'a [f64],
    /// Decoded values.
    pub decoded_values: &'a [f64],
    /// Tokens per block; the last block may be short.
    pub block: usize,
    /// Blocks whose keys are exact, `F`.
    pub exact_keys: &'a [bool],
    /// Blocks whose values are exact, `F_V`.
    pub exact_values: &'a [bool],
    /// Blocks left out; empty: none.
    pub dropped: &'a [bool],
}

/// Result of a pass over all tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Pass {
    /// Output, one entry per channel.
    pub output: Vec<f64>,
    /// `L`, nats.
    pub lse: f64,
    /// Logits used; `-inf` where masked or dropped.
    pub logits: Vec<f64>,
    /// Weights, which sum to 1 less the sink's.
    pub weights: Vec<f64>,
    /// `l_b` (1.4).
    pub log_mass: Vec<f64>,
    /// `rho_b` (1.5).
    pub mass: Vec<f64>,
    /// `p_b` (1.5).
    pub root: Vec<f64>,
}

/// `log sum e^z`; `-inf` for nothing or only `-inf`.
pub fn log_sum_exp(z: &[f64]) -> f64 {
    let m = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if m == f64::NEG_INFINITY { m } else { m + z.iter().map(|z| (z - m).exp()).sum::<f64>().ln() }
}

/// Euclidean norm.
pub fn norm(x: &[f64]) -> f64 {
    x.iter().map(|a| a * a).sum::<f64>().sqrt()
}

/// `||a - b||`.
pub fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| (x - y) * (x - y)).sum::<f64>().sqrt()
}

fn finite(what: &'static str, x: &[f64]) -> Result<(), OracleError> {
    if x.iter().all(|v| v.is_finite()) { Ok(()) } else { Err(OracleError::NotFinite(what)) }
}

impl Attention<'_> {
    /// Logits of every token (1.1), `-inf` where masked.
    ///
    /// # Errors
    /// [`OracleError`] for a bad length or a number that is not finite.
    pub fn logits(&self, keys: &[f64]) -> Result<Vec<f64>, OracleError> {
        let d = self.query.len();
        if d == 0 || !keys.len().is_multiple_of(d) {
            return Err(OracleError::Length("keys"));
        }
        let n = keys.len() / d;
        if self.mask.is_some_and(|m| m.len() != n) || self.bias.is_some_and(|b| b.len() != n) {
            return Err(OracleError::Length("mask or bias"));
        }
        finite("query", self.query)?;
        finite("keys", keys)?;
        let logit = |(t, k): (usize, &[f64])| {
            if self.mask.is_some_and(|m| !m[t]) {
                return f64::NEG_INFINITY;
            }
            let mut z = self.scale * k.iter().zip(self.query).map(|(a, b)| a * b).sum::<f64>();
            if self.softcap > 0.0 {
                z = self.softcap * (z / self.softcap).tanh();
            }
            z + self.bias.map_or(0.0, |b| b[t])
        };
        Ok(keys.chunks_exact(d).enumerate().map(logit).collect())
    }

    /// Dense attention in blocks of `block` tokens (1.2)-(1.5): the reference `O`.
    ///
    /// # Errors
    /// As [`Attention::logits`]; [`OracleError::NothingVisible`] if nothing is visible and there is no sink.
    pub fn dense(&self, keys: &[f64], values: &[f64], block: usize) -> Result<Pass, OracleError> {
        let z = self.logits(keys)?;
        self.weigh(z, values, block)
    }

    /// Mixed attention (5.1).
    ///
    /// # Errors
    /// As [`Attention::dense`].
    pub fn mixed(&self, s: &Sides<'_>) -> Result<Pass, OracleError> {
        let (exact, code) = (self.logits(s.keys)?, self.logits(s.decoded_keys)?);
        let (n, d) = (exact.len(), s.values.len() / exact.len().max(1));
        let blocks = n.div_ceil(s.block.max(1));
        let fits = |x: &[bool]| x.len() == blocks;
        if code.len() != n || s.decoded_values.len() != s.values.len() || d * n != s.values.len() {
            return Err(OracleError::Length("decoded sides"));
        }
        if !(fits(s.exact_keys) && fits(s.exact_values) && (s.dropped.is_empty() || fits(s.dropped))) {
            return Err(OracleError::Length("block sets"));
        }
        let left_out = |b: usize| s.dropped.get(b).copied().unwrap_or(false);
        let pick = |t: usize| match t / s.block {
            b if left_out(b) => f64::NEG_INFINITY,
            b if s.exact_keys[b] => exact[t],
            _ => code[t],
        };
        let z = (0..n).map(pick).collect();
        let from = |i: usize| if s.exact_values[i / d / s.block] { s.values[i] } else { s.decoded_values[i] };
        let used: Vec<f64> = (0..n * d).map(from).collect();
        self.weigh(z, &used, s.block)
    }

    fn weigh(&self, logits: Vec<f64>, values: &[f64], block: usize) -> Result<Pass, OracleError> {
        let n = logits.len();
        if n == 0 || block == 0 || !values.len().is_multiple_of(n) {
            return Err(OracleError::Length("values"));
        }
        finite("values", values)?;
        let d = values.len() / n;
        let lse = log_sum_exp(&[log_sum_exp(&logits), self.sink.unwrap_or(f64::NEG_INFINITY)]);
        if lse == f64::NEG_INFINITY {
            return Err(OracleError::NothingVisible);
        }
        let weights: Vec<f64> = logits.iter().map(|z| (z - lse).exp()).collect();
        let mut output = vec![0.0; d];
        for (a, v) in weights.iter().zip(values.chunks_exact(d)) {
            output.iter_mut().zip(v).for_each(|(o, v)| *o += a * v);
        }
        Ok(Pass {
            output,
            lse,
            log_mass: logits.chunks(block).map(log_sum_exp).collect(),
            mass: weights.chunks(block).map(|w| w.iter().sum()).collect(),
            root: weights.chunks(block).map(norm).collect(),
            logits,
            weights,
        })
    }
}

/// Certified upper bound of the spectral norm of `rows x d` (3.7): never too small, at most `n^(1/16)` too large.
pub fn spectral_bound(matrix: &[f64], d: usize) -> f64 {
    let rows: Vec<&[f64]> = matrix.chunks_exact(d.max(1)).collect();
    let n = rows.len();
    let mut gram = vec![0.0; n * n];
    for i in 0..n {
        for j in 0..=i {
            let dot = rows[i].iter().zip(rows[j]).map(|(a, b)| a * b).sum();
            (gram[i * n + j], gram[j * n + i]) = (dot, dot);
        }
    }
    let top = gram.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
    if top == 0.0 {
        return 0.0;
    }
    gram.iter_mut().for_each(|x| *x /= top);
    let row_sum = gram.chunks_exact(n).map(|r| r.iter().map(|x| x.abs()).sum::<f64>()).fold(0.0, f64::max);
    let square = |a: &[f64]| -> Vec<f64> {
        let mut out = vec![0.0; n * n];
        for (i, row) in a.chunks_exact(n).enumerate() {
            for (k, x) in row.iter().enumerate() {
                for j in 0..n {
                    out[i * n + j] += x * a[k * n + j];
                }
            }
        }
        out
    };
    let fourth = square(&square(&gram));
    let trace8 = fourth.iter().map(|x| x * x).sum::<f64>().powf(0.125);
    (top * row_sum.min(trace8)).sqrt() * SAFE
}

/// Factor that covers the rounding of a summary measured in `f64` (math.md section 3).
pub const SAFE: f64 = 1.0 + 1.0 / (1u64 << 40) as f64;

/// Error summary of one block, unrounded; `None` scales leave `kappa` infinite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// `||E diag(1/sigma)||_op` (3.6).
    pub kappa: f64,
    /// `max_t ||k_t - k^_t||` (3.5).
    pub eps: f64,
    /// `max_t ||v_t - v^_t||` (3.1).
    pub eta: f64,
    /// `max_t ||v_t||` (3.2).
    pub nu: f64,
    /// `max_t ||v_t - c||` (3.3).
    pub radius: f64,
    /// `||[v_t - v^_t]||_op` (3.4).
    pub sop: f64,
}

/// Measures a block: originals and decoded sides of the same tokens, value centre, key steps if the codec has one per
/// channel.
pub fn summarise(
    keys: (&[f64], &[f64]),
    values: (&[f64], &[f64]),
    centre: &[f64],
    key_steps: Option<&[f64]>,
) -> Summary {
    let minus = |(a, b): (&[f64], &[f64])| -> Vec<f64> { a.iter().zip(b).map(|(x, y)| x - y).collect() };
    let largest = |m: &[f64], d: usize| m.chunks_exact(d.max(1)).map(norm).fold(0.0, f64::max) * SAFE;
    let d = centre.len();
    let (key_error, value_error) = (minus(keys), minus(values));
    let kappa = key_steps.map_or(f64::INFINITY, |s| {
        let scaled: Vec<f64> = key_error
            .iter()
            .enumerate()
            .map(|(i, e)| if s[i % s.len()] > 0.0 { e / s[i % s.len()] } else { 0.0 })
            .collect();
        spectral_bound(&scaled, s.len())
    });
    let dk = key_steps.map_or(d, <[f64]>::len);
    let from_centre: Vec<f64> = values.0.iter().enumerate().map(|(i, v)| v - centre[i % d]).collect();
    Summary {
        kappa,
        eps: largest(&key_error, dk),
        eta: largest(&value_error, d),
        nu: largest(values.0, d),
        radius: largest(&from_centre, d),
        sop: spectral_bound(&value_error, d),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_tokens_by_hand() {
        let a = Attention::plain(&[1.0, 0.0], 2.0);
        let keys = [0.0, 5.0, f64::ln(3.0) / 2.0, -1.0];
        let p = a.dense(&keys, &[1.0, 0.0, 0.0, 4.0], 1).unwrap();
        assert!((p.output[0] - 0.25).abs() < 1e-15 && (p.output[1] - 3.0).abs() < 1e-15);
        assert!((p.lse - f64::ln(4.0)).abs() < 1e-15);
        let sink = Attention { sink: Some(f64::ln(4.0)), ..a };
        assert!((sink.dense(&keys, &[1.0, 0.0, 0.0, 4.0], 2).unwrap().mass[0] - 0.5).abs() < 1e-15);
        let masked = Attention { mask: Some(&[false, true]), bias: Some(&[9.0, 1.0]), ..a };
        let p = masked.dense(&keys, &[1.0, 0.0, 0.0, 4.0], 1).unwrap();
        assert_eq!((p.log_mass[0], p.output.as_slice()), (f64::NEG_INFINITY, [0.0, 4.0].as_slice()));
        assert_eq!(
            Attention { mask: Some(&[false, false]), ..a }.dense(&keys, &[0.0; 4], 1),
            Err(OracleError::NothingVisible)
        );
        assert_eq!(a.dense(&[f64::NAN, 0.0], &[0.0], 1), Err(OracleError::NotFinite("keys")));
        assert_eq!(a.dense(&keys[..3], &[0.0], 1), Err(OracleError::Length("keys")));
        assert!(Attention { softcap: 5.0, ..a }.logits(&[1e6, 0.0]).unwrap()[0] <= 5.0);
    }

    #[test]
    fn spectral_bound_is_above_and_close() {
        // diag(3, 2) rotated: the norm is 3.
        let (c, s) = (0.8, 0.6);
        let m = [3.0 * c, 3.0 * s, -2.0 * s, 2.0 * c];
        let b = spectral_bound(&m, 2);
        assert!((3.0..3.0 * 2f64.powf(1.0 / 16.0) + 1e-9).contains(&b), "{b}");
        assert_eq!(spectral_bound(&[0.0; 6], 3), 0.0);
        let rank_one = spectral_bound(&[1.0, 2.0, 2.0, 4.0], 2);
        assert!((5.0..5.0 + 1e-9).contains(&rank_one));
    }

    #[test]
    fn mixed_takes_each_side_from_where_it_was_told() {
        let s = Sides {
            keys: &[0.0, 0.0],
            decoded_keys: &[1.0, 1.0],
            values: &[1.0, 2.0],
            decoded_values: &[10.0, 20.0],
            block: 1,
            exact_keys: &[true, false],
            exact_values: &[false, true],
            dropped: &[],
        };
        let a = Attention::plain(&[1.0], 1.0);
        let p = a.mixed(&s).unwrap();
        assert_eq!(p.logits, [0.0, 1.0]);
        assert!((p.output[0] - (10.0 * p.weights[0] + 2.0 * p.weights[1])).abs() < 1e-15);
        let p = a.mixed(&Sides { dropped: &[true, false], ..s }).unwrap();
        assert_eq!((p.mass[0], p.output[0]), (0.0, 2.0));
        assert!(a.mixed(&Sides { exact_keys: &[true], ..s }).is_err());
    }
}
