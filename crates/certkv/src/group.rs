//! A KV group: consecutive layers that share block tables and a format, with the memory behind their pages.
//!
//! A page id is valid in every layer of the group: page `p` of layer `l` is arena slot `p * layers + (l - first)`. So a
//! block is allocated once for all layers, and a slot is locked by one layer at a time.
use crate::sequence::SequenceState;
use crate::{Config, Error};
use certkv_core::{Class, Geometry, Ledger, PageId, RecordLayout};
use certkv_device::{Arena, SimDevice};
use certkv_kernel::Kernel;
use certkv_page::{PageAllocator, Pools};
use certkv_tier::{Scratch, ScratchConfig};
use core::ops::Range;

/// Bytes in front of the records of a packed page: its seal.
pub(crate) const SEAL_BYTES: usize = 64;

pub use certkv_tier::Side;

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) first: usize,
    pub(crate) layers: usize,
    pub(crate) kv_heads: usize,
    pub(crate) layout: RecordLayout,
    pub(crate) kernel: Kernel,
    pub(crate) pools: Pools,
    pub(crate) packed: Arena,
    pub(crate) host: Arena,
    pub(crate) tail: Arena,
    /// Promoted sides; `None` where the configuration has no room for any.
    pub(crate) scratch: Option<Scratch>,
    pub(crate) max_blocks: usize,
}

/// Pages of each class that a configuration needs in a group of block size `block`: host, packed, tail.
fn capacities(config: &Config, block: usize) -> (usize, usize, usize) {
    let full = config.max_tokens.div_ceil(block);
    // An open block has originals too; a tail is retired only after its successor was taken.
    (full + config.max_sequences, full, 2 * config.max_sequences)
}

/// The group's share of the scratch slots: each layer has as many as any other, to within one of the total.
fn scratch(
    config: &Config,
    layers: Range<usize>,
    side_bytes: usize,
    device: &SimDevice,
    ledger: &Ledger,
) -> Result<Option<Scratch>, Error> {
    let share = |slots: usize| {
        let up_to = |layer: usize| slots * layer / config.geometry.layers;
        (up_to(layers.end) - up_to(layers.start)) as u32
    };
    let slots = ScratchConfig {
        key_slots: share(config.scratch_keys),
        value_slots: share(config.scratch_values),
        slot_bytes: side_bytes,
    };
    let sides = slots.key_slots as usize + slots.value_slots as usize;
    let bytes = sides.saturating_mul(side_bytes.next_multiple_of(64));
    if bytes == 0 {
        return Ok(None);
    }
    ledger.reserve(Class::Scratch, bytes)?;
    let scratch = Scratch::new(device, slots)?;
    ledger.reserve(Class::Tables, scratch.reserved_bytes().saturating_sub(bytes))?;
    Ok(Some(scratch))
}

impl Group {
    /// Reserves the group's bytes in the ledger and takes its memory.
    pub(crate) fn new(
        config: &Config,
        (first, layers, layout): (usize, usize, RecordLayout),
        device: &SimDevice,
        ledger: &Ledger,
    ) -> Result<Self, Error> {
        let geometry: &Geometry = &config.geometry;
        let (host, packed, tail) = capacities(config, layout.tokens());
        let page_bytes = SEAL_BYTES + geometry.kv_heads * layout.bytes;
        let original_bytes = geometry.kv_heads * 2 * layout.original_side_bytes();
        let max_blocks = config.max_tokens.div_ceil(layout.tokens()) + 1;
        let too_large = || Error::Config { field: "max_tokens", why: "more slots than a 32-bit index can name".into() };
        let slots = |pages: usize| u32::try_from(pages * layers).map_err(|_| too_large());
        let arena = |name, pages: usize, bytes: usize, class: Class| -> Result<Arena, Error> {
            let slots = slots(pages)?;
            let total = (slots as usize).checked_mul(bytes.next_multiple_of(64)).ok_or_else(too_large)?;
            ledger.reserve(class, total)?;
            Ok(device.arena(name, slots, bytes)?)
        };
        let packed_arena = arena("packed", packed, page_bytes, Class::Packed)?;
        let tail_arena = arena("tail", tail, original_bytes, Class::Scratch)?;
        let host_arena = arena("host", host, original_bytes, Class::Host)?;
        let scratch = scratch(config, first..first + layers, layout.original_side_bytes(), device, ledger)?;
        ledger
            .reserve(Class::Tables, config.max_sequences * SequenceState::most_bytes(geometry, layers, max_blocks))?;
        Ok(Self {
            first,
            layers,
            kv_heads: geometry.kv_heads,
            kernel: Kernel::new(geometry, &layout, certkv_kernel::Arch::detect())?,
            layout,
            pools: Pools {
                host: PageAllocator::create(host)?,
                packed: PageAllocator::create(packed)?,
                tail: PageAllocator::create(tail)?,
            },
            packed: packed_arena,
            host: host_arena,
            tail: tail_arena,
            scratch,
            max_blocks,
        })
    }

    /// Arena slot of `page` in `layer`.
    #[inline]
    pub(crate) fn slot(&self, page: PageId, layer: usize) -> u32 {
        page.index * self.layers as u32 + (layer - self.first) as u32
    }

    /// Identity of a slot's owner, for the content check: never 0.
    pub(crate) fn tag(page: PageId) -> u64 {
        (u64::from(page.generation) << 32 | u64::from(page.index)).wrapping_add(1)
    }

    /// Words of one side of one KV head in a host or tail slot: `[B][d]`, keys before values, heads side by side.
    #[inline]
    pub(crate) fn side(&self, head: usize, side: Side) -> Range<usize> {
        let words = self.layout.count();
        let start = (2 * head + usize::from(side == Side::Value)) * words;
        start..start + words
    }

    /// Bytes of the record of one KV head in a packed slot.
    #[inline]
    pub(crate) fn record(&self, head: usize) -> Range<usize> {
        let start = SEAL_BYTES + head * self.layout.bytes;
        start..start + self.layout.bytes
    }

    /// Bytes of scratch that hold promoted sides, or are about to.
    pub(crate) fn scratch_bytes(&self) -> usize {
        let used = |scratch: &Scratch, side| {
            let census = scratch.census(side);
            (census.filling + census.valid + census.retiring) as usize
        };
        let sides = self.scratch.as_ref().map_or(0, |s| used(s, Side::Key) + used(s, Side::Value));
        sides * self.layout.original_side_bytes().next_multiple_of(64)
    }

    /// True if `layer` belongs to the group.
    pub(crate) fn holds(&self, layer: usize) -> bool {
        (self.first..self.first + self.layers).contains(&layer)
    }
}
