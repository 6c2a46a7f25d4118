//! How far a cached prefix can be continued where groups have windows.
//!
//! The query behind `n` units sees the sinks and the last `tokens - 1` tokens before it ([`Window`]). So `n` units can be continued if in
//! every group with a window the sinks' blocks are there and so are the blocks of that window, and in all other groups every block. Of
//! the lengths that all groups agree on the longest is found. Each of the units before may lack everything else.
use super::entry::{Entries, NONE};
use super::index::{PrefixIndex, State};
use super::key::{Chain, Prompt};
use crate::table::BlockTable;

/// What of a group a path has so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Reach {
    /// Blocks without a gap up to here.
    run: usize,
    /// A block of the sinks is not there.
    broken: bool,
}

impl<T> PrefixIndex<T> {
    /// Units of a path that can be continued. One look at each block of a group with a window.
    pub(super) fn usable(&self, entries: &Entries<T>, path: &[u32], reach: &mut [Reach]) -> usize {
        if self.groups.iter().all(|group| group.window.is_none()) {
            return path.len();
        }
        reach.fill(Reach::default());
        let mut most = 0;
        for (unit, slot) in path.iter().enumerate() {
            let (mut rest, mut all) = (entries.pages_of(*slot), true);
            for (group, reach) in self.groups.iter().zip(reach.iter_mut()) {
                let each = self.unit() / group.block;
                let (mine, others) = rest.split_at(each);
                rest = others;
                let Some(window) = group.window else { continue };
                let sinks = window.sink_blocks(group.block);
                for (number, page) in (unit * each..).zip(mine) {
                    reach.run = if page.is_some() { reach.run + 1 } else { 0 };
                    reach.broken |= page.is_none() && number < sinks;
                }
                let end = (unit + 1) * each;
                let first = window.first_seen(group.block, end * group.block).min(end);
                all &= !reach.broken && reach.run >= end - first;
            }
            if all {
                most = unit + 1;
            }
        }
        most
    }

    /// Blocks of groups with a window that tables were made of are in use now.
    pub(super) fn touch_windows(&self, entries: &mut Entries<T>, path: &[u32], tables: &[BlockTable], now: u64) {
        for (group, table) in self.groups.iter().zip(tables).filter(|(group, _)| group.window.is_some()) {
            for (number, _) in table.numbered() {
                if let Some(slot) = path.get(number * group.block / self.unit()) {
                    entries.nodes[*slot as usize].seen_at = now;
                }
            }
        }
    }

    /// Units of `prompt` that are cached from its first on, and of these those that a look-up would find. Holds nothing and counts as no
    /// use.
    pub fn known(&self, chain: &Chain, prompt: Prompt<'_>) -> (usize, usize) {
        let mut state = self.state.lock();
        let State { entries, path, reach, .. } = &mut *state;
        self.follow(entries, chain, prompt, path);
        (path.len(), self.usable(entries, path, reach))
    }

    /// Full units of `prompt` that are worth having from elsewhere, in order: those that are not cached, and those that lack blocks which
    /// the query behind the cached units, or behind the whole prompt, sees. Holds nothing and counts as no use.
    pub fn lacking(&self, chain: &Chain, prompt: Prompt<'_>) -> Vec<usize> {
        let mut state = self.state.lock();
        let State { entries, path, .. } = &mut *state;
        self.follow(entries, chain, prompt, path);
        let (cached, full) = (path.len(), prompt.tokens.len() / self.unit());
        let lacks = |unit: &usize| {
            let mut rest = entries.pages_of(path.get(*unit).copied().unwrap_or(NONE));
            self.groups.iter().any(|group| {
                let each = self.unit() / group.block;
                let (mine, others) = rest.split_at(each);
                rest = others;
                let Some(window) = group.window else { return false };
                let ends = [cached, full].map(|end| end * self.unit());
                let wanted = |number: usize| ends.into_iter().any(|end| window.sees_block(group.block, end, number));
                (unit * each..).zip(mine).any(|(number, page)| page.is_none() && wanted(number))
            })
        };
        (0..cached).filter(lacks).chain(cached..full).collect()
    }
}
