//! A whole sequence out of the device's memory and back, so that others have room while it waits.
use crate::cache::Cache;
use crate::counters::Kind;
use crate::group::Group;
use crate::sequence::SequenceState;
use crate::{Error, MoveEvent};
use certkv_core::{SequenceId, span};
use certkv_page::{BlockTable, PageClass, SwapCopy, SwapPlan};

impl Cache {
    /// Moves the codes of a sequence to host memory ([`Config::swap_tokens`](crate::Config::swap_tokens)) and gives up all
    /// its pages on the device: packed pages, and the tail of an open block, whose rows the host has. Returns the bytes
    /// moved.
    ///
    /// The id stays valid. Until [`Cache::swap_in`] the sequence can be truncated, saved and released; a step with it, a fork
    /// and its publication are refused with [`Error::SwappedOut`]. Pages that forks or cached prefixes share stay with them.
    ///
    /// The sequence is busy meanwhile; other calls go on between its blocks. Every page is compared with its seal on the way.
    ///
    /// # Errors
    /// Unknown or busy; [`Error::SwappedOut`] already; [`Error::CapacityExhausted`] of class `swap`; [`Error::Damaged`]; the
    /// device's refusal. The sequence is where it was.
    pub fn swap_out(&self, id: SequenceId) -> Result<u64, Error> {
        let span = span!("swap out", bytes = _);
        let moved = self.counters.moved(Kind::SwapOut, self.with(id, |state| self.swap(id, state, true)))?;
        span.record("bytes", moved);
        Ok(moved)
    }

    /// Brings a sequence back. Its next outputs and certificates are those that it would have had without leaving, and every block
    /// has the level that it had. Pages of codes that others kept meanwhile are shared again and not copied. Returns the bytes moved.
    ///
    /// # Errors
    /// Unknown or busy; [`Error::NotSwappedOut`]; [`Error::CapacityExhausted`] of class `packed`, `tail` or one of
    /// [`Config::levels`](crate::Config::levels): cached prefixes have given way by then; [`Error::Damaged`] if the codes are not what left; the device's refusal. The sequence stays
    /// swapped out.
    pub fn swap_in(&self, id: SequenceId) -> Result<u64, Error> {
        let span = span!("swap in", bytes = _);
        let moved = self.counters.moved(Kind::SwapIn, self.with(id, |state| self.swap(id, state, false)))?;
        span.record("bytes", moved);
        Ok(moved)
    }

    fn swap(&self, id: SequenceId, state: &mut SequenceState, out: bool) -> Result<u64, Error> {
        let mut plans = Vec::with_capacity(self.groups.len());
        for index in 0..self.groups.len() {
            // Plans are dropped, and their pages given back, if a later one or a copy fails.
            plans.push(self.plan_swap(state, index, out)?);
        }
        let mut moved = 0;
        for (group, plan) in self.groups.iter().zip(&plans) {
            moved += self.copy_swap(group, plan)?;
        }
        let _turn = self.turn.lock();
        let noted = self.swapped(id, state, &plans);
        for ((group, table), plan) in self.groups.iter().zip(&mut state.tables).zip(plans) {
            // The plan is this table's and nothing happened to it since.
            let dropped = table.commit_swap(plan).map_err(|(error, _)| Error::from_table(error))?;
            dropped.retire(|| self.stamp())?;
            self.reclaim(group);
        }
        if let Some(moves) = &self.moves {
            moves.push(noted);
        }
        Ok(moved)
    }

    /// Events of the blocks whose codes plans have copied; none where nobody keeps them.
    fn swapped(&self, id: SequenceId, state: &SequenceState, plans: &[SwapPlan]) -> Vec<MoveEvent> {
        if self.moves.is_none() {
            return Vec::new();
        }
        let of_group = |((group, table), plan): ((&Group, &BlockTable), &SwapPlan)| {
            let runs = |level| vec![(group.first, group.layers, group.layers * group.bytes_at(level))];
            MoveEvent::swapped(id, table, plan, runs)
        };
        self.groups.iter().zip(&state.tables).zip(plans).flat_map(of_group).collect()
    }

    fn plan_swap(&self, state: &SequenceState, index: usize, out: bool) -> Result<SwapPlan, Error> {
        let _turn = self.turn.lock();
        let table = &state.tables[index];
        self.reclaim(&self.groups[index]);
        loop {
            let plan = if out { table.swap_out() } else { table.swap_in() };
            match plan.map_err(Error::from_table) {
                Err(error) if self.make_room(&error)? => {}
                result => return result,
            }
        }
    }

    fn copy_swap(&self, group: &Group, plan: &SwapPlan) -> Result<u64, Error> {
        let mut moved = 0;
        for copy in plan.copies() {
            let op = &copy.op;
            let _turn = self.turn.lock();
            match (op.level(), op.from.class) {
                (Some(level), _) => moved += self.copy_codes(group, level, copy)?,
                // The lane has brought the rows to the host before.
                (None, PageClass::Tail) => {}
                (None, _) => {
                    self.join_lane()?;
                    self.execute(group, core::iter::once(*op))?;
                }
            }
        }
        Ok(moved)
    }

