//! Events of blocks that move between the GPU's memory, the host's and a store: written by the host, which moves them.
use super::cache::GpuCache;
use super::sizes::Sizes;
use crate::{MoveEvent, MoveEvents};
use certkv_core::SequenceId;
use certkv_page::SwapPlan;

impl GpuCache {
    /// As [`Cache::move_events`](crate::Cache::move_events): the latest [`GpuConfig::move_events`](super::GpuConfig::move_events).
    pub fn move_events(&self) -> Option<MoveEvents> {
        self.moves.clone()
    }

    /// Events of the blocks whose codes plans have copied, before those are committed; none where nobody keeps them.
    pub(super) fn swapped(&self, id: SequenceId, plans: &[SwapPlan]) -> Vec<MoveEvent> {
        let (Some(_), Ok(entry)) = (&self.moves, self.entry(id)) else { return Vec::new() };
        let s = &self.core.sizes;
        let all = entry.tables.iter().zip(plans).enumerate();
        all.flat_map(|(group, (table, plan))| MoveEvent::swapped(id, table, plan, |level| runs(s, group, level)))
            .collect()
    }
}

/// A group's layers, in runs of those that follow each other: the first, how many, and bytes of a block's codes of a level in all of them.
fn runs(s: &Sizes, group: usize, level: u8) -> Vec<(usize, usize, usize)> {
    let mut runs: Vec<(usize, usize, usize)> = Vec::new();
    for &layer in &s.groups[group].layers {
        let bytes = s.record_page_bytes(layer, level);
        match runs.last_mut() {
            Some((first, layers, sum)) if *first + *layers == layer => (*layers, *sum) = (*layers + 1, *sum + bytes),
            _ => runs.push((layer, 1, bytes)),
        }
    }
    runs
}
