//! Bytes of everything that a cache takes when it is made. Pure arithmetic: creation and planning both start here.
use crate::group::SEAL_BYTES;
use crate::prefix::Prefixes;
use crate::sequence::SequenceState;
use crate::{Config, Error, Side};
use certkv_core::budget::ByClass;
use certkv_core::{Class, RecordLayout};
use certkv_device::Arena;
use certkv_page::PageAllocator;
use certkv_tier::{Scratch, ScratchConfig};

/// Of a KV group.
#[derive(Debug, Clone)]
pub(crate) struct GroupSizes {
    pub(crate) first: usize,
    pub(crate) layers: usize,
    pub(crate) layout: RecordLayout,
    /// Pages, each a slot in every layer.
    pub(crate) host_pages: usize,
    pub(crate) packed_pages: usize,
    pub(crate) tail_pages: usize,
    /// Bytes of a packed page in one layer: seal and records.
    pub(crate) page_bytes: usize,
    /// Bytes of a page of originals, and of a tail, in one layer.
    pub(crate) original_bytes: usize,
    pub(crate) max_blocks: usize,
    /// `None` where the configuration has no room for a side.
    pub(crate) scratch: Option<ScratchConfig>,
    /// What a sequence can grow to in this group.
    pub(crate) sequence_bytes: usize,
}

/// Of a cache.
#[derive(Debug, Clone)]
pub(crate) struct Sizes {
    pub(crate) groups: Vec<GroupSizes>,
    sequences: usize,
    prefix_bytes: usize,
    /// What publishing may add at the most: value centres, which every path of cached blocks has its own of.
    pub(crate) later: usize,
}

impl GroupSizes {
    fn new(config: &Config, (first, layers, layout): (usize, usize, RecordLayout)) -> Result<Self, Error> {
        let geometry = &config.geometry;
        let full = config.max_tokens.div_ceil(layout.tokens());
        let max_blocks = full + 1;
        // Each layer has as many scratch slots as any other, to within one of the total.
        let share = |slots: usize| {
            let up_to = |layer: usize| slots * layer / geometry.layers;
            (up_to(first + layers) - up_to(first)) as u32
        };
        let scratch = ScratchConfig {
            key_slots: share(config.scratch_keys),
            value_slots: share(config.scratch_values),
            slot_bytes: layout.original_side_bytes(),
        };
        let sizes = Self {
            first,
            layers,
            // An open block has originals too; a tail is retired only after its successor was taken.
            host_pages: full + config.max_sequences,
            packed_pages: full,
            tail_pages: 2 * config.max_sequences,
            page_bytes: SEAL_BYTES + geometry.kv_heads * layout.bytes,
            original_bytes: geometry.kv_heads * 2 * layout.original_side_bytes(),
            max_blocks,
            scratch: (scratch.key_slots > 0 || scratch.value_slots > 0).then_some(scratch),
            sequence_bytes: SequenceState::most_bytes(geometry, layers, max_blocks),
            layout,
        };
        for pages in [sizes.host_pages, sizes.packed_pages, sizes.tail_pages] {
            sizes.slots(pages)?;
        }
        Ok(sizes)
    }

    /// Arena slots of so many pages.
    pub(crate) fn slots(&self, pages: usize) -> Result<u32, Error> {
        let why = || "more slots than a 32-bit index can name".into();
        let slots = pages.checked_mul(self.layers).and_then(|n| u32::try_from(n).ok());
        slots.ok_or_else(|| Error::Config { field: "max_tokens", why: why() })
    }

    /// Bytes of so many pages of originals or tails, in all layers.
    pub(crate) fn of_originals(&self, pages: usize) -> usize {
        Arena::padded_bytes(pages * self.layers, self.original_bytes)
    }

    /// Bytes of so many packed pages, in all layers.
    pub(crate) fn of_packed(&self, pages: usize) -> usize {
        Arena::padded_bytes(pages * self.layers, self.page_bytes)
    }

    /// Bytes of so many sides in scratch.
    pub(crate) fn of_sides(&self, sides: usize) -> usize {
        Arena::padded_bytes(sides, self.layout.original_side_bytes())
    }

    /// Words and lists about pages and slots.
    fn books(&self) -> usize {
        let pages = [self.host_pages, self.packed_pages, self.tail_pages];
        let books = |n: &usize| PageAllocator::bytes(*n).saturating_add(Arena::book_bytes(*n * self.layers));
        pages.iter().map(books).fold(0, usize::saturating_add)
    }
}

impl Sizes {
    /// # Errors
    /// Names the field that is out of range.
    pub(crate) fn new(config: &Config) -> Result<Self, Error> {
        let shapes = config.groups()?;
        if let Some((_, _, layout)) = shapes.iter().find(|(_, _, layout)| !layout.format.refine.is_none()) {
            let why = format!("{}; residual planes are read on GPUs only", layout.format);
            return Err(Error::Config { field: "formats", why });
        }
        let groups = shapes.into_iter().map(|shape| GroupSizes::new(config, shape)).collect::<Result<Vec<_>, _>>()?;
        let prefix_bytes = match &config.prefixes {
            Some(prefixes) => {
                let shape = |g: &GroupSizes| (g.layout.tokens(), g.host_pages, g.max_blocks);
                Prefixes::bytes(prefixes, &groups.iter().map(shape).collect::<Vec<_>>())?
            }
            None => 0,
        };
        let units = config.prefixes.as_ref().map_or(0, |prefixes| prefixes.units);
        let centres = 4 * config.geometry.layers * config.geometry.kv_width();
        Ok(Self { groups, sequences: config.max_sequences, prefix_bytes, later: units.saturating_mul(centres) })
    }

    /// What one sequence can grow to.
    pub(crate) fn sequence_bytes(&self) -> usize {
        let groups = self.groups.iter().map(|group| group.sequence_bytes).fold(0, usize::saturating_add);
        groups.saturating_add(crate::cache::ENTRY_BYTES)
    }

    /// Bytes to reserve, by class.
    pub(crate) fn reserved(&self) -> ByClass {
        let mut classes = ByClass::default();
        let mut add = |class: Class, bytes: usize| {
            let sum = &mut classes[class as usize];
            *sum = sum.saturating_add(bytes);
        };
        for group in &self.groups {
            add(Class::Packed, group.of_packed(group.packed_pages));
            add(Class::Scratch, group.of_originals(group.tail_pages));
            add(Class::Host, group.of_originals(group.host_pages));
            add(Class::Tables, group.books());
            let (sides, books) = group.scratch.as_ref().map_or((0, 0), Scratch::bytes);
            add(Class::Scratch, sides);
            add(Class::Tables, books);
        }
        add(Class::Tables, self.sequences.saturating_mul(self.sequence_bytes()));
        add(Class::Tables, self.prefix_bytes);
        classes
    }
}

/// Sides of one kind that a group's scratch holds or has room for.
pub(crate) const SIDES: [Side; 2] = [Side::Key, Side::Value];
