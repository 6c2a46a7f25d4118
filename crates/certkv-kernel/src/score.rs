//! The first half of a step in two sweeps: logits of every block to weights that are kept, and masses (math.md 5.3). What
//! is read exactly, and which values are read at all, can then be decided with this step's masses; [`Kernel::gather`] is
//! the second half. Together the sweeps read what one pass reads, and each byte once.
use crate::ahead::{Ahead, Sides};
use crate::attend::{Kernel, Workspace};
use crate::block::{BlockSource, Tail};
use crate::error::KernelError;
use crate::line::Line;
use crate::logits::Logits;
use crate::masses::{Entry, MassesMut};
use crate::query::{Softmax, X_STRIDE};
use crate::rows::has;
use certkv_core::{OutOfMemory, reserve_total};
use core::ops::Range;

/// Weights of the scored blocks of one KV head, each relative to its own block's exponent (in the masses).
#[derive(Debug, Clone, Default)]
pub struct Scores {
    /// `[block][head][tokens / 16]` lines; the tail comes after the last block.
    pub(crate) weights: Vec<Line>,
    /// `[block][head]`: what no weight exceeds, see [`Softmax::max`].
    pub(crate) largest: Vec<f32>,
    /// `[block][head]`: what weights are relative to. Written when values are summed, which moves the exponents in the masses.
    pub(crate) exponents: Vec<f32>,
    /// Of blocks that were read from codes alone.
    pub(crate) logits: Logits,
    /// Running exponents of the sweep.
    pub(crate) softmax: Option<Softmax>,
    pub(crate) blocks: usize,
    pub(crate) tail: usize,
    /// Blocks whose values are summed already.
    pub(crate) summed: usize,
}

impl Scores {
    /// No weights; buffers grow on first use.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for the memory of so many blocks.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn reserve(&mut self, kernel: &Kernel, blocks: usize) -> Result<(), OutOfMemory> {
        reserve_total(&mut self.weights, kernel.weights_of(blocks).end)?;
        reserve_total(&mut self.largest, (blocks + 1) * kernel.heads())?;
        reserve_total(&mut self.exponents, (blocks + 1) * kernel.heads())?;
        self.logits.reserve(kernel, blocks)
    }

    /// Forgets what was scored, of which other queries know nothing.
    pub fn clear(&mut self) {
        self.logits.forget_from(0);
        (self.softmax, self.blocks, self.tail, self.summed) = (None, 0, 0, 0);
    }

    /// Whether the logits of `block`'s codes are kept: whoever scores it again does not read its codes. They are from [`Kernel::score`] on, whatever
    /// the block has been read as since.
    pub fn knows(&self, block: usize) -> bool {
        self.logits.knows(block)
    }

    /// The running exponents: they are there from [`Kernel::score`] on until the last block's values are summed.
    ///
    /// # Errors
    /// [`KernelError::Length`] if there are none, or if another kernel's shape was scored.
    pub(crate) fn take(&mut self, kernel: &Kernel) -> Result<Softmax, KernelError> {
        let (expected, given) = (kernel.weights_of(self.blocks).end, self.weights.len());
        let softmax = self.softmax.take().filter(|_| given >= expected);
        softmax.ok_or(KernelError::Length { argument: "scores", expected, given })
    }
}

impl Kernel {
    fn lines(&self) -> usize {
        self.shape.tokens / 16
    }

    /// Lines of block `index`'s weights in [`Scores::weights`].
    pub(crate) fn weights_of(&self, index: usize) -> Range<usize> {
        let each = self.shape.heads * self.lines();
        index * each..(index + 1) * each
    }

