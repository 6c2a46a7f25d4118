//! What a format with residuals, math.md (2.23), has beside [`decide`](super::decide): sides between codes and originals, chosen in two rounds.
use crate::Error;
use crate::attend::certified::HeadCall;
use crate::attend::items;
use crate::attend::sets::Item;
use crate::attend::terms::{self, HeadScale};
use crate::group::Side;
use crate::work::HeadWork;
use certkv_control::policy::Certified;
use certkv_core::Refine;

impl HeadCall<'_> {
    /// `decide` for a format with residuals, in two rounds of which this is the first: keys alone. What they change in the masses is what
    /// [`HeadCall::look_again`] decides on.
    pub(super) fn refine(&self, policy: &Certified, w: &mut HeadWork) -> Result<(), Error> {
        self.cover(policy, w, true)?;
        let items = items(self.group, self.blocks);
        // Keys that are worth their originals are read so from the start in the next step, instead of their codes.
        w.memory.keys.clear();
        let exact = w.next.iter().map(|i| items.get(i)).filter(|item| item.exact && item.side == Side::Key);
        exact.take(policy.k_cap).for_each(|item| {
            w.memory.keys.insert(item.block);
        });
        self.extend(policy, w, false)
    }

    /// The second round: what keys were refined or read exactly for the first are scored again, and more of them and values are chosen. Nothing
    /// in a format without residuals. The originals that the sets name must be held.
    pub(crate) fn look_again(&self, policy: &Certified, draw: u64, w: &mut HeadWork) -> Result<(), Error> {
        if w.summed || !self.group.is_refinable() || w.memory.hints.is_empty() {
            return Ok(());
        }
        self.count_rescored(w);
        self.rescore(w)?;
        self.extend(policy, w, true)?;
        self.explore(policy.explore_rate, draw, w);
        Ok(())
    }

    /// Extends the sets by a cover, those of values in the `last` round.
    fn extend(&self, policy: &Certified, w: &mut HeadWork, last: bool) -> Result<(), Error> {
        self.cover(policy, w, false)?;
        let (HeadWork { sets, touched, next, .. }, items) = (w, items(self.group, self.blocks));
        touched.clear();
        for Item { side, block, exact } in next.iter().map(|i| items.get(i)) {
            match side {
                Side::Value if last => {
                    sets.skipped.remove(block);
                    if exact { sets.read_exactly(side, block) } else { sets.read_finely(side, block) }
                }
                Side::Value => {}
                Side::Key if sets.keys.contains(block) => {}
                Side::Key if exact => {
                    if sets.keys.len() < policy.k_cap {
                        sets.read_exactly(side, block);
                        touched.push(block);
                    }
                }
                Side::Key => touched.extend(sets.fine_keys.insert(block).then_some(block)),
            }
        }
        touched.sort_unstable();
        touched.dedup();
        Ok(())
    }

    /// Turns the gains of reading sides exactly, of head `h` from `start` on, into those of residuals and what the originals gain beyond
    /// them. Finer steps cut an error by their number, to within roundings. With `before`, keys of the guess
    /// gain what they would if they had been read from codes.
    pub(crate) fn split(&self, scale: &HeadScale, w: &mut HeadWork, h: usize, start: usize, before: bool) {
        let (blocks, refine) = (self.blocks, self.group.layout.format.refine);
        w.gains.resize(start + 4 * blocks, 0.0);
        let HeadWork { gains, masses, memory, sets, .. } = w;
        let (fine, exact) = gains[start..].split_at_mut(2 * blocks);
        for b in 0..blocks {
            let whole = fine[b];
            exact[b] = match masses.get(h, b) {
                Some(_) if sets.fine_keys.contains(b) => whole,
                Some(mass) if whole > 0.0 => {
                    let guessed = before && memory.keys.contains(b);
                    let (delta, lambda) = match guessed {
                        true => (memory.delta[h][b].get(), memory.lambda[h][b].get()),
                        false => (mass.delta, mass.lambda),
                    };
                    let to = Refine::finer(refine.key);
                    terms::key_gain(scale, &mass, to * delta, to * lambda).min(whole)
                }
                _ => 0.0,
            };
            // Both are infinite where nothing is known of the codes.
            fine[b] = if exact[b] < whole { whole - exact[b] } else { 0.0 };
        }
        for b in 0..blocks {
            let whole = fine[blocks + b];
            let left = match () {
                () if sets.skipped.contains(b) => 0.0,
                () if sets.fine_values.contains(b) => whole,
                () => whole * Refine::finer(refine.value),
            };
            (fine[blocks + b], exact[blocks + b]) = (if left < whole { whole - left } else { 0.0 }, left);
        }
    }
}
