//! The plain twin of the one-pass kernel: online softmax with the certificate's sums beside it, math.md (5.10), (5.11).
//!
//! Kernels keep the same sums in their own arithmetic; this one keeps them in `f64`, one token at a time, so that it can
//! be read against the text and used as the reference of every faster form.
use crate::error::length;
use crate::terms::{key_terms, product, value_term};
use crate::{BoundError, drop};

/// Bounds of one block as the certificate needs them, for one query head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Annotation {
    /// `Delta_b`, nats (section 4).
    pub delta: f64,
    /// `Lambda_b`, nats; `+inf` if only `Delta_b` is known.
    pub lambda: f64,
    /// `R_b = max_t ||v_t - c||` (3.3).
    pub radius: f64,
    /// `eta_b = max_t ||v_t - v^_t||` (3.1).
    pub eta: f64,
    /// `sop_b >= ||[v_t - v^_t]||_op` (3.4); `+inf` if only `eta_b` is known.
    pub sop: f64,
}

impl Annotation {
    /// A block read exactly on both sides: nothing to bound.
    pub const EXACT: Self = Self { delta: 0.0, lambda: 0.0, radius: 0.0, eta: 0.0, sop: 0.0 };
}

/// Which sides of a block were read from the 16-bit originals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    /// The block is in `F`.
    pub exact_keys: bool,
    /// The block is in `F_V`.
    pub exact_values: bool,
}

/// Running state of one head and split. All sums are relative to `e^m`.
#[derive(Debug, Clone, PartialEq)]
pub struct Stream {
    /// Running maximum logit; `-inf` while empty.
    pub m: f64,
    /// Sum of weights.
    pub l: f64,
    /// Sum of weighted values, one entry per channel.
    pub o: Vec<f64>,
    /// `sum_T G_b`.
    pub g: f64,
    /// `sum_T G_b R_b`.
    pub g_radius: f64,
    /// `sum_T H_b`.
    pub h: f64,
    /// `sum V_b`.
    pub v: f64,
    /// `log sum_dropped n_b e^{zbar_b}`, not relative to `m`.
    pub log_drop: f64,
    /// `log sum_dropped n_b e^{zbar_b} R_b`, not relative to `m`.
    pub log_drop_radius: f64,
}

/// Output and certificate of a finished stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// `O'`.
    pub output: Vec<f64>,
    /// `L'`, nats.
    pub lse: f64,
    /// Key component, denominator included.
    pub e_key: f64,
    /// Value component, denominator included.
    pub e_val: f64,
    /// Drop component, denominator included.
    pub e_drop: f64,
    /// `E` of (5.10): `+inf` if the denominator is not positive or anything overflowed.
    pub bound: f64,
    /// `sum_T h_b` relative to `l`.
    pub h_share: f64,
    /// `||O' - c||`.
    pub out_distance: f64,
}

/// `W`, `P` and the maximum of a block's logits; `None` if every token is masked.
fn weights(logits: &[f64]) -> Result<Option<(f64, f64, f64)>, BoundError> {
    let mut top = f64::NEG_INFINITY;
    for (index, &z) in logits.iter().enumerate() {
        if z.is_nan() || z == f64::INFINITY {
            return Err(BoundError::NotFinite { what: "logits", index });
        }
        top = top.max(z);
    }
    if top == f64::NEG_INFINITY {
        return Ok(None);
    }
    let (mut w, mut square) = (0.0, 0.0);
    for &z in logits {
        let x = (z - top).exp();
        w += x;
        square += x * x;
    }
    Ok(Some((top, w, square.sqrt())))
}

impl Stream {
    /// An empty state for `channels` value channels.
    pub fn new(channels: usize) -> Self {
        Self {
            m: f64::NEG_INFINITY,
            l: 0.0,
            o: vec![0.0; channels],
            g: 0.0,
            g_radius: 0.0,
            h: 0.0,
            v: 0.0,
            log_drop: f64::NEG_INFINITY,
            log_drop_radius: f64::NEG_INFINITY,
        }
    }