    /// Copies one page of codes in every layer. It is compared with its seal, and gets the seal of where it goes. Pages outside have the
    /// size of the first level's: of another there is a rest that nobody reads.
    fn copy_codes(&self, group: &Group, level: u8, copy: &SwapCopy) -> Result<u64, Error> {
        let Some(outside) = &group.swap else { return Err(nothing_outside()) };
        let SwapCopy { block, writer, op } = *copy;
        let arena = |class| if class == PageClass::Swap { outside } else { group.packed_at(level) };
        let size = group.bytes_at(level);
        for layer in group.first..group.first + group.layers {
            let (from, to) = (group.slot(op.from.id, layer), group.slot(op.to.id, layer));
            let page = arena(op.from.class).read_tagged(from, &self.main, Group::tag(op.from.id))?;
            let bytes = &page.bytes()[..size];
            let damaged = |why| Error::Damaged { layer, block, why };
            let seal = |page| group.seal_at(level, layer, block, page).written_by(writer);
            seal(op.from.id).check(bytes).map_err(damaged)?;
            let mut guard = arena(op.to.class).write(to, &self.main)?;
            guard.set_tag(Group::tag(op.to.id));
            let copied = &mut guard.bytes_mut()[..size];
            copied.copy_from_slice(bytes);
            seal(op.to.id).write(copied);
        }
        Ok((group.layers * size) as u64)
    }
}

