//! Originals back into host memory before a step asks for them.
use super::Ask;
use crate::cache::Cache;
use crate::group::Group;
use crate::sequence::SequenceState;
use crate::{Error, Policy, SequenceId};
use certkv_page::BlockTable;

/// What was brought ahead of need, each of one block in one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Prefetched {
    /// What the next step is expected to read.
    pub wanted: usize,
    /// Of those, what came from the store; the others were there.
    pub fetched: usize,
    /// Of those, what host memory has no room for beside the others, and stays away.
    pub left: usize,
    /// Bytes that came.
    pub bytes: u64,
}

impl Cache {
    /// Reads originals of a sequence back from the store, ahead of its next step: those that the step will read first if it attends as the last one did,
    /// which are the keys that this one's masses asked for, and blocks without codes or [protected](crate::Protection); under [`Policy::Dense`] all. The step then waits for the store
    /// only for what its own masses ask for beside that. They stay until others need their room, so call it soon before the step, and on another thread than steps that
    /// should not wait: those of other sequences go on. Does nothing where nothing is spilled.
    ///
    /// Waits for the store, at most as long as [`Spill::deadline`](crate::Spill::deadline) a layer.
    ///
    /// # Errors
    /// [`Error::Fetch`] names the first block that cannot be had; the step may do without it. [`Error::UnknownSequence`], [`Error::BusySequence`]. What came stays.
    pub fn prefetch(&self, id: SequenceId) -> Result<Prefetched, Error> {
        self.with(id, |state| {
            let (mut turn, mut done) = (self.turn.lock(), Prefetched::default());
            for (index, group) in self.groups.iter().enumerate() {
                let (Some(map), Some(table)) = (group.map(), state.tables.get(index)) else { continue };
                let mut room = map.lock().room();
                for layer in group.first..group.first + group.layers {
                    let mut asks = self.expected(group, table, state, layer);
                    done.wanted += asks.len();
                    done.left += asks.len() - asks.len().min(room);
                    asks.truncate(room);
                    room -= asks.len();
                    let away = {
                        let map = map.lock();
                        asks.iter().filter(|ask| map.frame(group.slot_id(ask.page, ask.layer)).is_none()).count()
                    };
                    self.bring(&mut turn, index, Some(id), &asks)?;
                    done.fetched += away;
                    done.bytes += (away * group.host.slot_bytes()) as u64;
                }
            }
            Ok(done)
        })
    }

    /// What the next step of a sequence reads first in a layer.
    fn expected(&self, group: &Group, table: &BlockTable, state: &SequenceState, layer: usize) -> Vec<Ask> {
        let all = self.config.policy == Policy::Dense;
        let heads = &state.heads[group.memories(layer)];
        let uncoded = &state.uncoded[group.strand(layer)];
        let protected = self.config.protection.blocks(group.layout.tokens(), table.len() + 1);
        let exact = |block: usize| uncoded.contains(block) || protected.iter().any(|p| p.contains(&block));
        let read = |block: usize| all || exact(block) || heads.iter().any(|h| h.keys.contains(block));
        let full = table.blocks().iter().enumerate().filter(|(block, entry)| entry.is_full() && read(*block));
        full.map(|(block, entry)| Ask { block, layer, page: entry.host }).collect()
    }
}
