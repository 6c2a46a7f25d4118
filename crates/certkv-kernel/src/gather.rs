//! The second half of a step in two sweeps: `o = sum_t w_t v'_t` with the weights that [`Kernel::score`] left, each block's
//! values from codes, from the originals, or not at all.
use crate::ahead::Sides;
use crate::arch::generic::softmax::power;
use crate::attend::{Kernel, Workspace};
use crate::block::{BlockSource, Tail};
use crate::error::KernelError;
use crate::line::Line;
use crate::magnitude::norm;
use crate::masses::{Masses, TILE};
use crate::partial::Partial;
use crate::query::{Softmax, X_STRIDE};
use crate::score::Scores;
use crate::slack::digit_term;
use core::ops::Range;

impl Kernel {
    /// Log-mass scale of each head after [`Kernel::score`]: `out`'s exponent and sum of weights are those of all scored
    /// blocks, its output is empty. A few nanoseconds a block.
    ///
    /// # Errors
    /// [`KernelError::Length`] for an `out` or `masses` of another shape.
    pub fn total(&self, scores: &Scores, masses: &Masses, out: &mut Partial) -> Result<(), KernelError> {
        self.check_out(out)?;
        out.clear();
        let entries = scores.blocks + usize::from(scores.tail > 0);
        if masses.heads() != self.shape.heads || masses.capacity() < entries {
            return Err(KernelError::Length { argument: "masses", expected: entries, given: masses.capacity() });
        }
        for h in 0..self.shape.heads {
            let tiles =
                || (0..entries.div_ceil(TILE)).filter_map(|t| Some((masses.head_tile(h, t)?, entries - t * TILE)));
            // Written so that NaN stays: it must reach the certificate.
            let larger = |a: f32, e: &f32| if *e <= a { a } else { *e };
            let most = tiles().fold(Softmax::EMPTY, |a, (r, n)| r.exponent.iter().take(n).fold(a, larger));
            let term = |(w, e): (&f32, &f32)| f64::from(*w) * f64::from(power(*e - most));
            let sum: f64 = tiles().map(|(r, n)| r.w.iter().zip(&r.exponent).take(n).map(term).sum::<f64>()).sum();
            (out.exponent[h], out.l[h]) = (most, sum as f32);
        }
        out.gross = out.l;
        out.tokens = scores.blocks * self.shape.tokens + scores.tail;
        Ok(())
    }

    /// Outputs of scored blocks, values as `source` gives them, and then of `tail`, which must be the one that was
    /// scored. `out` must hold the [`Kernel::total`]; `masses` receives the value part of each entry. A range that does not start at 0
    /// goes on where the last call ended, as in [`Kernel::score`]; the one that ends with the last scored block has the tail, and uses
    /// `scores` up.
    ///
    /// # Errors
    /// As [`Kernel::attend`]; [`KernelError::Length`] for another tail, a range that does not follow the last, or scores that were used
    /// up.
    #[allow(clippy::too_many_arguments, reason = "the sweep has these inputs; a struct would only rename them")]
    pub fn gather<S: BlockSource + ?Sized>(
        &self,
        source: &S,
        blocks: Range<usize>,
        tail: Option<&Tail<'_>>,
        work: &mut Workspace,
        scores: &mut Scores,
        masses: &mut Masses,
        out: &mut Partial,
    ) -> Result<(), KernelError> {
        self.check_out(out)?;
        let last = blocks.end == scores.blocks;
        let (expected, given) = (if last { scores.tail } else { 0 }, tail.map_or(0, |t| t.tokens));
        if given != expected {
            return Err(KernelError::Length { argument: "tail.tokens", expected, given });
        }
        let first = if blocks.start == 0 { 0 } else { scores.summed };
        if blocks.start != first || blocks.end > scores.blocks {
            return Err(KernelError::Length { argument: "blocks", expected: first, given: blocks.start });
        }
        masses.as_mut().check(0..scores.blocks + usize::from(expected > 0), self.shape.heads)?;
        let softmax = scores.take(self)?;
        if !last {
            (scores.softmax, scores.summed) = (Some(softmax), blocks.end);
        }
        if blocks.start == 0 {
            out.o.fill(Line::ZERO);
            out.chain = 0;
        }
        work.softmax = Softmax { exponent: out.exponent, ..Softmax::new() };
        work.values.clear();
        work.centre = norm(source.centre());
        let exact = self.layout.format.value.is_exact();
        let mut next = (!blocks.is_empty()).then(|| source.block(blocks.start));
        for index in blocks.clone() {
            let Some(block) = next.take() else { break };
            if index + 1 < blocks.end {
                next = Some(source.block(index + 1));
            }
            work.ahead = self.look_ahead(&block, next.as_ref(), Sides::Values);
            self.note_exponents(index, scores, masses);
            self.load_weights(index, scores, masses, work);
            let mut entry = masses.value_side(index, block.values.is_some() || exact);
            self.values(index, &block, work, out, &mut entry)?;
            (self.ops.finish)(&mut work.ahead.record);
            let digit = work.softmax.max.map(|most| digit_term(&entry.slack, most, self.ops.weight_levels));
            masses.as_mut().put_values(index, &entry, &out.exponent, &digit);
        }
        if let Some(tail) = tail {
            self.note_exponents(blocks.end, scores, masses);
            self.load_weights(blocks.end, scores, masses, work);
            self.tail_values(tail, work, out);
        }
        let (l, tokens) = (out.l, out.tokens);
        self.close(source.centre(), work, out);
        (out.l, out.gross, out.tokens) = (l, l, tokens);
        Ok(())
    }

    /// Keeps what block `index`'s weights are relative to: its entry is about to be moved.
    fn note_exponents(&self, index: usize, scores: &mut Scores, masses: &Masses) {
        let heads = self.shape.heads;
        let to = &mut scores.exponents[index * heads..(index + 1) * heads];
        to.iter_mut().enumerate().for_each(|(h, to)| *to = masses.weight(h, index).1);
    }

    /// Block `index`'s weights into the workspace, relative to the exponents of the whole. What they are relative to was noted.
    pub(crate) fn load_weights(&self, index: usize, scores: &Scores, masses: &Masses, work: &mut Workspace) {
        let (lines, heads) = (self.shape.tokens / 16, self.shape.heads);
        let from = &scores.weights[self.weights_of(index)];
        let largest = &scores.largest[index * heads..(index + 1) * heads];
        for h in 0..heads {
            let (w, exponent) = masses.weight(h, index);
            let to = power(scores.exponents[index * heads + h] - work.softmax.exponent[h]);
            for (l, line) in from[h * lines..(h + 1) * lines].iter().enumerate() {
                let x = &mut work.x[h * X_STRIDE + l];
                *x = *line;
                if to != 1.0 {
                    x.scale(to);
                }
            }
            let sum = w * power(exponent - work.softmax.exponent[h]);
            (work.softmax.sum[h], work.softmax.max[h]) = (sum, largest[h] * to);
        }
    }
}