    /// Scores blocks `blocks` of `source` and then `tail` for `queries` (`[heads][dim]`, unscaled): weights to
    /// `scores`, an entry per block to `masses` (which must start at block 0), the tail's at index `blocks.end`. Value sides
    /// in the entries are those of the codes. A range that does not start at 0 goes on where the last call ended: so blocks of
    /// several layouts are scored, each run by its own kernel, the tail with the last. Where a tail was scored, more blocks take its place, and it has to
    /// come again behind them. Logits of codes are kept for
    /// [`Kernel::rescore`] and [`Kernel::repair`].
    ///
    /// # Errors
    /// As [`Kernel::attend`]; [`KernelError::Length`] for a range that does not follow the last, or another tail than the one whose place it takes.
    #[allow(clippy::too_many_arguments, reason = "the sweep has these inputs; a struct would only rename them")]
    pub fn score<S: BlockSource + ?Sized>(
        &self,
        queries: &[f32],
        source: &S,
        blocks: Range<usize>,
        tail: Option<&Tail<'_>>,
        work: &mut Workspace,
        scores: &mut Scores,
        masses: &mut MassesMut<'_>,
    ) -> Result<(), KernelError> {
        self.load_query(queries, source.key_metric(self.layout.format.key), work)?;
        masses.check(0..blocks.end + usize::from(tail.is_some()), self.shape.heads)?;
        // A tail that was scored comes again, or its tokens would be lost.
        let (before, given) = (if blocks.start == 0 { 0 } else { scores.tail }, tail.map_or(0, |t| t.tokens));
        if before > 0 && given != before {
            return Err(KernelError::Length { argument: "tail.tokens", expected: before, given });
        }
        work.softmax = match blocks.start {
            0 => Softmax::new(),
            start if start == scores.blocks && scores.summed == 0 => scores.take(self)?,
            start => return Err(KernelError::Length { argument: "blocks", expected: scores.blocks, given: start }),
        };
        (scores.blocks, scores.tail, scores.summed) = (blocks.end, tail.map_or(0, |t| t.tokens), 0);
        scores.weights.resize(self.weights_of(blocks.end).end, Line::ZERO);
        scores.largest.resize((blocks.end + 1) * self.shape.heads, 0.0);
        scores.exponents.resize((blocks.end + 1) * self.shape.heads, f32::NAN);
        scores.logits.begin(self, blocks.start, blocks.end);
        work.stage.clear();
        let mut entry = Entry::ZERO;
        let mut next = (!blocks.is_empty()).then(|| source.block(blocks.start));
        for index in blocks.clone() {
            let Some(block) = next.take() else { break };
            if index + 1 < blocks.end {
                next = Some(source.block(index + 1));
            }
            work.ahead = self.look_ahead(&block, next.as_ref(), Sides::Keys);
            self.keys(index, &block, None, work, &mut entry)?;
            self.keep_logits(index, &block, work, &mut scores.logits);
            (self.ops.weigh)(&mut work.x, self.shape.tokens, self.shape, &mut work.softmax);
            self.leave_out(block.left_out, work);
            self.keep(index, work, scores);
            (self.ops.finish)(&mut work.ahead.record);
            self.stage(index, &entry, work, masses);
        }
        self.seal(blocks.end.saturating_sub(1), work, masses);
        if let Some(tail) = tail {
            let entry = self.tail_keys(tail, work)?;
            (self.ops.weigh)(&mut work.x, tail.tokens, self.shape, &mut work.softmax);
            self.keep(blocks.end, work, scores);
            masses.put(blocks.end, &entry, &self.bounds(&entry, work));
        }
        scores.softmax = Some(work.softmax);
        Ok(())
    }

