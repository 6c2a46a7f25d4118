//! What is cached of a prompt, for whoever copies it.
use super::index::{PrefixIndex, State};
use super::key::{Chain, Prompt};
use crate::error::TableError;
use crate::table::{BlockEntry, BlockTable};

const GONE: u32 = u32::MAX;

/// The cached units of a prompt, usable or not, held.
#[derive(Debug)]
pub struct Held<T> {
    /// One note per unit.
    pub notes: Vec<T>,
    /// One table per group, of the blocks that are there, without their gaps. Left to drop, their pages are given back.
    pub tables: Vec<BlockTable>,
    /// By group and block: where it is in the table.
    places: Vec<Vec<u32>>,
}

impl<T> Held<T> {
    /// Pages of a block of a group; `None` for one that is not cached.
    pub fn block(&self, group: usize, block: usize) -> Option<&BlockEntry> {
        let place = *self.places.get(group)?.get(block)?;
        self.tables.get(group)?.blocks().get(place as usize)
    }
}

impl<T: Clone> PrefixIndex<T> {
    /// The cached units of `prompt` from its first on, whether a sequence can continue from them or not. No use of them: nothing is
    /// counted, and nothing stays longer for it.
    ///
    /// # Errors
    /// As [`PrefixIndex::longest`].
    pub fn hold(&self, chain: &Chain, prompt: Prompt<'_>) -> Result<Held<T>, TableError> {
        let memory = |_| TableError::OutOfMemory { what: "a prefix" };
        let mut state = self.state.lock();
        let State { entries, path, .. } = &mut *state;
        self.follow(entries, chain, prompt, path);
        let (mut tables, mut places) = (Vec::new(), Vec::new());
        for (group, shape) in self.groups.iter().enumerate() {
            let blocks = self.blocks_of(group);
            let pages = || path.iter().flat_map(|slot| &entries.pages_of(*slot)[blocks.clone()]);
            let (mut of_group, mut there) = (Vec::new(), 0u32);
            of_group.try_reserve_exact(path.len() * blocks.len()).map_err(memory)?;
            for page in pages() {
                of_group.push(if page.is_some() { there } else { GONE });
                there += u32::from(page.is_some());
            }
            tables.push(BlockTable::adopt(&shape.pools, shape.block, shape.max_blocks, pages().flatten().copied())?);
            places.push(of_group);
        }
        let mut notes = Vec::new();
        notes.try_reserve_exact(path.len()).map_err(memory)?;
        notes.extend(path.iter().filter_map(|slot| entries.nodes[*slot as usize].note.clone()));
        Ok(Held { notes, tables, places })
    }
}
