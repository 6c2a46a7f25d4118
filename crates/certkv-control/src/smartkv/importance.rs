//! Scores of items, from the attention that they get step by step.
use crate::ControlError;
use crate::error::{finite, length};

/// How attention becomes a score, math.md (9.6) to (9.10).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ImportanceRule {
    /// Share of an item's importance that stays from step to step.
    pub keep: f64,
    /// The same of a head's concentration.
    pub keep_head: f64,
    /// Share of importance in a score; the rest is the last step's attention, weighed by head.
    pub mix: f64,
    /// Steps in which a score falls to 1/e as its item ages.
    pub life: f64,
}

impl Default for ImportanceRule {
    fn default() -> Self {
        Self { keep: 0.9, keep_head: 0.95, mix: 0.7, life: 512.0 }
    }
}

/// Keeps head weights finite where no head attends to anything.
const LEAST_MEAN: f64 = 1e-6;

/// What is remembered of the items of one layer, first item first: a list for each number, so that a step goes over several items at once.
#[derive(Debug, Clone)]
pub struct Importance {
    rule: ImportanceRule,
    /// Concentration of each head's attention, `sum A^2`.
    heads: Vec<f64>,
    importance: Vec<f64>,
    /// Attention of the last step, weighed by head.
    last: Vec<f64>,
    born: Vec<u64>,
    /// The last step.
    now: u64,
    /// Of a step: `sum A^2` of each head, then its weight.
    weights: Vec<f64>,
}

/// `sum x^2`, in four sums, and the signs of all: where these are none and the sum is finite there is neither a negative number nor one that is not finite.
fn squares(x: &[f64]) -> (f64, u64) {
    let (four, rest) = x.as_chunks::<4>();
    let (mut sums, mut signs) = ([0.0; 4], [0; 4]);
    for part in four {
        sums.iter_mut().zip(part).for_each(|(sum, x)| *sum += x * x);
        signs.iter_mut().zip(part).for_each(|(signs, x)| *signs |= x.to_bits());
    }
    let rest_signs = rest.iter().fold(0, |signs, x| signs | x.to_bits());
    let sum = rest.iter().map(|x| x * x).sum::<f64>() + (sums[0] + sums[1]) + (sums[2] + sums[3]);
    (sum, (rest_signs | signs[0] | signs[1] | signs[2] | signs[3]) >> 63)
}

/// Items that one pass over the heads is for: their sums stay in registers.
const TOGETHER: usize = 8;

/// What heads of these weights bring to some items: to what stays of their importance, and of the last step.
fn bring<const N: usize>(
    importance: &mut [f64; N],
    last: &mut [f64; N],
    (weights, share): (&[f64], f64),
    rows: impl Iterator<Item = [f64; N]>,
) {
    let (mut kept, mut now) = (*importance, [0.0; N]);
    for (weight, row) in weights.iter().zip(rows) {
        for i in 0..N {
            kept[i] += share * row[i];
            now[i] += weight * row[i];
        }
    }
    (*importance, *last) = (kept, now);
}

impl Importance {
    /// No items, for `heads` heads.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for a share outside 0 to 1, or a life that is not positive.
    pub fn new(heads: usize, rule: ImportanceRule) -> Result<Self, ControlError> {
        let share = |x: f64| (0.0..1.0).contains(&x);
        let right = share(rule.keep) && share(rule.keep_head) && (0.0..=1.0).contains(&rule.mix) && rule.life > 0.0;
        if right {
            Ok(Self {
                rule,
                heads: vec![1.0; heads],
                importance: Vec::new(),
                last: Vec::new(),
                born: Vec::new(),
                now: 0,
                weights: Vec::new(),
            })
        } else {
            Err(ControlError::Invalid { what: "rule", index: 0 })
        }
    }

    /// Items seen.
    pub fn len(&self) -> usize {
        self.born.len()
    }

    /// None yet.
    pub fn is_empty(&self) -> bool {
        self.born.is_empty()
    }

