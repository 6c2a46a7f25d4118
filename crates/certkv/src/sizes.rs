//! Bytes of everything that a cache takes when it is made. Pure arithmetic: creation and planning both start here.
use crate::config::HeadGroup;
use crate::group::SEAL_BYTES;
use crate::levels::LevelSizes;
use crate::moves::MoveEvents;
use crate::prefix::Prefixes;
use crate::sequence::SequenceState;
use crate::{Config, Error, Side};
use certkv_core::budget::ByClass;
use certkv_core::{Class, RecordLayout};
use certkv_device::Arena;
use certkv_page::{PageAllocator, Window};
use certkv_tier::spill::map::Residency;
use certkv_tier::spill::records::Records;
use certkv_tier::{Scratch, ScratchConfig};
use core::ops::Range;
use parking_lot::Mutex;

/// Host memory of a group that spills.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frames {
    /// Arena slots for originals.
    pub(crate) slots: u32,
    /// Of these, kept for reading.
    pub(crate) reserve: usize,
}

/// Of a KV group.
#[derive(Debug, Clone)]
pub(crate) struct GroupSizes {
    pub(crate) first: usize,
    pub(crate) layers: usize,
    /// Of these layers' KV heads.
    pub(crate) heads: Range<usize>,
    /// Pairs of a layer and a KV head in the groups before it.
    pub(crate) before: usize,
    pub(crate) layout: RecordLayout,
    /// Pages, each a slot in every layer.
    pub(crate) host_pages: usize,
    pub(crate) packed_pages: usize,
    pub(crate) tail_pages: usize,
    /// For codes of sequences that are swapped out.
    pub(crate) swap_pages: usize,
    /// Bytes of a packed page in one layer: seal and records.
    pub(crate) page_bytes: usize,
    /// The levels behind the first, whose are `layout`, `packed_pages` and `page_bytes`.
    pub(crate) lower: Vec<LevelSizes>,
    /// Bytes of a page of originals, and of a tail, in one layer.
    pub(crate) original_bytes: usize,
    pub(crate) max_blocks: usize,
    /// `None` where every page has a slot in every layer.
    pub(crate) frames: Option<Frames>,
    /// What queries see; `None` for everything.
    pub(crate) window: Option<Window>,
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
    /// Of spilling: records on their way.
    buffer_bytes: usize,
    /// What publishing may add at the most: value centres, which every path of cached blocks has its own of.
    pub(crate) later: usize,
}

