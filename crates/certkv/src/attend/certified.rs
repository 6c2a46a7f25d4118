//! The certified step of one layer of one sequence (math.md 6.6): two sweeps with a decision between them (`decide.rs`),
//! certificate, repair of the heads over tolerance, and the ladder of section 8 for those that repairs do not bring back.
//!
//! Cost of the common step: the key codes once, the originals of the guessed keys instead of their codes, those of the
//! other promoted keys besides; each block's values once, from codes, from the originals, or not at all. A repair reads
//! the promoted blocks once more.
use crate::attend::items;
use crate::attend::log_mass::log_mass;
use crate::attend::pages::{Pages, Run, View};
use crate::attend::promoted::Resident;
use crate::attend::rows::Rows;
use crate::attend::sets::{Item, Sets};
use crate::attend::terms::{self, HeadScale};
use crate::group::{Group, Side};
use crate::work::HeadWork;
use crate::{Error, Tolerance};
use certkv_bound::ladder::decide;
use certkv_bound::{Action, BytesRead, Cause, Rung, Situation, Status};
use certkv_control::policy::Certified;
use certkv_control::{BitSet, Gains};
use certkv_device::Stream;
use certkv_kernel::{Kernel, Masses, Partial, Repair, splits};
use core::ops::Range;

/// Share of the tolerance that a repair aims to leave unpromoted, so that the masses' own change does not undo it.
const REPAIR_TARGET: f64 = 0.95;

/// Share of the tolerance that may be left of digits that a repair cannot take back; past it the pass is made anew.
const LEFT_SHARE: f64 = 1.0 / 64.0;
/// Weights of a block, relative to the running maximum of the sums, from which its digits are the same whenever they are made (6.15): far above what is too
/// little for digits.
const SURE_WEIGHT: f64 = 1.0 / (1u128 << 70) as f64;
/// Digit terms that hold all that a block's codes come to: two of its steps for each of 2^16 digits.
const WHOLE: f64 = (1 << 18) as f64;

/// What one KV head needs to know of the call.
pub(crate) struct HeadCall<'a> {
    pub(crate) group: &'a Group,
    pub(crate) pages: &'a Pages,
    pub(crate) layer: usize,
    /// The stream that computes.
    pub(crate) stream: &'a Stream,
    pub(crate) head: usize,
    /// `[query heads of the group][dim]`.
    pub(crate) queries: &'a [f32],
    pub(crate) centre: &'a [f32],
    /// Of each query head of the group.
    pub(crate) tolerances: &'a [Tolerance],
    pub(crate) blocks: usize,
}

/// `||O' - c||`, rounded up, and `||O'||`; an empty centre is zero.
pub(crate) fn distances(out: &[f32], centre: &[f32]) -> (f32, f64) {
    let (mut radius, mut norm) = (0.0f64, 0.0f64);
    for (i, x) in out.iter().enumerate() {
        let c = centre.get(i).copied().unwrap_or(0.0);
        radius += (f64::from(*x) - f64::from(c)).powi(2);
        norm += f64::from(*x).powi(2);
    }
    (certkv_core::round::up_f32(radius.sqrt() * (1.0 + 1e-9)), norm.sqrt())
}

/// What repairs left in the output of query head `h` (6.15), rounded up.
fn left(all: &[(f64, f32)], partial: &Partial, h: usize) -> f64 {
    match all.get(h) {
        Some((value, exponent)) if *value != 0.0 => {
            let to = f64::from(exponent - partial.exponent(h)).exp2() / f64::from(partial.weight_sum(h));
            value * to * (1.0 + 1e-6)
        }
        _ => 0.0,
    }
}