    /// Forgets all items but the first `len`: the sequence was cut.
    pub fn truncate(&mut self, len: usize) {
        let Self { importance, last, born, .. } = self;
        [importance, last].into_iter().for_each(|list| list.truncate(len));
        born.truncate(len);
    }

    /// Takes the attention of a step, `[head][item]`: steps come one after the other. Items beyond those seen are new with it. Allocates for new items alone.
    ///
    /// # Errors
    /// [`ControlError::Length`] if it is no whole number of rows, or there are fewer items than were seen; [`ControlError::Invalid`] for a
    /// weight that is negative or not finite. Nothing changed.
    pub fn update(&mut self, attention: &[f64], step: u64) -> Result<(), ControlError> {
        let (heads, rule) = (self.heads.len(), self.rule);
        let n = attention.len().checked_div(heads).unwrap_or(0).max(self.len());
        length("attention", attention.len(), heads * n)?;
        let rows = || attention.chunks_exact(n.max(1));
        let mut signs = 0;
        self.weights.clear();
        self.weights.extend(rows().map(squares).map(|(sum, of)| {
            signs |= of;
            sum
        }));
        if signs != 0 || !self.weights.iter().all(|sum| sum.is_finite()) {
            finite("attention", attention)?;
        }
        let Self { importance, last, born, weights, .. } = self;
        for list in [&mut *importance, &mut *last] {
            list.resize(n, 0.0);
        }
        born.resize(n, step);
        self.now = step;
        importance.iter_mut().for_each(|x| *x *= rule.keep);
        for (head, sum) in self.heads.iter_mut().zip(&*weights) {
            *head = rule.keep_head * *head + (1.0 - rule.keep_head) * sum;
        }
        let mean = self.heads.iter().sum::<f64>() / heads as f64 + LEAST_MEAN;
        // A head's part of the mean of its row, and of what an item gets of it.
        let share = (1.0 - rule.keep) / heads as f64;
        weights.clear();
        weights.extend(self.heads.iter().map(|head| head / mean / heads as f64));
        let ((of, rest), (of_last, rest_last)) = (importance.as_chunks_mut(), last.as_chunks_mut());
        let first = TOGETHER * of.len();
        for (at, (importance, last)) in of.iter_mut().zip(of_last).enumerate() {
            let rows = rows().filter_map(|row| row.as_chunks::<TOGETHER>().0.get(at).copied());
            bring(importance, last, (weights, share), rows);
        }
        for (at, (importance, last)) in rest.iter_mut().zip(rest_last).enumerate() {
            let rows = rows().map(|row| [row[first + at]]);
            bring(core::array::from_mut(importance), core::array::from_mut(last), (weights, share), rows);
        }
        Ok(())
    }