impl GroupSizes {
    fn new(config: &Config, group: HeadGroup, before: usize) -> Result<Self, Error> {
        let HeadGroup { first, layers, heads, layout, window } = group;
        let (geometry, kv_heads) = (&config.geometry, heads.len());
        let full = config.max_tokens.div_ceil(layout.tokens());
        let longest = config.max_context.div_ceil(layout.tokens());
        let max_blocks = if (1..=full).contains(&longest) { longest } else { full + 1 };
        // Of one sequence at once, and of all of them.
        let room = window.map_or(max_blocks, |window| window.most_blocks(layout.tokens(), max_blocks));
        // Cached prefixes outlive theirs, but for those of windows, which are few.
        let live = window.is_some() || config.prefixes.is_none();
        let all = if live { room.saturating_mul(config.max_sequences) } else { usize::MAX };
        // Each KV head has as many scratch slots as any other, to within one of a group's total.
        let share = |slots: usize| {
            let up_to = |heads: usize| slots * heads / (geometry.layers * geometry.kv_heads);
            (up_to(before + layers * kv_heads) - up_to(before)) as u32
        };
        let scratch = ScratchConfig {
            key_slots: share(config.scratch_keys),
            value_slots: share(config.scratch_values),
            slot_bytes: layout.original_side_bytes(),
        };
        let swap_pages = config.swap_tokens.div_ceil(layout.tokens());
        let lower = config
            .levels
            .iter()
            .skip(1)
            .map(|level| LevelSizes::new(config, level, kv_heads))
            .collect::<Result<Vec<_>, _>>()?;
        let mut sizes = Self {
            first,
            layers,
            heads,
            before,
            // An open block has originals too; a tail is retired only after its successor was taken. Sequences that are swapped out
            // keep theirs, beside those that take their place.
            host_pages: (full + swap_pages + config.max_sequences).min(all),
            packed_pages: config.levels.first().map_or(full, |first| first.tokens.div_ceil(layout.tokens())).min(all),
            lower,
            tail_pages: 2 * config.max_sequences,
            swap_pages,
            page_bytes: SEAL_BYTES + kv_heads * layout.bytes,
            original_bytes: kv_heads * 2 * layout.original_side_bytes(),
            max_blocks,
            window,
            frames: None,
            scratch: (scratch.key_slots > 0 || scratch.value_slots > 0).then_some(scratch),
            sequence_bytes: SequenceState::most_bytes(config, (layers, kv_heads), room, max_blocks, window.is_some()),
            layout,
        };
        for pages in [sizes.host_pages, sizes.packed_pages, sizes.tail_pages, sizes.swap_pages] {
            sizes.slots(pages)?;
        }
        sizes.lower.iter().try_for_each(|level| sizes.slots(level.pages).map(drop))?;
        // A window bounds its layers' originals: they stay.
        if let (Some(spill), None) = (&config.spill, window) {
            sizes.frames = Some(sizes.frames(spill.host_tokens, config.max_sequences)?);
        }
        Ok(sizes)
    }

    /// Room for `host_tokens` tokens and the open blocks in every layer, and to read the longest sequence in one layer, or one page.
    fn frames(&self, host_tokens: usize, sequences: usize) -> Result<Frames, Error> {
        let (all, blocks) = (self.slots(self.host_pages)?, host_tokens.div_ceil(self.layout.tokens()).max(1));
        let reserve = self.max_blocks.max(self.layers);
        let wanted = blocks.saturating_add(sequences).saturating_mul(self.layers).saturating_add(reserve);
        Ok(match u32::try_from(wanted).ok().filter(|frames| *frames < all) {
            Some(slots) => Frames { slots, reserve },
            None => Frames { slots: all, reserve: 0 },
        })
    }

    /// The map of a group that spills.
    pub(crate) fn residency(&self, erasing: bool) -> Result<Option<Mutex<Residency>>, Error> {
        let Some(Frames { slots: frames, reserve }) = self.frames else { return Ok(None) };
        let map = Residency::new(self.host_pages, self.layers, frames as usize, reserve);
        let map = if erasing { map.and_then(Residency::erasing) } else { map };
        let bytes = self.map_bytes();
        Ok(Some(Mutex::new(map.ok_or(Error::OutOfMemory { what: "the map of spilled originals", bytes })?)))
    }

    fn map_bytes(&self) -> usize {
        self.frames.map_or(0, |frames| Residency::bytes(self.host_pages, self.layers, frames.slots as usize))
    }

    /// Slots for originals.
    fn host_slots(&self) -> usize {
        self.frames.map_or(self.host_pages * self.layers, |frames| frames.slots as usize)
    }

    /// Bytes of so many slots of originals.
    pub(crate) fn of_frames(&self, frames: usize) -> usize {
        Arena::padded_bytes(frames, self.original_bytes)
    }

    /// Arena slots of so many pages.
    pub(crate) fn slots(&self, pages: usize) -> Result<u32, Error> {
        let why = || "more slots than a 32-bit index can name".into();
        let slots = pages.checked_mul(self.layers).and_then(|n| u32::try_from(n).ok());
        slots.ok_or_else(|| Error::Config { field: "max_tokens", why: why() })
    }

    /// Of the records of a block, level by level.
    pub(crate) fn layouts(&self) -> impl Iterator<Item = &RecordLayout> {
        core::iter::once(&self.layout).chain(self.lower.iter().map(|level| &level.layout))
    }