impl HeadCall<'_> {
    pub(crate) fn centre_norm(&self) -> f32 {
        let square: f64 = self.centre.iter().map(|c| f64::from(*c).powi(2)).sum();
        certkv_core::round::up_f32(square.sqrt() * (1.0 + 1e-9))
    }

    /// Bytes of the pass under the sets in `work`.
    fn bytes(&self, work: &HeadWork) -> BytesRead {
        let sets = &work.sets;
        let (keys, values) = (sets.keys.len(), sets.values.len());
        let (side, dim) = (self.group.layout.original_side_bytes(), self.group.layout.dim);
        let scratch = work.resident.count(sets);
        let rows = self.pages.tail_tokens() + work.rows.len();
        let exact = (keys + values - scratch) * side + rows * dim * 4;
        let of_run = |run: &Run| {
            let (l, count) = (self.group.layout_at(run.level), |set: &BitSet| set.count_in(run.blocks.clone()));
            let coded_values = run.blocks.len() - count(&sets.values) - count(&sets.skipped);
            let residuals =
                count(&sets.fine_keys) * l.key_residuals.len() + count(&sets.fine_values) * l.value_residuals.len();
            (run.blocks.len() - count(&sets.keys)) * l.key_bytes() + coded_values * l.value_bytes() + residuals
        };
        let codes = work.rescored + self.pages.runs().iter().map(of_run).sum::<usize>();
        BytesRead {
            packed: (codes + self.blocks * self.group.layout.summary.len()) as u64,
            scratch: (scratch * side) as u64,
            host: exact as u64,
        }
    }

    /// One pass with the sets in force.
    pub(crate) fn pass(&self, work: &mut HeadWork) -> Result<(), Error> {
        work.masses.reset(self.blocks + work.rows.blocks(&self.group.layout) + 1);
        work.rescored = 0;
        work.left.clear();
        work.weighed.resize(0);
        let view = self.view(&work.resident, &work.sets, &work.rows);
        let sums = [&mut work.partial, &mut work.split];
        let heads = work.certificates.len();
        self.one_pass(heads, self.queries, &view, &mut work.kernel, &mut work.masses, sums)?;
        if work.partial.tokens() == 0 { Err(Error::NoVisibleToken) } else { Ok(()) }
    }

    /// Level by level, splits in order, merged in order into the first of `sums`, the second being a buffer. One fixed order gives the
    /// same bits on any number of threads. `queries` are those of `heads` query heads.
    pub(crate) fn one_pass(
        &self,
        heads: usize,
        queries: &[f32],
        view: &View<'_>,
        work: &mut certkv_kernel::Workspace,
        masses: &mut Masses,
        [sum, split]: [&mut Partial; 2],
    ) -> Result<(), Error> {
        sum.clear();
        let moved = view.rows.map_or(0, |rows| rows.blocks(&self.group.layout));
        for run in self.pages.runs() {
            let own;
            let kernel = match self.group.kernel_at(run.level) {
                kernel if kernel.heads() == heads => kernel,
                kernel => {
                    own = kernel.with_heads(heads)?;
                    &own
                }
            };
            for part in splits(run.blocks.len(), self.group.layout.tokens()) {
                let range = run.blocks.start + part.start..run.blocks.start + part.end;
                let tail = if range.end == self.blocks && moved == 0 {
                    self.pages.tail(self.group, self.head, self.centre_norm())
                } else {
                    None
                };
                // Runs may meet inside a tile: they are computed one after the other, on all tiles.
                kernel.attend(queries, view, range, tail, work, split, Some(masses.as_mut()))?;
                sum.merge(split)?;
            }
        }
        if moved > 0 {
            let (range, tail) =
                (self.blocks..self.blocks + moved, self.pages.tail(self.group, self.head, self.centre_norm()));
            self.group.kernel.attend(queries, view, range, tail, work, split, Some(masses.as_mut()))?;
            sum.merge(split)?;
        }
        Ok(())
    }

    /// Does `what` for each run of `list`, which ascends: with the kernel of its level, its part of the list, and where that begins.
    pub(crate) fn by_level(
        &self,
        list: &[usize],
        mut what: impl FnMut(&Kernel, Range<usize>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut first = 0;
        for run in self.pages.runs() {
            let end = first + list[first..].partition_point(|block| *block < run.blocks.end);
            if end > first {
                what(self.group.kernel_at(run.level), first..end)?;
            }
            first = end;
        }
        Ok(())
    }

    /// The blocks as they are read with these sets.
    pub(crate) fn view<'v>(&'v self, resident: &'v Resident, sets: &'v Sets, rows: &'v Rows) -> View<'v> {
        let Self { pages, group, head, centre, layer, .. } = *self;
        let (resident, sets, rows) = (Some(resident), Some(sets), Some(rows));
        View { pages, group, head, resident, sets, rows, centre, layer: Some(layer) }
    }

    /// Finishes the outputs and certificates of every head from the state of the pass and its masses.
    pub(crate) fn certify(&self, work: &mut HeadWork) -> Result<(), Error> {
        let dim = self.group.layout.dim;
        for h in 0..work.certificates.len() {
            if work.dense[h] {
                continue;
            }
            let out = &mut work.out[h * dim..(h + 1) * dim];
            work.partial.finish(h, out)?;
            let (radius, norm) = distances(out, self.centre);
            let left = left(&work.left, &work.partial, h);
            // Of the output without what is left in it.
            let radius = certkv_core::round::up_f32(f64::from(radius) + left);
            let found = self.group.kernel.certify(&work.masses, &work.partial, h, radius)?;
            let c = &mut work.certificates[h];
            (c.e_key, c.e_val, c.e_drop) = (f64::from(found.e_key), f64::from(found.e_val), 0.0);
            (c.e_arith, c.cap) = (f64::from(found.e_arith) + left, f64::from(found.cap));
            (c.out_norm, c.tol) = (norm, self.tolerances[h].of(norm));
            (c.promoted_keys, c.promoted_values) = (work.sets.keys.len() as u32, work.sets.values.len() as u32);
            c.skipped_values = work.sets.skipped.len() as u32;
        }
        Ok(())
    }

    pub(crate) fn scale(&self, work: &HeadWork, h: usize) -> HeadScale {
        let dim = self.group.layout.dim;
        let radius = f64::from(distances(&work.out[h * dim..(h + 1) * dim], self.centre).0);
        HeadScale::of(&work.partial, h, radius, work.certificates[h].tol)
    }

    /// The certified top `r` of (7.3): the leading blocks, in order, are those that the masses say.
    fn leaders_certified(&self, work: &mut HeadWork, h: usize, r: usize) -> bool {
        let mut leaders = core::mem::take(&mut work.leaders);
        let spread = |b| work.masses.get(h, b).map(|m| (log_mass(work, h, b), f64::from(m.delta + m.zeta)));
        let certain = self.blocks < r || leaders.are_certain((0..self.blocks).filter_map(spread), r);
        work.leaders = leaders;
        certain
    }

    /// Decides for every head whether it is done (8.1), and picks the items to promote for those that are not (6.8).
    pub(crate) fn choose(&self, policy: &Certified, work: &mut HeadWork) -> Result<(), Error> {
        work.picks.clear();
        if work.corrupt.is_some() {
            return Ok(());
        }
        let heads = work.certificates.len();
        let mut allowed = [f64::INFINITY; 16];
        let mut any = false;
        for (h, allowed) in allowed.iter_mut().enumerate().take(heads) {
            let c = work.certificates[h];
            if work.dense[h] || c.status != Status::Uncertified {
                continue;
            }
            let rank_ok = policy.rank.is_none_or(|r| self.leaders_certified(work, h, r));
            let situation = Situation {
                bound: c.quantisation(),
                e_key: c.e_key,
                e_val: c.e_val,
                tol: c.tol,
                rank_ok,
                integrity_ok: true,
                tier_ok: true,
                promoted_keys: work.sets.keys.len(),
                key_cap: policy.k_cap,
                repairs: c.repairs,
                max_repairs: policy.max_repairs,
            };
            let c = &mut work.certificates[h];
            match decide(&situation) {
                Action::Accept => {}
                Action::MoreKeys => {
                    (c.cause, c.rung) = (Cause::KeyError, c.rung.max(Rung::MoreKeys));
                    *allowed = c.tol * REPAIR_TARGET;
                    any = true;
                }
                Action::ExactValues => {
                    (c.cause, c.rung) = (Cause::ValueError, c.rung.max(Rung::ExactValues));
                    *allowed = c.tol * REPAIR_TARGET;
                    any = true;
                }
                _ => {
                    c.cause = match () {
                        () if !situation.rank_ok => Cause::Ranking,
                        () if c.repairs >= policy.max_repairs => Cause::RepairsUsed,
                        () => Cause::Exhausted,
                    };
                    work.dense[h] = true;
                }
            }
        }
        if !any {
            return Ok(());
        }
        let items = items(self.group, self.blocks);
        work.gains.clear();
        for h in 0..heads {
            let (scale, start) = (self.scale(work, h), work.gains.len());
            terms::gains(&scale, &work.masses, h, self.blocks, &mut work.gains);
            if items.fine {
                self.split(&scale, work, h, start, false);
            }
        }
        self.repair_costs(work);
        let gains = Gains::new(&work.gains, heads, items.len())?;
        let picks = work.cover.leave_at_most(gains, &work.cost, &allowed[..heads], true)?;
        work.picks.extend_from_slice(picks);
        // A cap on exact keys is a cap: what goes past it is left out, and the heads that needed it go dense.
        let mut room = policy.k_cap.saturating_sub(work.sets.keys.len());
        let before = work.picks.len();
        work.picks.retain(|i| {
            let item = items.get(*i as usize);
            item.side == Side::Value || !item.exact || {
                let fits = room > 0;
                room = room.saturating_sub(1);
                fits
            }
        });
        let nothing = work.picks.is_empty() || work.picks.len() < before;
        if nothing {
            work.picks.clear();
        }
        for (h, allowed) in allowed.iter().enumerate().take(heads) {
            if *allowed < f64::INFINITY {
                let c = &mut work.certificates[h];
                c.repairs += 1;
                if nothing {
                    (work.dense[h], c.cause) = (true, Cause::Exhausted);
                }
            }
        }
        Ok(())
    }

    /// Bytes that a repair reads for each item: the originals or residuals, and what was read of the block before once more, but for keys whose weights are
    /// known; the codes alone where values were skipped.
    fn repair_costs(&self, work: &mut HeadWork) {
        let mut cost = core::mem::take(&mut work.cost);
        let HeadWork { sets, weighed, .. } = &*work;
        let l = &self.group.layout;
        let (exact, residuals) = (l.original_side_bytes(), [l.key_residuals.len(), l.value_residuals.len()]);
        cost.clear();
        for fine in [true, false] {
            let sides = [(Side::Key, residuals[0]), (Side::Value, residuals[1])];
            for (side, residuals) in sides.into_iter().filter(|(_, bytes)| !fine || *bytes > 0) {
                let start = cost.len();
                for run in self.pages.runs() {
                    let l = self.group.layout_at(run.level);
                    let more = if fine { residuals } else { exact };
                    cost.extend(run.blocks.clone().map(|b| {
                        let new = if side == Side::Value && sets.skipped.contains(b) { l.value_bytes() } else { more };
                        let heavy = side == Side::Key || !weighed.contains(b);
                        let keys = if heavy { self.keys_again(work, b) } else { 0 };
                        (new + keys + sets.bytes_of(l, Side::Value, b)) as f64
                    }));
                }
                // Without any run there is no block.
                cost.resize(start + self.blocks, exact as f64);
            }
        }
        work.cost = cost;
    }

    /// Bytes of `block`'s keys, as they were read, that a repair reads again: not their codes, if the sweep kept their logits.
    fn keys_again(&self, work: &HeadWork, block: usize) -> usize {
        let l = self.group.layout_at(self.pages.level(block));
        let known = work.scores.knows(block) && !work.sets.keys.contains(block);
        work.sets.bytes_of(l, Side::Key, block) - if known { l.key_codes.len() } else { 0 }
    }

    /// Promotes the picks: corrects the state and the masses block by block, or makes the pass anew where subtraction
    /// would cancel (6.11). Where only values of a block are picked, and its weights are known, its keys are not read again. Every block that enters the promoted
    /// set passes the canary (7.4) here; `work.corrupt` names one that does not.
    pub(crate) fn repair(&self, work: &mut HeadWork) -> Result<(), Error> {
        let bytes = self.group.layout.original_side_bytes();
        let layout = |block| self.group.layout_at(self.pages.level(block));
        let items = items(self.group, self.blocks);
        work.touched.clear();
        work.touched.extend(work.picks.iter().map(|i| items.get(*i as usize).block));
        work.touched.sort_unstable();
        work.touched.dedup();
        self.set_light_apart(work);
        let mut read = BytesRead::default();
        // The old contribution is made once more; the new one is counted below.
        let keys = work.touched.iter().map(|b| (Side::Key, *b));
        let values = work.touched.iter().chain(&work.light).map(|b| (Side::Value, *b));
        for (side, b) in keys.chain(values) {
            if work.sets.of(side).0.contains(b) {
                work.resident.charge(side, b, bytes, &mut read);
            } else if side == Side::Key {
                read.packed += self.keys_again(work, b) as u64;
            } else {
                read.packed += work.sets.bytes_of(layout(b), side, b) as u64;
            }
        }
        work.next_sets.copy_from(&work.sets);
        let HeadWork { picks, sets, resident, .. } = &mut *work;
        for side in [Side::Key, Side::Value] {
            let exact = picks.iter().map(|i| items.get(*i as usize)).filter(|item| item.exact && item.side == side);
            let read = exact.map(|item| item.block).filter(|b| side == Side::Key || !sets.skipped.contains(*b));
            self.hold(side, read, resident)?;
        }
        let HeadWork { picks, memory, resident, next_sets: next, .. } = &mut *work;
        for Item { side, block, exact } in picks.iter().map(|i| items.get(*i as usize)) {
            let l = layout(block);
            if side == Side::Value && next.skipped.remove(block) {
                // Its codes are most of what was missing.
                read.packed += l.value_bytes() as u64;
                continue;
            }
            if exact {
                // What the masses of this step asked for is the guess for the next.
                if side == Side::Key {
                    memory.keys.insert(block);
                }
                next.read_exactly(side, block);
                resident.charge(side, block, bytes, &mut read);
            } else {
                next.read_finely(side, block);
                let residuals = if side == Side::Key { &l.key_residuals } else { &l.value_residuals };
                read.packed += residuals.len() as u64;
            }
        }
        self.note_digits(work);
        work.canary.clear();
        work.canary.resize(work.touched.len(), f32::NAN);
        let mut outcome = Repair::Done;
        let before = self.view(&work.resident, &work.sets, &work.rows);
        let after = self.view(&work.resident, &work.next_sets, &work.rows);
        self.by_level(&work.touched, |kernel, part| {
            let (list, canary) = (&work.touched[part.clone()], &mut work.canary[part]);
            let masses = work.masses.as_mut();
            let (buffers, partial) = (&mut work.kernel, &mut work.partial);
            if kernel.repair(self.queries, &before, &after, list, &work.scores, buffers, partial, masses, canary)?
                == Repair::NeedsRecompute
            {
                outcome = Repair::NeedsRecompute;
            }
            Ok(())
        })?;
        self.by_level(&work.light, |kernel, part| {
            let (list, buffers) = (&work.light[part], &mut work.kernel);
            let (scores, partial, masses) = (&work.scores, &mut work.partial, &mut work.masses);
            if kernel.repair_values(&before, &after, list, buffers, scores, partial, masses)? == Repair::NeedsRecompute
            {
                outcome = Repair::NeedsRecompute;
            }
            Ok(())
        })?;
        work.touched.iter().for_each(|b| {
            work.weighed.remove(*b);
        });
        core::mem::swap(&mut work.sets, &mut work.next_sets);
        work.find_corrupt();
        let much = |h: usize| !(left(&work.left, &work.partial, h) <= LEFT_SHARE * work.certificates[h].tol);
        if outcome == Repair::NeedsRecompute || (0..work.certificates.len()).any(|h| !work.dense[h] && much(h)) {
            self.pass(work)?;
            let again = self.bytes(work);
            read.packed += again.packed;
            read.scratch += again.scratch;
            read.host += again.host;
        }
        for c in &mut work.certificates {
            c.bytes.packed += read.packed;
            c.bytes.scratch += read.scratch;
            c.bytes.host += read.host;
        }
        Ok(())
    }

    /// Moves blocks of which values alone are picked, and whose weights are known, from `touched` to `light`.
    fn set_light_apart(&self, work: &mut HeadWork) {
        let HeadWork { picks, touched, light, weighed, next, .. } = work;
        let items = items(self.group, self.blocks);
        next.resize(0);
        next.resize(self.blocks);
        let picked = picks.iter().map(|i| items.get(*i as usize));
        picked.filter(|item| item.side == Side::Key).for_each(|item| {
            next.insert(item.block);
        });
        let alone = |b: &usize| weighed.contains(*b) && !next.contains(*b);
        light.clear();
        light.extend(touched.iter().copied().filter(alone));
        touched.retain(|b| !alone(b));
    }

    /// Adds what the digits of the blocks that are about to be repaired leave in the sums (6.15), before their entries are replaced.
    fn note_digits(&self, work: &mut HeadWork) {
        work.left.resize(work.certificates.len(), (0.0, 0.0));
        for (h, left) in work.left.iter_mut().enumerate() {
            let exponent = work.partial.exponent(h);
            let of = |value: f64, from: f32| if value == 0.0 { 0.0 } else { value * f64::from(from - exponent).exp2() };
            let touched = work.touched.iter().chain(&work.light).filter_map(|b| work.masses.get(h, *b));
            let lost = touched.filter(|m| !(of(f64::from(m.w), m.exponent) >= SURE_WEIGHT));
            let whole: f64 = lost.map(|m| WHOLE * of(f64::from(m.digit), m.exponent)).sum();
            *left = (of(left.0, left.1) + whole, exponent);
        }
    }

    /// Bytes of the first pass, on every head's record.
    pub(crate) fn count_pass(&self, work: &mut HeadWork) {
        let bytes = self.bytes(work);
        work.certificates.iter_mut().for_each(|c| c.bytes = bytes);
    }
}
