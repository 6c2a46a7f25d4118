//! Between the two sweeps of a certified step: what to read exactly, and which values not to read, with this step's masses
//! (math.md 6.3, 6.4, 6.7). The tolerance and the distance `||O' - c||` are those of the last output, so a decision can
//! be wrong: that costs a repair, never validity (Theorem 5.2).
use crate::Error;
use crate::attend::certified::{HeadCall, distances};
use crate::attend::items;
use crate::attend::sets::Item;
use crate::attend::terms::{self, HeadScale};
use crate::group::Side;
use crate::sequence::{Bound, HeadMemory};
use crate::work::HeadWork;
use certkv_bound::Rung;
use certkv_codec::KeyMetric;
use certkv_control::Gains;
use certkv_control::explore::Place;
use certkv_control::guess::GuessRule;
use certkv_control::policy::Certified;
use certkv_core::OutOfMemory;
use certkv_kernel::TILE;

/// What one query head's last output tells about its next one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Hint {
    /// `||O'||`.
    pub(crate) norm: f64,
    /// `||O' - c||`.
    pub(crate) radius: f64,
}

impl Hint {
    /// Of the output `out` of a head with value centre `centre` (empty for zero).
    pub(crate) fn of(out: &[f32], centre: &[f32]) -> Self {
        let (radius, norm) = distances(out, centre);
        Self { norm, radius: f64::from(radius) }
    }
}