/// No page is given out where there is no memory behind them.
pub(crate) fn nothing_outside() -> Error {
    Error::Config { field: "swap_tokens", why: "nothing can be swapped out: it is 0".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seal::SealError;
    use crate::sequence::SequenceState;
    use crate::{Chunk, Config, Geometry, Level};
    use certkv_core::PageId;
    use certkv_core::hash::splitmix64;
    use std::collections::HashMap;

    /// The matrix: a bit anywhere, the page that lay there before, two scales exchanged, the page of another block or layer, a write that was torn. All of it
    /// is seen when the sequence returns, which it then does not; and not seen once the damage is undone.
    #[test]
    fn damage_outside_is_seen_and_repaired_it_is_not() {
        const TRIALS: usize = 1000;
        let config = Config { swap_tokens: 256, ..Config::new(Geometry::new(2, 4, 2, 64).unwrap(), 256) };
        let cache = Cache::new(config.with_format("k8-v4g32-b16".parse().unwrap())).unwrap();
        let id = cache.create().unwrap();
        let mut step = cache.begin(&[Chunk { sequence: id, tokens: 70 }]).unwrap();
        let rows: Vec<f32> = (0..70 * 128).map(|i| splitmix64(i) as f32 / 1e19).collect();
        (0..2).for_each(|layer| step.append(layer, &rows, &rows).unwrap());
        step.finish().unwrap();
        let group = &cache.groups[0];
        let outside = group.swap.as_ref().unwrap();
        let leave = || {
            cache.swap_out(id).unwrap();
            let swapped = |state: &mut SequenceState| {
                Ok(state.tables[0].blocks().iter().filter_map(|b| b.swapped).collect::<Vec<_>>())
            };
            let pages = cache.with(id, swapped).unwrap();
            assert_eq!(pages.len(), 4);
            pages
        };
        let read =
            |page: PageId, layer: usize| outside.read(group.slot(page, layer), &cache.main).unwrap().bytes().to_vec();
        let write = |page: PageId, layer: usize, bytes: &[u8]| {
            outside.write(group.slot(page, layer), &cache.main).unwrap().bytes_mut().copy_from_slice(bytes);
        };
        // What its first stay leaves there.
        let first = leave();
        let old: HashMap<(u32, usize), Vec<u8>> = (first.iter().map(|swapped| swapped.page))
            .flat_map(|page| [0, 1].map(|layer| ((page.index, layer), read(page, layer))))
            .collect();
        cache.swap_in(id).unwrap();
        let pages: Vec<PageId> = leave().iter().map(|swapped| swapped.page).collect();
        let (bytes, layout) = (group.bytes_at(0), &group.layout);
        let mut seen = [0; 5];
        for (kind, trial) in (0..5).flat_map(|kind| (0..TRIALS).map(move |trial| (kind, trial))) {
            let draw =
                |salt: u64, n: usize| (splitmix64(((kind * TRIALS + trial) as u64) << 8 | salt) % n as u64) as usize;
            let (block, layer) = (draw(1, 4), draw(2, 2));
            let whole = read(pages[block], layer);
            let mut bad = whole.clone();
            match kind {
                0 => bad[draw(4, bytes)] ^= 1 << draw(5, 8),
                1 => bad.clone_from(&old[&(pages[block].index, layer)]),
                2 => {
                    // Of one head, keys' or values'; records lie behind the seal.
                    let record = bytes - group.kv_heads * layout.bytes + draw(6, group.kv_heads) * layout.bytes;
                    let scales = if draw(7, 2) == 0 { &layout.key_scales } else { &layout.value_scales };
                    let words = scales.len() / 2;
                    let at = |word: usize| record + scales.start + 2 * (word % words);
                    let (one, mut other) = (at(draw(8, words)), draw(9, words));
                    while whole[one..one + 2] == whole[at(other)..at(other) + 2] {
                        other += 1;
                    }
                    (0..2).for_each(|byte| bad.swap(one + byte, at(other) + byte));
                }
                3 if draw(10, 4) == 0 => bad = read(pages[block], 1 - layer),
                3 => bad = read(pages[(block + 1 + draw(6, 3)) % 4], layer),
                _ => {
                    // Its end, which is not all zeroes, is zeroes, or what another page has there.
                    let at = draw(7, bytes - 64);
                    match draw(8, 2) {
                        0 => bad[at..bytes].fill(0),
                        _ => bad[at..].copy_from_slice(&read(pages[(block + 1) % 4], layer)[at..]),
                    }
                }
            }
            assert!(bad[..bytes] != whole[..bytes], "kind {kind}, trial {trial}: no damage");
            write(pages[block], layer, &bad);
            let before = cache.memory();
            match cache.swap_in(id) {
                Err(Error::Damaged { layer: at, block: of, why }) => {
                    assert_eq!((at, of), (layer, block));
                    assert!(kind != 0 || why != SealError::Another || draw(4, bytes) < 64);
                    seen[kind] += 1;
                }
                Ok(_) => panic!("trial {trial}, kind {kind}: not seen"),
                Err(other) => panic!("{other}"),
            }
            assert_eq!(cache.memory(), before);
            write(pages[block], layer, &whole);
        }
        let (executed, all) = (5 * TRIALS, seen.iter().sum::<usize>());
        println!("GATE swap-damage executed={executed} failed={} controls={all}/{executed} seed=0x0", executed - all);
        assert_eq!(seen, [TRIALS; 5]);
        assert_eq!(cache.swap_in(id).unwrap(), (4 * 2 * group.bytes_at(0)) as u64);
    }

    /// The same at every level: each bit of the page itself, the page of another level, and no bit of the rest of its place.
    #[test]
    fn damage_outside_is_seen_at_every_level() {
        let level = |format: &str| Level { format: format.parse().unwrap(), tokens: 128 };
        let ladder = ["t8-v8g64-b16", "t4-v4g64-b16", "tq3-v3g64-b16", "t2-tq2-b16"].map(level);
        let config = Config { swap_tokens: 128, ..Config::new(Geometry::new(1, 4, 2, 64).unwrap(), 128) };
        let cache = Cache::new(config.with_levels(ladder.to_vec())).unwrap();
        let id = cache.create().unwrap();
        let mut step = cache.begin(&[Chunk { sequence: id, tokens: 64 }]).unwrap();
        let rows: Vec<f32> = (0..64 * 128).map(|i| splitmix64(i) as f32 / 1e19).collect();
        step.append(0, &rows, &rows).unwrap();
        step.finish().unwrap();
        (0..4).for_each(|block| cache.change_level(id, 0, block, block).unwrap());
        cache.swap_out(id).unwrap();
        let (group, mut seen) = (&cache.groups[0], 0);
        let outside = group.swap.as_ref().unwrap();
        let slots = cache.with(id, |state| {
            let pages = state.tables[0].blocks().iter().filter_map(|block| block.swapped);
            Ok(pages.map(|swapped| group.slot(swapped.page, 0)).collect::<Vec<_>>())
        });
        let slots = slots.unwrap();
        let exchange = |slot: u32, bytes: &[u8]| {
            outside.write(slot, &cache.main).unwrap().bytes_mut().copy_from_slice(bytes);
        };
        for (level, slot) in slots.iter().enumerate() {
            let whole = outside.read(*slot, &cache.main).unwrap().bytes().to_vec();
            let bytes = group.bytes_at(level as u8);
            let flipped = |at: usize| {
                let mut bad = whole.clone();
                bad[at] ^= 1 << (at % 8);
                bad
            };
            let another = outside.read(slots[(level + 1) % 4], &cache.main).unwrap().bytes().to_vec();
            for bad in (0..bytes).step_by(13).map(flipped).chain([another]) {
                exchange(*slot, &bad);
                let refused = cache.swap_in(id);
                assert!(matches!(refused, Err(Error::Damaged { block, .. }) if block == level), "{refused:?}");
                seen += 1;
            }
            // Nobody reads what is behind it.
            exchange(*slot, &(bytes..whole.len()).map(flipped).next().unwrap_or(whole));
        }
        println!("GATE swap-levels executed={seen} failed=0 controls={seen}/{seen} seed=0x0");
        cache.swap_in(id).unwrap();
        assert!(seen > 500, "{seen}");
    }
}
