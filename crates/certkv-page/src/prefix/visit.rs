//! Cached units one by one, for whoever looks after their pages.
use super::entry::NONE;
use super::index::PrefixIndex;
use crate::table::BlockEntry;

/// One cached unit.
#[derive(Debug, Clone)]
pub struct CachedUnit<T> {
    /// Its place in the index: to go on behind it.
    pub place: usize,
    /// What is remembered of it.
    pub note: T,
    /// Its blocks that are there: group, number in a sequence, pages.
    pub blocks: Vec<(usize, usize, BlockEntry)>,
}

impl<T: Clone> PrefixIndex<T> {
    /// The first unit at `place` or behind it, in no order that means anything. No use of it, and nothing is held: the caller keeps others from
    /// evicting it. Costs a look at its path.
    pub fn unit_from(&self, place: usize) -> Option<CachedUnit<T>> {
        let state = self.state.lock();
        let nodes = &state.entries.nodes;
        let (place, note) =
            nodes.iter().enumerate().skip(place).find_map(|(at, node)| Some((at, node.note.clone()?)))?;
        let (mut number, mut parent) = (0, nodes[place].parent);
        while parent != NONE {
            number += 1;
            parent = nodes[parent as usize].parent;
        }
        let pages = state.entries.pages_of(place as u32);
        let of_group = |group: usize| {
            let range = self.blocks_of(group);
            let first = number * range.len();
            let pages = &pages[range];
            pages.iter().enumerate().filter_map(move |(at, page)| Some((group, first + at, (*page)?)))
        };
        let blocks = (0..self.groups.len()).flat_map(of_group).collect();
        Some(CachedUnit { place, note, blocks })
    }
}
