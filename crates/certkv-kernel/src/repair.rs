//! Repair, math.md (6.11): the old contribution of newly promoted blocks out, the new one in; only those blocks are read.
use crate::ahead::Ahead;
use crate::attend::{Kernel, Workspace, describe};
use crate::block::BlockSource;
use crate::error::KernelError;
use crate::line::Line;
use crate::magnitude::norm;
use crate::masses::{Bounds, Entry, Masses, MassesMut};
use crate::partial::Partial;
use crate::query::{HEADS, Softmax, X_STRIDE};
use crate::score::Scores;
use crate::slack::digit_term;
use certkv_core::{ErrorSummary, OutOfMemory, reserve_total};

/// How a repair ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repair {
    /// State and masses now describe the pass with the new sides.
    Done,
    /// For some head the subtraction would cancel too much. State and masses are as before; run the whole pass again.
    NeedsRecompute,
}

/// What a repair needs beside the buffers of a pass.
#[derive(Debug, Clone)]
pub(crate) struct Mend {
    old: Partial,
    new: Partial,
    changed: Partial,
    entries: Vec<(Entry, Bounds)>,
    /// Of value sides, with their digit terms.
    values: Vec<(Entry, [f32; HEADS])>,
    /// Logits of one block, before and after.
    x: Vec<Line>,
    /// What [`swap_sums`] exchanges.
    sums: [(Vec<Line>, Vec<Line>); 2],
}

impl Default for Mend {
    fn default() -> Self {
        let [old, new, changed] = [(); 3].map(|()| Partial::new(0, 0));
        Self { old, new, changed, entries: Vec::new(), values: Vec::new(), x: Vec::new(), sums: Default::default() }
    }
}