    fn rescale(&mut self, m: f64) {
        let f = if self.m > f64::NEG_INFINITY { (self.m - m).exp() } else { 0.0 };
        for x in &mut self.o {
            *x *= f;
        }
        for x in [&mut self.l, &mut self.g, &mut self.g_radius, &mut self.h, &mut self.v] {
            *x = product(*x, f);
        }
        self.m = m;
    }

    /// Adds one block: `logits` as used (`-inf` where masked), `values` as used, row-major `[token][channel]`. A fully
    /// masked block changes nothing.
    ///
    /// # Errors
    /// [`BoundError::Length`] if `values` is not `logits.len()` rows; [`BoundError::NotFinite`] for a NaN or `+inf`
    /// logit or a non-finite value of a visible token. The state is unchanged on error.
    pub fn add_block(
        &mut self,
        logits: &[f64],
        values: &[f64],
        annotation: &Annotation,
        used: Used,
    ) -> Result<(), BoundError> {
        let d = self.o.len();
        length("values", values.len(), logits.len() * d)?;
        let Some((top, w, p)) = weights(logits)? else { return Ok(()) };
        if let Some(index) = values.iter().position(|x| !x.is_finite()) {
            return Err(BoundError::NotFinite { what: "values", index });
        }
        self.rescale(self.m.max(top));
        for (&z, row) in logits.iter().zip(values.chunks_exact(d.max(1))) {
            let x = (z - self.m).exp();
            for (o, v) in self.o.iter_mut().zip(row) {
                *o += x * v;
            }
        }
        let f = (top - self.m).exp();
        self.l += w * f;
        let (g, g_radius, h, v) = block_sums(w, p, annotation, used);
        self.g += product(g, f);
        self.g_radius += product(g_radius, f);
        self.h += product(h, f);
        self.v += product(v, f);
        Ok(())
    }

    /// Adds a block that is left out: `tokens` visible tokens whose logits are at most `logit_up`, values within
    /// `radius` of the centre (5.22)-(5.25). Nothing visible adds nothing.
    pub fn add_drop(&mut self, tokens: usize, logit_up: f64, radius: f64) {
        if tokens == 0 || logit_up == f64::NEG_INFINITY {
            return;
        }
        let x = if logit_up.is_nan() { f64::INFINITY } else { (tokens as f64).ln() + logit_up };
        self.log_drop = log_add(self.log_drop, x);
        if radius != 0.0 {
            let r = if radius > 0.0 { radius.ln() } else { f64::INFINITY };
            self.log_drop_radius = log_add(self.log_drop_radius, x + r);
        }
    }

    /// Adds another split of the same head. The order of merging changes only rounding.
    ///
    /// # Errors
    /// [`BoundError::Length`] if the two have different channels; the state is then unchanged.
    pub fn merge(&mut self, other: &Self) -> Result<(), BoundError> {
        length("other.o", other.o.len(), self.o.len())?;
        if other.m > f64::NEG_INFINITY {
            self.rescale(self.m.max(other.m));
            let f = (other.m - self.m).exp();
            for (x, y) in self.o.iter_mut().zip(&other.o) {
                *x += f * y;
            }
            self.l += product(other.l, f);
            self.g += product(other.g, f);
            self.g_radius += product(other.g_radius, f);
            self.h += product(other.h, f);
            self.v += product(other.v, f);
        }
        self.log_drop = log_add(self.log_drop, other.log_drop);
        self.log_drop_radius = log_add(self.log_drop_radius, other.log_drop_radius);
        Ok(())
    }