    /// Bytes of so many pages of originals or tails, in all layers.
    pub(crate) fn of_originals(&self, pages: usize) -> usize {
        Arena::padded_bytes(pages * self.layers, self.original_bytes)
    }

    /// Bytes of so many packed pages, in all layers.
    pub(crate) fn of_packed(&self, pages: usize) -> usize {
        Arena::padded_bytes(pages * self.layers, self.page_bytes)
    }

    /// Bytes of pages at the levels behind the first, by what `pages` says of each level and its size.
    pub(crate) fn of_lower(&self, pages: impl Fn(usize, &LevelSizes) -> usize) -> usize {
        let levels = self.lower.iter().enumerate();
        levels.map(|(at, level)| level.bytes(pages(at, level) * self.layers)).fold(0, usize::saturating_add)
    }

    /// Bytes of so many sides in scratch.
    pub(crate) fn of_sides(&self, sides: usize) -> usize {
        Arena::padded_bytes(sides, self.layout.original_side_bytes())
    }

    /// Words and lists about pages and slots.
    fn books(&self) -> usize {
        let of = |pages, slots| PageAllocator::bytes(pages).saturating_add(Arena::book_bytes(slots));
        let books = [
            of(self.host_pages, self.host_slots()),
            of(self.packed_pages, self.packed_pages * self.layers),
            of(self.tail_pages, self.tail_pages * self.layers),
            of(self.swap_pages, self.swap_pages * self.layers),
            self.map_bytes(),
        ];
        let lower = self.lower.iter().map(|level| of(level.pages, level.pages * self.layers));
        books.into_iter().chain(lower).fold(0, usize::saturating_add)
    }
}

impl Sizes {
    /// # Errors
    /// Names the field that is out of range.
    pub(crate) fn new(config: &Config) -> Result<Self, Error> {
        let shapes = config.groups()?;
        let mut groups: Vec<GroupSizes> = Vec::with_capacity(shapes.len());
        for shape in shapes {
            let before = groups.last().map_or(0, |last| last.before + last.layers * last.heads.len());
            groups.push(GroupSizes::new(config, shape, before)?);
        }
        let prefix_bytes = match &config.prefixes {
            Some(prefixes) => {
                let shape = |g: &GroupSizes| (g.layout.tokens(), g.host_pages, g.max_blocks);
                Prefixes::bytes(prefixes, config.prefix_events, &groups.iter().map(shape).collect::<Vec<_>>())?
            }
            None => 0,
        };
        let units = config.prefixes.as_ref().map_or(0, |prefixes| prefixes.units);
        let centres = 4 * config.geometry.layers * config.geometry.kv_width();
        let record = groups.iter().map(|group| Records::buffer_bytes(group.original_bytes)).max().unwrap_or(0);
        Ok(Self {
            groups,
            sequences: config.max_sequences,
            prefix_bytes: prefix_bytes.saturating_add(MoveEvents::bytes(config.move_events)),
            buffer_bytes: config.spill.as_ref().map_or(0, |spill| spill.in_flight.saturating_mul(record)),
            later: units.saturating_mul(centres),
        })
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
            add(Class::Packed, group.of_lower(|_, level| level.pages));
            add(Class::Scratch, group.of_originals(group.tail_pages));
            add(Class::Host, group.of_frames(group.host_slots()));
            add(Class::Host, group.of_packed(group.swap_pages));
            add(Class::Tables, group.books());
            let (sides, books) = group.scratch.as_ref().map_or((0, 0), Scratch::bytes);
            add(Class::Scratch, sides);
            add(Class::Tables, books);
        }
        add(Class::Tables, self.sequences.saturating_mul(self.sequence_bytes()));
        add(Class::Tables, self.prefix_bytes);
        add(Class::Host, self.buffer_bytes);
        classes
    }
}

/// Sides of one kind that a group's scratch holds or has room for.
pub(crate) const SIDES: [Side; 2] = [Side::Key, Side::Value];
