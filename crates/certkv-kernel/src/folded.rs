//! Queries as calibrated keys meet them, math.md (2.19a): divided by the balance scale, and what the key centre adds to every logit.
use crate::line::{Line, lines};
use crate::query::HEADS;
use crate::slack::{CLAMP, inflate};
use certkv_codec::KeyMetric;

/// All query heads of a call. Rows are read with the queries as they are, so both are kept.
#[derive(Debug, Clone)]
pub(crate) struct Folded {
    /// There is a metric: what follows is of the present queries.
    pub(crate) ready: bool,
    /// `q / S`, `[head][dim / 16]`.
    pub(crate) q: Vec<Line>,
    /// Upper bounds of `s ||q / S||`.
    pub(crate) reach: [f32; HEADS],
    /// `s q.c` in base 2: added to logits from codes. 0 where nothing was taken off the keys.
    pub(crate) logit: [f32; HEADS],
    /// Upper bounds of `|s q.c|`, and of 2^-20 of the sum of its terms' magnitudes besides.
    pub(crate) shift: [f32; HEADS],
}

impl Folded {
    pub(crate) fn new() -> Self {
        let zero = [0.0; HEADS];
        Self { ready: false, q: lines(HEADS * 16), reach: zero, logit: zero, shift: zero }
    }

    /// No metric, and nothing to add.
    pub(crate) fn clear(&mut self) {
        self.ready = false;
        (self.logit, self.shift) = ([0.0; HEADS], [0.0; HEADS]);
    }

    /// Takes `queries`, `[head][dim]`, all finite, of at most [`HEADS`] heads, in `metric` of `dim` channels. A query that has no
    /// quotient or product in single precision meets codes as 0 and is bounded by infinity.
    pub(crate) fn fold(&mut self, queries: &[f32], metric: &KeyMetric<'_>, scale: f32) {
        let (dim, s) = (metric.dim(), f64::from(scale));
        let heads = queries.chunks_exact(dim).zip(self.q.chunks_exact_mut(dim / 16)).take(HEADS);
        for (h, (q, to)) in heads.enumerate() {
            let (mut square, mut product, mut terms, mut fits) = (0.0, 0.0, 0.0, true);
            let channels = to.iter_mut().flat_map(|line| &mut line.0);
            for (((slot, q), b), c) in channels.zip(q).zip(metric.balance()).zip(metric.centre()) {
                *slot = q / b;
                fits &= slot.is_finite();
                let (wide, term) = (f64::from(*q) / f64::from(*b), f64::from(*q) * f64::from(*c));
                square += wide * wide;
                product += term;
                terms += term.abs();
            }
            let logit = (s * product * core::f64::consts::LOG2_E) as f32;
            // Written so that NaN does not fit.
            if fits && logit.abs() < CLAMP {
                self.reach[h] = inflate(s * square.sqrt());
                self.logit[h] = logit;
                self.shift[h] = inflate(s * (product.abs() + terms / f64::from(1u32 << 20)));
            } else {
                to.fill(Line::ZERO);
                (self.reach[h], self.logit[h], self.shift[h]) = (f32::INFINITY, 0.0, f32::INFINITY);
            }
        }
        self.ready = true;
    }
}