    /// Takes a block out again that was added with the same arguments (repair, (6.11)). Sums that would become
    /// negative by rounding are kept at zero.
    ///
    /// # Errors
    /// [`BoundError::Cancellation`] if the block holds more than half of `l`: recompute instead. Otherwise as
    /// [`Stream::add_block`]. The state is unchanged on error.
    pub fn remove_block(
        &mut self,
        logits: &[f64],
        values: &[f64],
        annotation: &Annotation,
        used: Used,
    ) -> Result<(), BoundError> {
        let mut one = Self::new(self.o.len());
        one.add_block(logits, values, annotation, used)?;
        if one.m == f64::NEG_INFINITY {
            return Ok(());
        }
        let f = (one.m - self.m).exp();
        let share = one.l * f / self.l;
        if !(share <= 0.5) {
            return Err(BoundError::Cancellation { share });
        }
        for (x, y) in self.o.iter_mut().zip(&one.o) {
            *x -= f * y;
        }
        self.l -= one.l * f;
        for (x, y) in
            [(&mut self.g, one.g), (&mut self.g_radius, one.g_radius), (&mut self.h, one.h), (&mut self.v, one.v)]
        {
            // inf - inf is NaN: an overflowed sum stays infinite, and the caller rebuilds it.
            *x = if x.is_finite() { (*x - product(y, f)).max(0.0) } else { f64::INFINITY };
        }
        Ok(())
    }

    /// Output, log-sum and the streaming certificate (5.10) for the head's value centre.
    ///
    /// # Errors
    /// [`BoundError::NothingVisible`] for an empty state, [`BoundError::Length`] if `centre` has other channels.
    pub fn finish(&self, centre: &[f64]) -> Result<Finished, BoundError> {
        length("centre", centre.len(), self.o.len())?;
        if self.m == f64::NEG_INFINITY || !(self.l > 0.0) {
            return Err(BoundError::NothingVisible);
        }
        let output: Vec<f64> = self.o.iter().map(|x| x / self.l).collect();
        let lse = self.m + self.l.ln();
        let out_distance = output.iter().zip(centre).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
        let key = (self.g_radius + product(out_distance, self.g)) / self.l;
        let val = self.v / self.l;
        let dropped =
            drop::exp_up(self.log_drop_radius - lse) + product(out_distance, drop::exp_up(self.log_drop - lse));
        let h_share = self.h / self.l;
        let parts = certificate(key, val, dropped, h_share);
        let [e_key, e_val, e_drop, bound] = parts;
        Ok(Finished { output, lse, e_key, e_val, e_drop, bound, h_share, out_distance })
    }
}

/// The unnormalised terms `(G, G R, H, V)` of one block, (5.11).
fn block_sums(w: f64, p: f64, a: &Annotation, used: Used) -> (f64, f64, f64, f64) {
    let (g, h) = if used.exact_keys { (0.0, 0.0) } else { key_terms(w, p, a.delta, a.lambda) };
    let v = if used.exact_values { 0.0 } else { value_term(w, p, a.eta, a.sop) };
    (g, product(g, a.radius), h, v)
}

/// Least `1 - sum h` that a bound is divided by. Rounding moves a sum of `n` terms `h` by up to `n 2^-53`: below this the
/// difference could be mostly rounding and the quotient too small, so the bound is `+inf` instead. Nothing is lost: such
/// a quotient is about a million times the distance of the values from the output, far above the cap (5.14).
pub const LEAST_SLACK: f64 = 1.0 / 1_048_576.0;

/// `[E_key, E_val, E_drop, E]` of (5.10) from the three normalised numerators and `sum h`. All four are `+inf` if the
/// denominator is not above [`LEAST_SLACK`] or anything overflowed or is NaN.
pub fn certificate(key: f64, val: f64, dropped: f64, h_share: f64) -> [f64; 4] {
    let slack = 1.0 - h_share;
    let sum = key + val + dropped;
    if !(slack > LEAST_SLACK && (0.0..f64::INFINITY).contains(&sum)) {
        return [f64::INFINITY; 4];
    }
    [key / slack, val / slack, dropped / slack, sum / slack]
}

/// `log(e^a + e^b)`.
fn log_add(a: f64, b: f64) -> f64 {
    let m = a.max(b);
    if m.is_infinite() { m } else { m + ((a - m).exp() + (b - m).exp()).ln() }
}

#[cfg(test)]
mod tests;