    /// Scores the blocks of `list` again, whose keys `source` now gives exactly, or with their residuals: weights and masses are
    /// replaced. All of them must be of this kernel's layout. Residuals are added to the logits of codes, which are not read again.
    ///
    /// `canary[i]` receives, for block `list[i]`, the largest over heads and tokens of `|z_now - z_before| -
    /// (Delta + zeta)`, the bounds being those of both, in nats: positive (or NaN) means that codes and annotations disagree, math.md (7.4).
    /// Where logits are not kept, those so far below the block's largest that their weight underflowed are compared from the underflow on.
    ///
    /// # Errors
    /// As [`Kernel::attend`]; [`KernelError::Length`] for a block that was not scored or a `canary` of another length.
    #[allow(clippy::too_many_arguments, reason = "the sweep has these inputs; a struct would only rename them")]
    pub fn rescore<S: BlockSource + ?Sized>(
        &self,
        queries: &[f32],
        source: &S,
        list: &[usize],
        work: &mut Workspace,
        scores: &mut Scores,
        masses: &mut MassesMut<'_>,
        canary: &mut [f32],
    ) -> Result<(), KernelError> {
        if canary.len() != list.len() {
            return Err(KernelError::Length { argument: "canary", expected: list.len(), given: canary.len() });
        }
        self.load_query(queries, source.key_metric(self.layout.format.key), work)?;
        work.softmax = scores.take(self)?;
        work.ahead = Ahead::default();
        for (&index, canary) in list.iter().zip(canary.iter_mut()) {
            if index >= scores.blocks {
                return Err(KernelError::Length { argument: "list", expected: scores.blocks, given: index });
            }
            masses.check(index..index + 1, self.shape.heads)?;
            let mut entry = Entry::ZERO;
            let block = source.block(index);
            self.keys(index, &block, self.known_logits(index, &block, scores), work, &mut entry)?;
            let (mut worst, kept) = (f32::NEG_INFINITY, self.weighed_logits(index, scores));
            // What it was weighed with before; only the bounds of its logits are of use yet.
            let now = self.bounds(&entry, work);
            for h in 0..self.shape.heads {
                let (delta, before, exponent) = masses.logit_bound(index, h);
                let allowed = delta + before + now.delta[h] + now.zeta[h];
                let kept = kept.map(|kept| &kept[h * self.lines()..]);
                for l in 0..self.lines() {
                    let (x, range) = (&work.x[h * X_STRIDE + l].0, self.weights_of(index));
                    let excess: [f32; 16] = match kept {
                        Some(kept) => {
                            let kept = &kept[l].0;
                            core::array::from_fn(|i| (x[i] - kept[i]).abs() * core::f32::consts::LN_2 - allowed)
                        }
                        None => {
                            let weights = &scores.weights[range.start + h * self.lines() + l].0;
                            // What was left out has no weight to compare with.
                            let there = |i: usize| !has(block.left_out, 16 * l + i);
                            let gap = |i: usize| if there(i) { gap(x[i], weights[i], exponent) } else { 0.0 };
                            core::array::from_fn(|i| gap(i) - allowed)
                        }
                    };
                    // `!(excess <= worst)` lets NaN in.
                    worst = excess.iter().fold(worst, |worst, x| if *x <= worst { worst } else { *x });
                }
            }
            *canary = worst;
            (self.ops.weigh)(&mut work.x, self.shape.tokens, self.shape, &mut work.softmax);
            self.leave_out(block.left_out, work);
            self.keep(index, work, scores);
            scores.logits.pass(index);
            masses.put(index, &entry, &self.bounds(&entry, work));
        }
        scores.softmax = Some(work.softmax);
        Ok(())
    }

    /// Weights from the workspace into `scores`.
    fn keep(&self, index: usize, work: &Workspace, scores: &mut Scores) {
        let (s, lines, heads) = (&work.softmax, self.lines(), self.shape.heads);
        let range = self.weights_of(index);
        for (h, to) in scores.weights[range].chunks_exact_mut(lines).enumerate() {
            to.copy_from_slice(&work.x[h * X_STRIDE..h * X_STRIDE + lines]);
        }
        scores.largest[index * heads..(index + 1) * heads].copy_from_slice(&s.max[..heads]);
    }
}

/// `|z - log w|` in nats, `z` the base-2 logit `x`, `w` relative to `2^exponent`. A weight below the normal range says
/// only that the logit was no larger than that.
pub(crate) fn gap(x: f32, w: f32, exponent: f32) -> f32 {
    /// A weight below `2^-124` has a logit below this, rounding included.
    const FLOOR: f32 = -123.5;
    let nats = core::f32::consts::LN_2;
    if w < f32::MIN_POSITIVE * 4.0 {
        // `x * 0` brings back the NaN that `max` drops; a NaN weight fails the comparison above.
        return (x - (exponent + FLOOR)).max(0.0) * nats + (x * 0.0);
    }
    (f64::from(x) - f64::from(exponent) - f64::from(w).log2()).abs() as f32 * nats
}