impl HeadCall<'_> {
    /// Outputs and masses of one step, on the way that the last step's decision suggests: two sweeps where something was
    /// promoted or many values were skipped, one pass where codes served for everything.
    ///
    /// This is everything up to the sets: what comes after, [`HeadCall::sum`], reads the originals that they name.
    pub(crate) fn look(&self, policy: &Certified, draw: u64, w: &mut HeadWork) -> Result<(), Error> {
        w.summed = w.memory.is_plain() && !(policy.explore_rate > 0.0);
        if !w.summed {
            return self.first_sweep(policy, draw, w);
        }
        self.pass(w)?;
        self.learn(w);
        self.skip(policy, w);
        w.memory.flat = !self.skips_pay(w.sets.skipped.len());
        // It was read; this was about the next step.
        w.sets.skipped.clear();
        Ok(())
    }

    /// The outputs by the sets in force, unless one pass has made them.
    pub(crate) fn sum(&self, w: &mut HeadWork) -> Result<(), Error> {
        if !w.summed {
            self.second_sweep(w)?;
            let finely = w.sets.fine_keys.len() + w.sets.fine_values.len();
            let nothing = w.touched.is_empty()
                && w.rows.is_empty()
                && w.memory.keys.is_empty()
                && w.sets.values.len() == w.uncoded;
            w.memory.flat = nothing && finely == 0 && !self.skips_pay(w.sets.skipped.len());
        }
        Ok(())
    }

    /// Whether leaving `skipped` blocks' values unread is worth a second sweep. Two sweeps take about a quarter longer than
    /// one pass if all values are read; this weighs bytes higher than time.
    fn skips_pay(&self, skipped: usize) -> bool {
        4 * skipped >= self.blocks
    }

    /// Scores all keys, those of the guess exactly and the others from their codes, and decides.
    fn first_sweep(&self, policy: &Certified, draw: u64, w: &mut HeadWork) -> Result<(), Error> {
        let tail = self.pages.tail(self.group, self.head, self.centre_norm());
        w.masses.reset(self.blocks + 1);
        w.refined.resize(0);
        w.refined.resize(self.blocks);
        let HeadWork { kernel: buffers, scores, masses, resident, sets, rows, .. } = &mut *w;
        let (queries, view) = (self.queries, self.view(resident, sets, rows));
        for run in self.pages.runs() {
            let (kernel, range) = (self.group.kernel_at(run.level), run.blocks.clone());
            let tail = tail.as_ref().filter(|_| run.blocks.end == self.blocks);
            kernel.score(queries, &view, range, tail, buffers, scores, &mut masses.as_mut())?;
        }
        if self.blocks == 0 && tail.is_none() {
            return Err(Error::NoVisibleToken);
        }
        self.group.kernel.total(&w.scores, &w.masses, &mut w.partial)?;
        w.weighed.resize(self.blocks);
        w.weighed.insert_all();
        self.learn(w);
        w.touched.clear();
        let refines = self.group.is_refinable() && !w.memory.hints.is_empty();
        if !w.memory.hints.is_empty() {
            self.move_rows(policy, w)?;
            if refines { self.refine(policy, w)? } else { self.decide(policy, w)? }
        }
        if !refines {
            self.explore(policy.explore_rate, draw, w);
        }
        Ok(())
    }

    /// Scores promoted keys again, and sums the values.
    fn second_sweep(&self, w: &mut HeadWork) -> Result<(), Error> {
        w.left.clear();
        self.hold(Side::Value, w.sets.values.iter(), &mut w.resident)?;
        self.rescore(w)?;
        let tail = self.pages.tail(self.group, self.head, self.centre_norm());
        let view = self.view(&w.resident, &w.sets, &w.rows);
        for run in self.pages.runs() {
            let (kernel, range) = (self.group.kernel_at(run.level), run.blocks.clone());
            let tail = tail.as_ref().filter(|_| run.blocks.end == self.blocks && w.rows.is_empty());
            kernel.gather(&view, range, tail, &mut w.kernel, &mut w.scores, &mut w.masses, &mut w.partial)?;
        }
        if !w.rows.is_empty() {
            let range = self.blocks..self.blocks + w.rows.blocks(&self.group.layout);
            let kernel = &self.group.kernel;
            kernel.gather(&view, range, tail.as_ref(), &mut w.kernel, &mut w.scores, &mut w.masses, &mut w.partial)?;
        }
        Ok(())
    }

    /// Scores the `touched` keys again, as they are read now.
    pub(super) fn rescore(&self, w: &mut HeadWork) -> Result<(), Error> {
        let queries = self.queries;
        let exact = w.touched.iter().copied().filter(|b| w.sets.keys.contains(*b));
        self.hold(Side::Key, exact, &mut w.resident)?;
        if !w.touched.is_empty() {
            w.canary.clear();
            w.canary.resize(w.touched.len(), f32::NAN);
            let view = self.view(&w.resident, &w.sets, &w.rows);
            w.touched.sort_unstable();
            self.by_level(&w.touched, |kernel, part| {
                let (list, canary) = (&w.touched[part.clone()], &mut w.canary[part]);
                let masses = &mut w.masses.as_mut();
                Ok(kernel.rescore(queries, &view, list, &mut w.kernel, &mut w.scores, masses, canary)?)
            })?;
            w.find_corrupt();
            self.group.kernel.total(&w.scores, &w.masses, &mut w.partial)?;
        }
        Ok(())
    }

    /// Bytes that scoring the touched keys again costs beside what they are read as in the end: of those that are read exactly now what they were read
    /// as before, of refined ones their scales, which turn queries into digits once more.
    pub(crate) fn count_rescored(&self, w: &mut HeadWork) {
        let HeadWork { touched, sets, refined, rescored, .. } = w;
        for b in touched.iter().copied() {
            let l = self.group.layout_at(self.pages.level(b));
            *rescored += match sets.keys.contains(b) {
                true if refined.contains(b) => l.key_bytes() + l.key_scales.len() + l.key_residuals.len(),
                true => l.key_bytes(),
                false => l.key_scales.len(),
            };
        }
        refined.union_with(&sets.fine_keys);
    }

    /// Keeps the bounds of every block that was scored from codes alone, so that it can be judged while more of it is read.
    fn learn(&self, w: &mut HeadWork) {
        let HeadWork { masses, memory, sets, .. } = w;
        for (h, (delta, lambda)) in memory.delta.iter_mut().zip(&mut memory.lambda).enumerate() {
            for (t, tile) in masses.block_tiles().iter().enumerate() {
                let (Some(r), first) = (masses.head_tile(h, t), t * TILE) else { continue };
                for i in 0..self.blocks.saturating_sub(first).min(TILE) {
                    if tile.exact_keys >> i & 1 == 0 && !sets.fine_keys.contains(first + i) {
                        (delta[first + i], lambda[first + i]) = (Bound::of(r.delta[i]), Bound::of(r.lambda[i]));
                    }
                }
            }
        }
    }

    /// Extends the sets: keys and values to read exactly, values to leave unread; `touched` lists the blocks to score again. One cover
    /// of what is worth promoting.
    fn decide(&self, policy: &Certified, w: &mut HeadWork) -> Result<(), Error> {
        self.cover(policy, w, true)?;
        w.memory.keys.clear();
        let HeadWork { memory, sets, touched, next, .. } = w;
        let items = items(self.group, self.blocks);
        for Item { side, block, .. } in next.iter().map(|i| items.get(i)) {
            if side == Side::Value {
                sets.values.insert(block);
                sets.skipped.remove(block);
            } else if sets.keys.contains(block) {
                memory.keys.insert(block);
            } else if sets.keys.len() < policy.k_cap {
                memory.keys.insert(block);
                sets.keys.insert(block);
                touched.push(block);
            }
        }
        Ok(())
    }

    /// What is worth reading beside codes, into `next`. With `before`, keys of the guess count as if they had been read from codes.
    pub(super) fn cover(&self, policy: &Certified, w: &mut HeadWork, before: bool) -> Result<(), Error> {
        let (blocks, heads, items) = (self.blocks, w.certificates.len(), items(self.group, self.blocks));
        self.skip(policy, w);
        w.gains.clear();
        for h in 0..heads {
            let (scale, start) = (self.hinted(w, h), w.gains.len());
            terms::gains(&scale, &w.masses, h, blocks, &mut w.gains);
            // Keys of the guess are judged by what is known of their codes.
            let HeadWork { gains, masses, memory, sets, .. } = &mut *w;
            for b in memory.keys.iter().filter(|_| before) {
                if let Some(mass) = masses.get(h, b) {
                    gains[start + b] =
                        terms::key_gain(&scale, &mass, memory.delta[h][b].get(), memory.lambda[h][b].get());
                }
            }
            for b in sets.skipped.iter() {
                gains[start + blocks + b] = 0.0;
            }
            if items.fine {
                self.split(&scale, w, h, start, before);
            }
        }
        self.decision_costs(w);
        w.current.resize(0);
        w.current.resize(items.len());
        for block in w.memory.keys.iter().filter(|_| before) {
            w.current.insert(items.number(Item { side: Side::Key, block, exact: true }));
        }
        let rule = GuessRule { target: policy.guess_target, keep: policy.guess_keep, ..GuessRule::default() };
        let gains = Gains::new(&w.gains, heads, items.len())?;
        w.guesser.next_set(rule, gains, &w.cost, &w.tolerances, &w.current, &mut w.next)?;
        Ok(())
    }

    /// Bytes that more of a side costs between the sweeps: keys have been read as codes already, unless they are exact; the
    /// originals of values take the place of their codes; those of a side with residuals take the place of these.
    pub(super) fn decision_costs(&self, w: &mut HeadWork) {
        let l = &self.group.layout;
        let (exact, residuals) = (l.original_side_bytes() as f64, [l.key_residuals.len(), l.value_residuals.len()]);
        let instead = |codes: usize| (exact - codes as f64).max(1.0);
        w.cost.clear();
        for bytes in residuals.into_iter().filter(|bytes| *bytes > 0) {
            w.cost.resize(w.cost.len() + self.blocks, bytes as f64);
        }
        let start = w.cost.len();
        w.cost.resize(start + self.blocks, instead(residuals[0]));
        for b in w.sets.fine_keys.iter() {
            w.cost[start + b] = exact;
        }
        for run in self.pages.runs() {
            let l = self.group.layout_at(run.level);
            w.cost.resize(start + self.blocks + run.blocks.end, instead(l.value_bytes() + residuals[1]));
            for b in run.blocks.clone().filter(|b| w.sets.keys.contains(*b)) {
                w.cost[start + b] = instead(l.key_bytes());
            }
        }
    }

    /// Values to leave unread: those whose `rho_b R_b` is small for every query head, together within `share` of each
    /// head's tolerance. Leaves each head's remaining tolerance in `tolerances`. The hints must be there.
    pub(super) fn skip(&self, policy: &Certified, w: &mut HeadWork) {
        let share = policy.skip_share;
        let (blocks, heads) = (self.blocks, w.certificates.len());
        w.sets.skipped.clear();
        w.tolerances.clear();
        let coded = !self.group.layout.format.value.is_exact() && share > 0.0;
        if coded {
            w.sets.skipped.insert_all();
            w.sets.skipped.subtract(&w.sets.values);
            w.gains.clear();
        }
        for h in 0..heads {
            let scale = self.hinted(w, h);
            w.tolerances.push(scale.eps);
            if coded {
                let start = w.gains.len();
                terms::skips(&scale, &w.masses, h, blocks, &mut w.gains);
                let terms = &w.gains[start..start + blocks];
                let level = negligible(terms, scale.eps * share, &mut w.sums);
                for (b, term) in terms.iter().enumerate() {
                    // `!(term < level)`: NaN is not negligible.
                    if !(*term < level) {
                        w.sets.skipped.remove(b);
                    }
                }
            }
        }
        for (h, left) in w.tolerances.iter_mut().enumerate().filter(|_| coded) {
            let spent: f64 = w.sets.skipped.iter().map(|b| f64::from(w.gains[h * blocks + b])).sum();
            *left = (*left - spent).max(0.0);
        }
    }

    /// The exploration budget (7.6): some more keys are read exactly and pass the canary. They are added to `touched`, in which a block that is
    /// to be read finely may be already.
    pub(crate) fn explore(&self, rate: f64, draw: u64, w: &mut HeadWork) {
        if !(rate > 0.0) || self.blocks == 0 {
            return;
        }
        let (layer, kv_head) = (self.layer as u64, (self.group.first_head + self.head) as u64);
        let place = Place { seed: EXPLORE_SEED, step: draw, layer, kv_head };
        let HeadWork { explorer, sets, picks, touched, .. } = w;
        let candidates = (0..self.blocks as u32).filter(|b| !sets.keys.contains(*b as usize));
        explorer.pick(candidates, rate, place, picks);
        for b in picks.drain(..) {
            sets.read_exactly(Side::Key, b as usize);
            if !touched.contains(&(b as usize)) {
                touched.push(b as usize);
            }
        }
    }

    /// Keeps what each query head attended to, for whoever decides levels, and with `terms` what its certificate knew of each block. Nothing
    /// where codes and originals disagree.
    pub(crate) fn note(&self, terms: bool, w: &mut HeadWork) -> Result<(), OutOfMemory> {
        if w.corrupt.is_some() {
            return Ok(());
        }
        let (blocks, heads) = (self.blocks, w.certificates.len());
        let mass = w.memory.new_mass(blocks, heads)?;
        for (h, row) in mass.chunks_exact_mut(blocks.max(1)).enumerate() {
            w.gains.clear();
            terms::masses(&HeadScale::of(&w.partial, h, 0.0, 0.0), &w.masses, h, blocks, &mut w.gains);
            for (block, rho) in w.gains.iter().enumerate() {
                row[self.pages.number(block)] = *rho;
            }
        }
        if terms { self.note_terms(w) } else { Ok(()) }
    }

    /// Bounds of keys that were read exactly are those that their codes had when they were scored last.
    fn note_terms(&self, w: &mut HeadWork) -> Result<(), OutOfMemory> {
        let (blocks, heads, dim) = (self.blocks, w.certificates.len(), self.group.layout.dim);
        let HeadWork { memory, masses, partial, out, .. } = w;
        let HeadMemory { terms, delta, lambda, .. } = memory;
        let balanced = self.group.is_balanced();
        let levels = if balanced { self.group.level_count() } else { 0 };
        terms.begin(blocks, heads, levels.into())?;
        for h in 0..heads {
            let scale = HeadScale::of(partial, h, 0.0, 0.0);
            for b in 0..blocks {
                let Some(m) = masses.get(h, b) else { continue };
                let known = match m.exact_keys {
                    true => [delta[h][b].get(), lambda[h][b].get()],
                    false => [m.delta, m.lambda],
                };
                let [spread, digit] = scale.shares(&m, [m.p, m.digit]);
                terms.blocks[h * blocks + self.pages.number(b)] = [spread, known[0], known[1], digit];
            }
            let (radius, norm) = distances(&out[h * dim..(h + 1) * dim], self.centre);
            let query = &self.queries[h * dim..(h + 1) * dim];
            let reach = (0..levels).rev().map(|level| {
                let key = self.group.layout_at(level).format.key;
                let metric = self.group.key_metric(key, self.layer, self.head);
                metric.unwrap_or(KeyMetric::PLAIN).reach(query) as f32
            });
            terms.tell(radius, norm as f32, reach);
        }
        Ok(())
    }

    /// A head's scale by the last output.
    pub(super) fn hinted(&self, w: &HeadWork, h: usize) -> HeadScale {
        let hint = w.memory.hints[h];
        HeadScale::of(&w.partial, h, hint.radius, self.tolerances[h].of(hint.norm))
    }

    /// After the last word on a step: what its outputs and repairs tell about the next one.
    pub(crate) fn remember(&self, w: &mut HeadWork) {
        let dim = self.group.layout.dim;
        if w.certificates.iter().any(|c| c.repairs > 0 || c.rung != Rung::Packed) {
            w.memory.flat = false;
        }
        w.memory.hints.clear();
        w.memory.hints.extend(w.out.chunks_exact(dim).map(|out| Hint::of(out, self.centre)));
    }
}

