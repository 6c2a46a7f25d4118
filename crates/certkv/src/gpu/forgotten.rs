//! Pages and rows that changed hands: nothing of them may be remembered when the next step begins.
use super::cache::GpuCache;
use super::core::Choice;
use super::sizes::{GroupSizes, Sizes};
use crate::Error;
use certkv_core::{OutOfMemory, SequenceId, reserve_total};
use certkv_kernel::cuda::select::{ROW_ENTRY, SelectMode};

/// Pages of a group, rows, and blocks of rows whose level changed, of which the device has to be told. Asks for memory when it is made, and not again.
#[derive(Debug)]
pub(super) struct Forgotten(Vec<u32>);

impl Forgotten {
    /// For a group of layers.
    pub(super) fn new(sizes: &Sizes, group: &GroupSizes) -> Result<Self, OutOfMemory> {
        let pages = group.layers.first().map_or(0, |layer| sizes.pages_of(*layer));
        let blocks = if sizes.levels.is_empty() { 0 } else { sizes.stride };
        Self::of(pages + sizes.rows * (1 + blocks))
    }

    /// For so many that differ, and as many that do not, so that putting them in order is seldom.
    fn of(entries: usize) -> Result<Self, OutOfMemory> {
        let mut list = Vec::new();
        reserve_total(&mut list, 2 * entries + 1)?;
        Ok(Self(list))
    }

    /// Adds an entry. Pages change hands as often as they like between two steps: where there is no more room each is noted once.
    pub(super) fn note(&mut self, entry: u32) {
        let Self(entries) = self;
        if entries.len() == entries.capacity() {
            entries.sort_unstable();
            entries.dedup();
        }
        entries.push(entry);
    }

    /// Adds entries; whether there were any.
    pub(super) fn note_all(&mut self, entries: impl Iterator<Item = u32>) -> bool {
        entries.inspect(|entry| self.note(*entry)).count() > 0
    }
}

impl GpuCache {
    /// Pages of a group that may be given to other tokens, of a row whose blocks are not what they were. A page that others share is
    /// forgotten for them, too: they read its codes until it is promoted again. Where there are none the row keeps what is promoted, as nothing is of its open
    /// block; but not if it is `anew` another sequence's, or blocks that a window has passed are to come again, of which words may be left.
    pub(super) fn forget_later(&mut self, id: SequenceId, group: usize, pages: impl Iterator<Item = u32>, anew: bool) {
        let forgotten = &mut self.forgotten[group];
        if forgotten.note_all(pages) || anew {
            forgotten.note(ROW_ENTRY | id.slot);
        }
    }

    /// Enqueues, in every layer, that nothing is remembered of pages and rows that changed hands. A launch to a layer, and only
    /// after truncations, releases, steps that were dropped, and steps in which a window passed a block.
    pub(super) fn forget(&mut self) -> Result<(), Error> {
        let Self { core, ring, forgotten, config, .. } = self;
        let mode = if config.erase { SelectMode::Erase } else { SelectMode::Forget };
        for (group, Forgotten(forgotten)) in core.sizes.groups.iter().zip(forgotten) {
            forgotten.sort_unstable();
            forgotten.dedup();
            for part in forgotten.chunks(ring.most() / 4 - 1) {
                let bytes = 4 * (1 + part.len());
                let at = ring.take(&core.queue, bytes)?;
                ring.area().write(at, &[part.len() as u32])?;
                ring.area().write(at + 4, part)?;
                let list = ring.area().span(at, bytes)?;
                for layer in &group.layers {
                    let all = Choice::plan(*layer, 0, 0, false);
                    core.select(&core.queue, &Choice { mode, only: Some(list), ..all })?;
                }
            }
            forgotten.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Forgotten;

    #[test]
    fn what_changes_hands_again_and_again_asks_for_no_more_memory() {
        let mut forgotten = Forgotten::of(10).expect("memory");
        let (at, room) = (forgotten.0.as_ptr(), forgotten.0.capacity());
        assert!(!forgotten.note_all(core::iter::empty()));
        for round in 0..1000u32 {
            assert!(forgotten.note_all((0..10).map(|page| (page * 7 + round) % 10)));
        }
        assert_eq!((forgotten.0.as_ptr(), forgotten.0.capacity()), (at, room));
        forgotten.0.sort_unstable();
        forgotten.0.dedup();
        assert_eq!(forgotten.0, (0..10).collect::<Vec<_>>());
    }
}
