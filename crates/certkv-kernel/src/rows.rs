//! Rows of a block that are read elsewhere, math.md (6.16): once the block is weighed, their weights are taken out of it.
use crate::attend::{Kernel, Workspace};
use crate::error::KernelError;
use crate::line::{Line, madd};
use crate::masses::{Masses, MassesMut};
use crate::query::X_STRIDE;
use crate::score::{Scores, gap};

/// Sets the weights of `rows` to 0. Sum and sum of squares of the others, always in this order: so a block has the same sums whenever it is read.
fn without(rows: u64, weights: &mut [Line]) -> (f32, f32) {
    let (mut sum, mut square) = (Line::ZERO, Line::ZERO);
    for (l, line) in weights.iter_mut().enumerate() {
        for i in 0..16 {
            let w =
                if rows.checked_shr((16 * l + i) as u32).is_some_and(|rest| rest & 1 == 1) { 0.0 } else { line.0[i] };
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
            let (known, other) = (weight(to), weight(from));
            // A weight that underflowed says only that its logit was no larger.
            let x = if known < f32::MIN_POSITIVE { f32::NEG_INFINITY } else { known.log2() + b.exponent };
            let apart = if x == f32::NEG_INFINITY { 0.0 } else { gap(x, other, a.exponent) };
            // Two units of the logarithm, and the sum's rounding at the size of the exponent.
            let rounding = (x.abs().min(f32::MAX) + 32.0) * 4.0 * f32::EPSILON;
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
        assert_eq!((lines[0].0[0], lines[0].0[1], lines[1].0[1], lines[1].0[2]), (0.0, 2.0, 0.0, 2.0));
    }
}