impl HeadWork {
    /// Marks a block whose canary failed.
    pub(crate) fn find_corrupt(&mut self) {
        // `!(x <= 0)`: NaN is a failed canary.
        if let Some(at) = self.canary.iter().position(|excess| !(*excess <= 0.0)) {
            self.corrupt = Some(self.touched[at]);
        }
    }
}

/// Seed of the exploration draws; any value serves, a fixed one makes runs repeatable.
const EXPLORE_SEED: u64 = 0x6365_7274_6b76;

/// Buckets of [`negligible`]: eight per octave, 24 octaves below the budget.
const BUCKETS: u32 = 192;

/// A level such that all `terms` below it add up to at most `budget`, to within an eighth of an octave of the largest such
/// level. Terms 24 octaves below the budget count as one size. `sums` is a buffer.
fn negligible(terms: &[f32], budget: f64, sums: &mut Vec<f64>) -> f32 {
    // Written so that a budget that is NaN leaves nothing.
    if !(budget > 0.0) {
        return 0.0;
    }
    let eighth = |x: f32| x.to_bits() >> 20;
    let first = eighth(budget as f32).saturating_sub(BUCKETS - 1);
    sums.clear();
    sums.resize(BUCKETS as usize, 0.0);
    for t in terms {
        if let Some(sum) = sums.get_mut(eighth(*t).saturating_sub(first) as usize) {
            *sum += f64::from(*t);
        }
    }
    let mut left = budget;
    for (bucket, sum) in (first..).zip(sums) {
        left -= *sum;
        if !(left >= 0.0) {
            return f32::from_bits(bucket << 20);
        }
    }
    f32::from_bits((first + BUCKETS) << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_negligible_fits_its_budget() {
        let terms: Vec<f32> = (1..=100).map(|i| i as f32 * 0.01).collect();
        let mut sums = Vec::new();
        let level = negligible(&terms, 1.0, &mut sums);
        let taken: f32 = terms.iter().filter(|t| **t < level).sum();
        assert!(taken <= 1.0 && taken > 0.5, "{level} takes {taken}");
        assert_eq!(negligible(&terms, f64::NAN, &mut sums), 0.0);
        assert!(negligible(&terms, 600.0, &mut sums) > 1.0);
        assert_eq!(negligible(&[0.0, 1.0], 0.0, &mut sums), 0.0);
        let level = negligible(&[1e-30, f32::NAN, f32::INFINITY, 0.5], 0.1, &mut sums);
        assert!(level > 1e-30 && level <= 0.5, "{level}");
    }
}