impl Kernel {
    /// Asks for the memory of repairs of up to so many blocks, of which those ask for none.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn reserve_repairs(&self, work: &mut Workspace, blocks: usize) -> Result<(), OutOfMemory> {
        let of_values = [work.values.middle.len(), work.values.turned.len()];
        let Mend { old, new, changed, entries, values, x, sums } = &mut **work.mend.get_or_insert_default();
        reserve_total(entries, blocks)?;
        reserve_total(values, blocks)?;
        x.resize(2 * self.shape.heads * X_STRIDE, Line::ZERO);
        for partial in [old, new, changed].into_iter().filter(|p| p.heads < self.shape.heads) {
            self.empty(partial);
        }
        for (middle, turned) in sums {
            middle.resize(of_values[0], Line::ZERO);
            turned.resize(of_values[1], Line::ZERO);
        }
        Ok(())
    }

    /// Replaces the contribution of each block of `list` as read from `before` by that read from `after`.
    ///
    /// A weight is the same number whatever the running exponent was (docs/kernels.md, "Weights"), so what is taken away
    /// is what was added, up to the roundings of the sums; [`Partial`] remembers the gross sum for (5.27).
    ///
    /// Codes of keys whose logits are in `scores`, which must be of the same queries ([`Scores::knows`]), are not read again.
    ///
    /// `canary[i]` receives, for block `list[i]`, the largest over heads and tokens of
    /// `|z(after) - z(before)| - (Delta + zeta_before + zeta_after)` in nats: positive (or NaN) means that codes and
    /// annotations disagree, math.md (7.4). It is written for [`Repair::NeedsRecompute`] too.
    ///
    /// # Errors
    /// As [`Kernel::attend`]; `partial` and `masses` are then as before.
    #[allow(clippy::too_many_arguments, reason = "the repair has these inputs; a struct would only rename them")]
    pub fn repair<A: BlockSource + ?Sized, B: BlockSource + ?Sized>(
        &self,
        queries: &[f32],
        before: &A,
        after: &B,
        list: &[usize],
        scores: &Scores,
        work: &mut Workspace,
        partial: &mut Partial,
        mut masses: MassesMut<'_>,
        canary: &mut [f32],
    ) -> Result<Repair, KernelError> {
        self.check_out(partial)?;
        if canary.len() != list.len() {
            return Err(KernelError::Length { argument: "canary", expected: list.len(), given: canary.len() });
        }
        for &b in list {
            masses.check(b..b + 1, self.shape.heads)?;
        }
        self.load_query(queries, before.key_metric(self.layout.format.key), work)?;
        work.centre = norm(before.centre());
        // Goes with an error.
        let mut mend = work.mend.take().unwrap_or_default();
        let Mend { old, new, changed, entries, x, sums, .. } = &mut *mend;
        self.empty(old);
        self.empty(new);
        changed.copy(partial);
        entries.clear();
        let mut softmax = [Softmax::new(), Softmax::new()];
        for (middle, turned) in sums.iter_mut() {
            for (sum, like) in [(middle, &work.values.middle), (turned, &work.values.turned)] {
                sum.clear();
                sum.resize(like.len(), Line::ZERO);
            }
        }
        for (&index, canary) in list.iter().zip(canary.iter_mut()) {
            x.clear();
            let mut side = |i: usize, block, out: &mut Partial, work: &mut Workspace| {
                let known = self.known_logits(index, &block, scores);
                core::mem::swap(&mut work.softmax, &mut softmax[i]);
                swap_sums(work, &mut sums[i]);
                let entry = self.one(index, block, known, work, out, x);
                core::mem::swap(&mut work.softmax, &mut softmax[i]);
                swap_sums(work, &mut sums[i]);
                entry
            };
            let a = side(0, before.block(index), old, work)?;
            let b = side(1, after.block(index), new, work)?;
            let half = x.len() / 2;
            let mut worst = f32::NEG_INFINITY;
            for h in 0..self.shape.heads {
                let allowed = a.1.delta[h] + b.1.delta[h] + a.1.zeta[h] + b.1.zeta[h];
                for t in 0..self.shape.tokens {
                    let i = h * X_STRIDE + t / 16;
                    let (za, zb): (&Line, &Line) = (&x[i], &x[half + i]);
                    let excess = (za.0[t % 16] - zb.0[t % 16]).abs() * core::f32::consts::LN_2 - allowed;
                    worst = if excess <= worst { worst } else { excess };
                }
            }
            *canary = worst;
            changed.take_note(a.0.value_norm);
            entries.push(b);
        }
        for (i, out) in [&mut *old, &mut *new].into_iter().enumerate() {
            core::mem::swap(&mut work.softmax, &mut softmax[i]);
            swap_sums(work, &mut sums[i]);
            self.close(before.centre(), work, out);
        }
        changed.add(old, -1.0);
        changed.add(new, 1.0);
        let done = (0..self.shape.heads).all(|h| sound(changed, h));
        if done {
            core::mem::swap(partial, changed);
            for (&index, (entry, bounds)) in list.iter().zip(entries.iter()) {
                masses.put(index, entry, bounds);
            }
        }
        work.mend = Some(mend);
        Ok(if done { Repair::Done } else { Repair::NeedsRecompute })
    }

    /// Replaces what the values of each block of `list` add, as `before` gives them, by what they add as `after` does, with the weights that
    /// [`Kernel::score`] left and [`Kernel::gather`] used. No keys are read. For blocks of which neither keys nor rows have been read otherwise since
    /// then; `partial` may have been repaired in others.
    ///
    /// # Errors
    /// As [`Kernel::gather`]; [`KernelError::Length`] for a block without weights. `partial` and `masses` are then as before.
    #[allow(clippy::too_many_arguments, reason = "the repair has these inputs; a struct would only rename them")]
    pub fn repair_values<A: BlockSource + ?Sized, B: BlockSource + ?Sized>(
        &self,
        before: &A,
        after: &B,
        list: &[usize],
        work: &mut Workspace,
        scores: &Scores,
        partial: &mut Partial,
        masses: &mut Masses,
    ) -> Result<Repair, KernelError> {
        self.check_out(partial)?;
        for &b in list {
            masses.as_mut().check(b..b + 1, self.shape.heads)?;
            if b >= scores.blocks || scores.weights.len() < self.weights_of(scores.blocks).end {
                return Err(KernelError::Length { argument: "list", expected: scores.blocks, given: b });
            }
        }
        // Goes with an error.
        let mut mend = work.mend.take().unwrap_or_default();
        let Mend { old, new, changed, values, .. } = &mut *mend;
        let exponents = partial.exponent;
        changed.copy(partial);
        self.weighted(before, list, exponents, work, (scores, masses), old, values)?;
        values.iter().for_each(|(entry, _)| changed.take_note(entry.value_norm));
        self.weighted(after, list, exponents, work, (scores, masses), new, values)?;
        changed.add(old, -1.0);
        changed.add(new, 1.0);
        // Weights are what they were.
        changed.l = partial.l;
        let done = (0..self.shape.heads).all(|h| sound(changed, h));
        if done {
            core::mem::swap(partial, changed);
            for (&index, (entry, digit)) in list.iter().zip(values.iter()) {
                masses.as_mut().put_values(index, entry, &exponents, digit);
            }
        }
        work.mend = Some(mend);
        Ok(if done { Repair::Done } else { Repair::NeedsRecompute })
    }

    /// What the values of `list` add to the output, and their entries.
    #[allow(clippy::too_many_arguments, reason = "the repair has these inputs; a struct would only rename them")]
    fn weighted<S: BlockSource + ?Sized>(
        &self,
        source: &S,
        list: &[usize],
        exponent: [f32; HEADS],
        work: &mut Workspace,
        (scores, masses): (&Scores, &Masses),
        out: &mut Partial,
        entries: &mut Vec<(Entry, [f32; HEADS])>,
    ) -> Result<(), KernelError> {
        self.empty(out);
        entries.clear();
        work.softmax = Softmax { exponent, ..Softmax::new() };
        work.values.clear();
        work.centre = norm(source.centre());
        work.ahead = Ahead::default();
        for &index in list {
            let block = source.block(index);
            self.load_weights(index, scores, masses, work);
            let summary = ErrorSummary::from_bytes(block.record.get(self.layout.summary.clone()).unwrap_or(&[]));
            let (mut entry, exact) = (Entry::ZERO, self.layout.format.value.is_exact());
            describe(&mut entry, &summary, self.shape.tokens, true, block.values.is_some() || exact);
            self.values(index, &block, work, out, &mut entry)?;
            let digit = work.softmax.max.map(|most| digit_term(&entry.slack, most, self.ops.weight_levels));
            entries.push((entry, digit));
            out.tokens += self.shape.tokens;
            for h in 0..self.shape.heads {
                out.l[h] += work.softmax.sum[h];
            }
        }
        self.close(source.centre(), work, out);
        Ok(())
    }
}

/// Exchanges the sums that a workspace keeps beside the output.
fn swap_sums(work: &mut Workspace, sums: &mut (Vec<Line>, Vec<Line>)) {
    core::mem::swap(&mut work.values.middle, &mut sums.0);
    core::mem::swap(&mut work.values.turned, &mut sums.1);
}

/// Largest ratio of everything ever added or taken away to what is left. Rounding errors stay relative to the former, so
/// this is the factor by which a repair may magnify them (5.27). A dominant block leaves and comes back at about its
/// old weight: a ratio of 3.
const LARGEST_GROSS: f32 = 16.0;

/// True if the head's sums survived the subtraction. NaN is false.
fn sound(changed: &Partial, head: usize) -> bool {
    changed.l[head] > 0.0 && changed.gross[head] <= LARGEST_GROSS * changed.l[head]
}