    /// Scores of all items at a step; `scores` is overwritten.
    pub fn scores(&self, step: u64, scores: &mut Vec<f64>) {
        let ImportanceRule { keep, mix, life, .. } = self.rule;
        scores.clear();
        let items = self.importance.iter().zip(&self.last).zip(&self.born);
        scores.extend(items.map(|((importance, last), born)| {
            let age = step.saturating_sub(*born) as f64;
            // What a start from 0 still takes away.
            let left = keep.powf(self.now.saturating_sub(*born) as f64 + 1.0);
            (mix * (importance / (1.0 - left)) + (1.0 - mix) * last) * (-age / life).exp()
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steady attention is its own importance from the first step on, whatever the item's age; a head that attends to few counts more.
    #[test]
    fn steady_attention_is_told_at_once() {
        let rule = ImportanceRule { mix: 1.0, life: f64::INFINITY, ..ImportanceRule::default() };
        let mut importance = Importance::new(2, rule).unwrap();
        let mut scores = Vec::new();
        for step in 0..5 {
            importance.update(&[0.75, 0.25, 0.5, 0.5], step).unwrap();
            importance.scores(step, &mut scores);
            assert!((scores[0] - 0.625).abs() < 1e-12 && (scores[1] - 0.375).abs() < 1e-12, "{scores:?}");
        }
        let mut last = Importance::new(2, ImportanceRule { mix: 0.0, keep_head: 0.0, ..rule }).unwrap();
        last.update(&[1.0, 0.0, 0.5, 0.5], 0).unwrap();
        last.scores(0, &mut scores);
        assert!(scores[0] / scores[1] > 4.9, "{scores:?}");
    }

    /// Several items at once are what one after the other is, bit for bit.
    #[test]
    fn sums_are_those_of_a_loop_over_items() {
        let rule = ImportanceRule { life: f64::INFINITY, ..ImportanceRule::default() };
        for (heads, n) in [(1, 1), (3, 7), (8, 8), (5, 29), (2, 64)] {
            let mut all = Importance::new(heads, rule).unwrap();
            let (mut concentration, mut plain) = (vec![1.0; heads], vec![0.0f64; n]);
            for step in 0..6u64 {
                let number = |i: u64| certkv_core::hash::splitmix64(step << 32 | i) as f64 / 2f64.powi(64);
                let attention: Vec<f64> = (0..(heads * n) as u64).map(number).collect();
                all.update(&attention, step).unwrap();
                let mut last = vec![0.0; n];
                for (head, row) in concentration.iter_mut().zip(attention.chunks_exact(n)) {
                    *head = rule.keep_head * *head + (1.0 - rule.keep_head) * squares(row).0;
                }
                let mean = concentration.iter().sum::<f64>() / heads as f64 + LEAST_MEAN;
                plain.iter_mut().for_each(|x| *x *= rule.keep);
                for (head, row) in concentration.iter().zip(attention.chunks_exact(n)) {
                    for item in 0..n {
                        plain[item] += (1.0 - rule.keep) / heads as f64 * row[item];
                        last[item] += head / mean / heads as f64 * row[item];
                    }
                }
                let scores: Vec<f64> = (plain.iter().zip(&last))
                    .map(|(x, last)| {
                        rule.mix * (x / (1.0 - rule.keep.powf(step as f64 + 1.0))) + (1.0 - rule.mix) * last
                    })
                    .collect();
                let mut found = Vec::new();
                all.scores(step, &mut found);
                assert_eq!(found, scores, "{heads} heads, {n} items, step {step}");
            }
        }
    }

    #[test]
    fn scores_age_and_what_cannot_be_is_refused() {
        let mut importance = Importance::new(1, ImportanceRule::default()).unwrap();
        importance.update(&[1.0], 3).unwrap();
        let (mut now, mut later) = (Vec::new(), Vec::new());
        importance.scores(3, &mut now);
        importance.scores(3 + 512, &mut later);
        assert!((later[0] / now[0] - (-1f64).exp()).abs() < 1e-12);
        importance.update(&[0.5, 0.5], 4).unwrap();
        assert!(matches!(importance.update(&[1.0], 5), Err(ControlError::Length { .. })));
        assert!(matches!(importance.update(&[1.0, f64::NAN], 5), Err(ControlError::Invalid { index: 1, .. })));
        assert!(matches!(importance.update(&[-0.1, 0.5], 5), Err(ControlError::Invalid { index: 0, .. })));
        assert!(matches!(importance.update(&[0.5, f64::INFINITY], 5), Err(ControlError::Invalid { index: 1, .. })));
        importance.truncate(1);
        importance.update(&[-0.0], 5).unwrap();
        assert_eq!(importance.len(), 1);
        let two = Importance::new(2, ImportanceRule::default());
        assert!(matches!(two.unwrap().update(&[1.0; 3], 0), Err(ControlError::Length { got: 3, need: 2, .. })));
        for rule in [
            ImportanceRule { keep: 1.0, ..ImportanceRule::default() },
            ImportanceRule { mix: f64::NAN, ..ImportanceRule::default() },
            ImportanceRule { life: 0.0, ..ImportanceRule::default() },
        ] {
            assert!(Importance::new(1, rule).is_err());
        }
    }
}
