//! Rows of a block that are read elsewhere, math.md (6.16): once the block is weighed, their weights are taken out of it.
use crate::attend::{Kernel, Workspace};
use crate::error::KernelError;
use crate::line::{Line, madd};
use crate::masses::{Masses, MassesMut};
use crate::query::X_STRIDE;
use crate::score::{Scores, gap};

/// Whether token `t` is among `rows`.
pub(crate) fn has(rows: u64, t: usize) -> bool {
    rows.checked_shr(t as u32).is_some_and(|rest| rest & 1 == 1)
}

/// How far the logits of two weights are apart, each relative to its exponent, in nats, and the roundings of that. A weight that underflowed says only that
/// its logit was no larger.
fn apart(a: (f32, f32), b: (f32, f32)) -> (f32, f32) {
    let (known, other) = if a.0 < f32::MIN_POSITIVE { (b, a) } else { (a, b) };
    if known.0 < f32::MIN_POSITIVE {
        return (0.0, 0.0);
    }
    let x = known.0.log2() + known.1;
    // Two units of the logarithm, and the sum's rounding at the size of the exponent.
    (gap(x, other.0, other.1), (x.abs() + 32.0) * 4.0 * f32::EPSILON)
}

/// Sets the weights of `rows` to 0. Sum and sum of squares of the others, always in this order: so a block has the same sums whenever it is read.
fn without(rows: u64, weights: &mut [Line]) -> (f32, f32) {
    let (mut sum, mut square) = (Line::ZERO, Line::ZERO);
    for (l, line) in weights.iter_mut().enumerate() {
        for i in 0..16 {
            let w = if has(rows, 16 * l + i) { 0.0 } else { line.0[i] };
            line.0[i] = w;
            sum.0[i] += w;
            square.0[i] = madd(w, w, square.0[i]);
        }
    }
    (sum.sum(), square.sum())
}

impl Kernel {
    /// Takes `rows` (bit `t` for token `t`) out of the weights in the workspace. What no weight exceeds stays that of the whole block, and so do
    /// its digits.
    pub(crate) fn leave_out(&self, rows: u64, work: &mut Workspace) {
        if rows == 0 {
            return;
        }
        for h in 0..self.shape.heads {
            let weights = &mut work.x[h * X_STRIDE..h * X_STRIDE + self.shape.tokens / 16];
            (work.softmax.sum[h], work.softmax.square[h]) = without(rows, weights);
        }
    }

    /// Weights of the scored block `block` by sixteen tokens, relative to its exponent; nothing where there are none.
    pub fn row_weights<'s>(
        &self,
        scores: &'s Scores,
        head: usize,
        block: usize,
    ) -> impl Iterator<Item = &'s [f32; 16]> {
        let lines = self.shape.tokens / 16;
        let start = self.weights_of(block).start + head * lines;
        scores.weights.get(start..start + lines).unwrap_or(&[]).iter().map(|line| &line.0)
    }

    /// Leaves `rows` (bit `t` for token `t`) out of a block that was scored with them: its weights and masses are those of the others. From here
    /// on whoever reads the block has to give it with [`Block::left_out`](crate::Block::left_out). Reads nothing but weights.
    ///
    /// # Errors
    /// [`KernelError::Length`] for a block that was not scored.
    pub fn leave_rows_out(
        &self,
        block: usize,
        rows: u64,
        scores: &mut Scores,
        masses: &mut MassesMut<'_>,
    ) -> Result<(), KernelError> {
        if block >= scores.blocks {
            return Err(KernelError::Length { argument: "block", expected: scores.blocks, given: block });
        }
        masses.check(block..block + 1, self.shape.heads)?;
        // Nothing changes, not even the order of sums.
        if rows == 0 {
            return Ok(());
        }
        let (range, lines) = (self.weights_of(block), self.shape.tokens / 16);
        for (h, weights) in scores.weights[range].chunks_exact_mut(lines).enumerate() {
            let (sum, square) = without(rows, weights);
            masses.put_weights(block, h, sum, square.sqrt());
        }
        Ok(())
    }

    /// The canary (7.4) of a row that was scored twice, as token `from.1` of block `from.0` and as `to.1` of `to.0`: the largest over heads of
    /// `|z_from - z_to| - (Delta + zeta)`, the bounds being those of both blocks, in nats. Positive (or NaN) means that codes and annotations
    /// disagree. Logits whose weight underflowed are compared from the underflow on.
    pub fn row_excess(&self, scores: &Scores, masses: &Masses, from: (usize, usize), to: (usize, usize)) -> f32 {
        let mut worst = f32::NEG_INFINITY;
        for h in 0..self.shape.heads {
            let weight = |(block, row): (usize, usize)| {
                self.row_weights(scores, h, block).nth(row / 16).map_or(f32::NAN, |line| line[row % 16])
            };
            let (Some(a), Some(b)) = (masses.get(h, from.0), masses.get(h, to.0)) else { return f32::NAN };
            let (apart, rounding) = apart((weight(from), a.exponent), (weight(to), b.exponent));
            let excess = apart - (a.delta + a.zeta + b.delta + b.zeta + rounding);
            worst = if excess <= worst { worst } else { excess };
        }
        worst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_left_out_weigh_nothing_and_the_others_what_they_did() {
        let mut lines = [Line(core::array::from_fn(|i| 1.0 + i as f32)), Line([2.0; 16])];
        let (sum, square) = without(1 | 1 << 17, &mut lines);
        assert_eq!((sum, square), (136.0 - 1.0 + 30.0, 1496.0 - 1.0 + 60.0));
        assert!(has(1 << 63, 63) && !has(u64::MAX, 64));
        assert_eq!((lines[0].0[0], lines[0].0[1], lines[1].0[1], lines[1].0[2]), (0.0, 2.0, 0.0, 2.0));
    }

    #[test]
    fn a_weight_that_underflowed_is_an_upper_bound_of_its_logit() {
        let nats = core::f32::consts::LN_2;
        assert_eq!(apart((1.0, 3.0), (0.5, 6.0)).0, 2.0 * nats);
        // Both ways round: nothing is known below 2^(e - 123.5), and what lies above it is too far.
        for (a, b) in [((1.0, -130.0), (0.0, 0.0)), ((0.0, 0.0), (1.0, -130.0))] {
            assert_eq!(apart(a, b).0, 0.0);
        }
        for (a, b) in [((1.0, 0.0), (0.0, 0.0)), ((0.0, 0.0), (1.0, 0.0))] {
            assert_eq!(apart(a, b).0, 123.5 * nats);
        }
        assert!(apart((f32::NAN, 0.0), (1.0, 0.0)).0.is_nan() && apart((0.0, 0.0), (f32::NAN, 0.0)).0.is_nan());
    }
}
