//! The pages that one layer of one sequence is read from, held while they are read.
use crate::attend::promoted::Resident;
use crate::group::{Group, Side};
use crate::step::Part;
use crate::{Cache, Error};
use certkv_control::BitSet;
use certkv_core::{PageId, planted};
use certkv_device::ReadGuard;
use certkv_kernel::{Block, BlockSource, Tail};

/// Guards of one layer's pages; the buffers are kept from call to call.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    /// Packed page of every full block.
    packed: Vec<ReadGuard>,
    /// Originals by block, where they were asked for.
    host: Vec<Option<ReadGuard>>,
    /// Ids of the originals of every block, the open one included.
    host_ids: Vec<PageId>,
    /// The open block's rows.
    tail: Option<ReadGuard>,
    /// Tokens in the open block.
    tail_tokens: usize,
}

impl Pages {
    /// Finds the pages of `part` in `layer` with all tokens of the step visible, and holds the packed ones (if `packed`)
    /// and the tail.
    pub(crate) fn open(
        &mut self,
        cache: &Cache,
        group: &Group,
        index: usize,
        layer: usize,
        part: &Part,
        packed: bool,
    ) -> Result<(), Error> {
        self.close();
        let size = group.layout.tokens();
        let total = part.len + part.tokens;
        let full = total / size;
        self.tail_tokens = total % size;
        let committed = &part.state.tables[index].blocks()[..part.len / size];
        let hold = |id: PageId| group.packed.read_tagged(group.slot(id, layer), &cache.main, Group::tag(id));
        for entry in committed {
            self.host_ids.push(entry.host);
            if let (true, Some(id)) = (packed, entry.packed) {
                self.packed.push(hold(id)?);
            }
        }
        for span in part.reservations.get(index).into_iter().flat_map(|r| r.rows()) {
            self.host_ids.push(span.host);
            match (span.packed, span.tail) {
                (Some(id), _) if packed => self.packed.push(hold(id)?),
                (None, Some(id)) => {
                    let guard = group.tail.read_tagged(group.slot(id, layer), &cache.main, Group::tag(id))?;
                    self.tail = Some(guard);
                }
                _ => {}
            }
        }
        self.host.resize_with(self.host_ids.len(), || None);
        if (packed && self.packed.len() != full) || self.tail.is_some() != (self.tail_tokens > 0) {
            return Err(Error::Order { layer, why: "a page of the sequence is missing" });
        }
        Ok(())
    }

    /// Holds the originals of `block`.
    pub(crate) fn fetch(&mut self, cache: &Cache, group: &Group, layer: usize, block: usize) -> Result<(), Error> {
        if let (Some(slot @ None), Some(&id)) = (self.host.get_mut(block), self.host_ids.get(block)) {
            *slot = Some(group.host.read_tagged(group.slot(id, layer), &cache.main, Group::tag(id))?);
        }
        Ok(())
    }

    /// Lets every page go and keeps the buffers.
    pub(crate) fn close(&mut self) {
        self.packed.clear();
        self.host.clear();
        self.host_ids.clear();
        self.tail = None;
        self.tail_tokens = 0;
    }

    /// Blocks that have originals, the open one included.
    pub(crate) fn host_blocks(&self) -> usize {
        self.host_ids.len()
    }

    /// Id of the originals of `block`.
    pub(crate) fn host_id(&self, block: usize) -> Option<PageId> {
        self.host_ids.get(block).copied()
    }

    /// Tokens of the open block.
    pub(crate) fn tail_tokens(&self) -> usize {
        self.tail_tokens
    }

    /// Originals of one side of `block`, if they are held.
    pub(crate) fn original<'a>(&'a self, group: &Group, block: usize, head: usize, side: Side) -> Option<&'a [u16]> {
        self.host.get(block)?.as_ref().map(|guard| &guard.words()[group.side(head, side)])
    }

    /// Record of `head` in `block`; empty if the pages were opened without records.
    pub(crate) fn record<'a>(&'a self, group: &Group, block: usize, head: usize) -> &'a [u8] {
        self.packed.get(block).map_or(&[], |guard| &guard.bytes()[group.record(head)])
    }

    /// The open block of `head`.
    pub(crate) fn tail<'a>(&'a self, group: &Group, head: usize, centre_norm: f32) -> Option<Tail<'a>> {
        let guard = self.tail.as_ref()?;
        Some(Tail {
            keys: &guard.words()[group.side(head, Side::Key)],
            values: &guard.words()[group.side(head, Side::Value)],
            tokens: self.tail_tokens + usize::from(planted!(B12)),
            centre_norm,
        })
    }
}

/// One KV head's view of the pages under a choice of promoted sides.
pub(crate) struct View<'a> {
    pub(crate) pages: &'a Pages,
    pub(crate) group: &'a Group,
    pub(crate) head: usize,
    /// Exact sides that are read from scratch instead of the host.
    pub(crate) resident: Option<&'a Resident>,
    /// Blocks whose keys are read from the originals.
    pub(crate) keys: &'a BitSet,
    /// Blocks whose values are read from the originals.
    pub(crate) values: &'a BitSet,
    /// Blocks whose values are not read.
    pub(crate) skipped: &'a BitSet,
    /// The head's value centre.
    pub(crate) centre: &'a [f32],
}

impl<'a> View<'a> {
    /// The originals of `all` blocks.
    pub(crate) fn exact(pages: &'a Pages, group: &'a Group, head: usize, all: &'a BitSet) -> Self {
        static NONE: BitSet = BitSet::EMPTY;
        Self { pages, group, head, resident: None, keys: all, values: all, skipped: &NONE, centre: &[] }
    }
}

impl BlockSource for View<'_> {
    fn block(&self, index: usize) -> Block<'_> {
        let side = |set: &BitSet, side| {
            if !set.contains(index) {
                return None;
            }
            let copy = self.resident.and_then(|resident| resident.words(side, index));
            copy.or_else(|| self.pages.original(self.group, index, self.head, side))
        };
        Block {
            record: self.pages.record(self.group, index, self.head),
            keys: side(self.keys, Side::Key),
            values: side(self.values, Side::Value),
            skip_values: self.skipped.contains(index),
        }
    }

    fn centre(&self) -> &[f32] {
        self.centre
    }
}
