//! A cache in numbers.
use crate::argument;
use crate::cache::{self, certkv_cache};
use crate::guard::guard;
use crate::status::certkv_status;
use certkv::{Class, ClassUse, Counts, Moves, Pool, PoolUse, PrefixUse, ScratchUse, Snapshot};
use core::mem::offset_of;

/// Bytes of one class.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct certkv_class_use {
    /// Of pages, slots and sequences in use. Of tables, what is reserved for every live sequence.
    pub used: u64,
    /// Reserved.
    pub reserved: u64,
    /// The most that was ever reserved.
    pub peak: u64,
}

/// Bytes of one memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct certkv_pool_use {
    /// Reserved.
    pub reserved: u64,
    /// The most that was ever reserved.
    pub peak: u64,
    /// The budget; UINT64_MAX for none.
    pub budget: u64,
}

/// Pages of one kind by where they are, over all groups of layers: a page has a slot in each layer of its group.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct certkv_page_use {
    /// Ready to be used.
    pub free: u64,
    /// In use.
    pub live: u64,
    /// Given up; something may still read them.
    pub retiring: u64,
    /// Never used again: 0 until one was freed 2^32 times.
    pub worn: u64,
}

/// Moves of one kind by what became of them. They begin with the cache and never go down.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct certkv_moves {
    /// Done.
    pub done: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Not begun, or given up: no room, or nothing that may be moved.
    pub refused: u64,
    /// The device, or the file, failed. What was to be moved is where it was.
    pub failed: u64,
}

/// A cache in numbers. Each is right at some moment of the call; two need not be of the same moment while other threads work.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct certkv_snapshot {
    /// sizeof(certkv_snapshot), set by the caller; nothing is written beyond it.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Live sequences.
    pub sequences: u64,
    /// Of these, in a step that has not ended or in another thread's call; their tokens are not counted.
    pub busy: u64,
    /// Tokens of the other sequences; shared blocks count for each.
    pub tokens: u64,
    /// Packed pages: codes, scales, summaries.
    pub packed: certkv_class_use,
    /// Open blocks and exact sides (16-bit, device). Bytes in use are on a GPU those of open blocks.
    pub scratch: certkv_class_use,
    /// Block tables and what else is held for sequences, prefixes and work.
    pub tables: certkv_class_use,
    /// 16-bit originals, and codes of sequences that are swapped out.
    pub host: certkv_class_use,
    /// Device memory: packed, scratch and tables.
    pub device_memory: certkv_pool_use,
    /// Host memory.
    pub host_memory: certkv_pool_use,
    /// Pages of codes.
    pub packed_pages: certkv_page_use,
    /// Pages of open blocks.
    pub open_pages: certkv_page_use,
    /// Pages of originals.
    pub host_pages: certkv_page_use,
    /// Pages of codes of sequences that are swapped out.
    pub swap_pages: certkv_page_use,
    /// Rows of one layer of one sequence to the host; on a GPU the blocks that a step has filled, in all layers, without rows that the host has itself.
    pub stores: certkv_moves,
    /// Open blocks of forks and cuts, copied.
    pub copies: certkv_moves,
    /// Sequences to files.
    pub saves: certkv_moves,
    /// Sequences from files.
    pub restores: certkv_moves,
    /// Sequences swapped out.
    pub swap_outs: certkv_moves,
    /// Sequences swapped in.
    pub swap_ins: certkv_moves,
    /// Units of prefixes cached, and the most that can be; these and the following are 0 without `config->prefix_units`.
    pub prefix_units: u64,
    /// See `prefix_units`.
    pub prefix_capacity: u64,
    /// Look-ups so far, by certkv_sequence_create_from.
    pub prefix_lookups: u64,
    /// Full units that they asked for.
    pub prefix_asked: u64,
    /// Units that they found.
    pub prefix_hits: u64,
    /// Units published so far.
    pub prefix_published: u64,
    /// Units evicted so far.
    pub prefix_evicted: u64,
    /// Originals of one block in one layer that are in host memory alone; these and the following are 0 without `config->spill_store`.
    pub originals_resident: u64,
    /// In host memory and in the store.
    pub originals_stored: u64,
    /// In the store alone.
    pub originals_spilled: u64,
    /// Room of host memory that nothing is in.
    pub originals_free: u64,
    /// Originals of one block in one layer to the store.
    pub spills: certkv_moves,
    /// What reads of originals lacked, from the store: each what one read brought.
    pub fetches: certkv_moves,
    /// Records deleted so far.
    pub records_deleted: u64,
    /// Deletes that failed; each is tried again.
    pub record_delete_failures: u64,
    /// Records that wait for their delete.
    pub records_doomed: u64,
    /// Records in the store, `used` being what is `reserved`.
    pub disk: certkv_class_use,
    /// The same, with `config->spill_budget`.
    pub disk_memory: certkv_pool_use,
    /// Outputs of decode steps, one per token, layer and query head: within their tolerance. These and the following are 0 on a GPU, up to `read_host`:
    /// its certificates come by certkv_ring_open.
    pub outputs_certified: u64,
    /// Computed from the originals.
    pub outputs_exact: u64,
    /// Of policies that claim nothing.
    pub outputs_uncertified: u64,
    /// Not given: all outputs of calls that ended with CERTKV_UNCERTIFIABLE.
    pub outputs_failed: u64,
    /// Given outputs by the rung on which they were made (certkv_certificate).
    pub outputs_by_rung: [u64; 5],
    /// Outputs of chunks of several tokens, which are exact.
    pub prompt_outputs: u64,
    /// Bytes that decode steps read, once for the query heads that share a KV head: of codes and summaries.
    pub read_packed: u64,
    /// Of exact sides in scratch.
    pub read_scratch: u64,
    /// Of originals in host memory, and of open blocks.
    pub read_host: u64,
    /// Exact key sides in scratch; 0 without, and on a GPU.
    pub scratch_keys: certkv_scratch_use,
    /// Exact value sides.
    pub scratch_values: certkv_scratch_use,
    /// Times that the host waited for the device.
    pub waits: u64,
    /// Nanoseconds of these.
    pub wait_nanoseconds: u64,
    /// Blocks coded anew at another level, each with the bytes of its page in one layer; 0 without `config->levels`.
    pub recodes: certkv_moves,
    /// Elements that a fixed scale could not reach, each where it was coded; 0 without `config->scales`, and on a GPU, where the device counts.
    pub saturated: u64,
}

/// Exact sides of one kind in scratch: slots now, and what happened since the cache was made.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct certkv_scratch_use {
    /// Slots that are free.
    pub empty: u64,
    /// Slots that hold a side, or are being filled with one.
    pub named: u64,
    /// Slots that wait for who still reads them.
    pub retiring: u64,
    /// Look-ups that found their side.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Those of the misses whose side was being filled.
    pub pending: u64,
    /// Sides that gave way to others.
    pub evicted: u64,
    /// Sides that went with their page.
    pub invalidated: u64,
    /// Copies that are done, as far as somebody looked.
    pub filled: u64,
    /// Copies that found no slot.
    pub refused: u64,
    /// Copies that failed.
    pub failed: u64,
    /// Bytes that were copied.
    pub filled_bytes: u64,
}

/// Fills `snapshot`, whose `struct_size` must be set, with the cache in numbers. Waits for nobody but the holders of short locks: neither
/// for a step on the host nor for the device. On a GPU while a step is open, the numbers are those when it began.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: not allowed.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, INVALID_HANDLE, POISONED. `snapshot` is unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_cache_snapshot(
    cache: *const certkv_cache,
    snapshot: *mut certkv_snapshot,
) -> certkv_status {
    guard(|| {
        // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes.
        let size = unsafe { argument::struct_size(snapshot, "snapshot", offset_of!(certkv_snapshot, sequences))? };
        let seen = cache::with(cache, |held| Ok(held.engine.snapshot()))?;
        let filled = certkv_snapshot { struct_size: size as u32, ..certkv_snapshot::from(&seen) };
        // SAFETY: the struct has `size` bytes, by the caller's promise, and so has `filled`.
        unsafe { argument::write_prefix(snapshot, &filled, size) };
        Ok(())
    })
}

impl From<&ClassUse> for certkv_class_use {
    fn from(seen: &ClassUse) -> Self {
        Self { used: seen.used as u64, reserved: seen.reserved as u64, peak: seen.peak as u64 }
    }
}

impl From<&PoolUse> for certkv_pool_use {
    fn from(seen: &PoolUse) -> Self {
        Self { reserved: seen.reserved as u64, peak: seen.peak as u64, budget: seen.budget as u64 }
    }
}

impl From<&Moves> for certkv_moves {
    fn from(seen: &Moves) -> Self {
        let Moves { done, refused, failed } = seen;
        Self { done: done.count(), bytes: done.sum, refused: *refused, failed: *failed }
    }
}

impl From<&ScratchUse> for certkv_scratch_use {
    fn from(seen: &ScratchUse) -> Self {
        let ScratchUse { slots, stats, filled_bytes, .. } = seen;
        Self {
            empty: slots.empty as u64,
            named: slots.named as u64,
            retiring: slots.retiring as u64,
            hits: stats.hits,
            misses: stats.misses,
            pending: stats.pending,
            evicted: stats.evictions,
            invalidated: stats.invalidated,
            filled: stats.filled,
            refused: stats.refused,
            failed: stats.failed,
            filled_bytes: *filled_bytes,
        }
    }
}

impl certkv_page_use {
    fn over(counts: impl Iterator<Item = Counts>) -> Self {
        counts.fold(Self::default(), |sum, of| Self {
            free: sum.free + of.free as u64,
            live: sum.live + of.live as u64,
            retiring: sum.retiring + of.retiring as u64,
            worn: sum.worn + of.worn as u64,
        })
    }
}

impl From<&Snapshot> for certkv_snapshot {
    fn from(seen: &Snapshot) -> Self {
        let class = |class| certkv_class_use::from(seen.class(class));
        let pool = |pool| certkv_pool_use::from(seen.pool(pool));
        let prefixes = seen.prefixes.unwrap_or(PrefixUse { units: 0, most: 0, stats: Default::default() });
        let spill = seen.spill.unwrap_or_default();
        let (outputs, read) = (seen.outputs.unwrap_or_default(), seen.read.unwrap_or_default());
        let [keys, values] = seen.scratch.as_ref().map(|sides| sides.each_ref().map(Into::into)).unwrap_or_default();
        Self {
            struct_size: 0,
            reserved: 0,
            sequences: seen.sequences as u64,
            busy: seen.busy as u64,
            tokens: seen.tokens as u64,
            packed: class(Class::Packed),
            scratch: class(Class::Scratch),
            tables: class(Class::Tables),
            host: class(Class::Host),
            device_memory: pool(Pool::Device),
            host_memory: pool(Pool::Host),
            packed_pages: certkv_page_use::over(seen.pages.iter().map(|group| group.packed)),
            open_pages: certkv_page_use::over(seen.pages.iter().map(|group| group.tail)),
            host_pages: certkv_page_use::over(seen.pages.iter().map(|group| group.host)),
            swap_pages: certkv_page_use::over(seen.pages.iter().map(|group| group.swap)),
            stores: seen.stores.as_ref().map(certkv_moves::from).unwrap_or_default(),
            copies: (&seen.copies).into(),
            saves: (&seen.saves).into(),
            restores: (&seen.restores).into(),
            swap_outs: (&seen.swap_outs).into(),
            swap_ins: (&seen.swap_ins).into(),
            prefix_units: prefixes.units as u64,
            prefix_capacity: prefixes.most as u64,
            prefix_lookups: prefixes.stats.lookups,
            prefix_asked: prefixes.stats.asked,
            prefix_hits: prefixes.stats.hits,
            prefix_published: prefixes.stats.published,
            prefix_evicted: prefixes.stats.evicted,
            originals_resident: spill.resident as u64,
            originals_stored: spill.stored as u64,
            originals_spilled: spill.spilled as u64,
            originals_free: spill.free as u64,
            spills: seen.spills.as_ref().map(certkv_moves::from).unwrap_or_default(),
            fetches: seen.fetches.as_ref().map(certkv_moves::from).unwrap_or_default(),
            records_deleted: spill.records.deleted,
            record_delete_failures: spill.records.delete_failures,
            records_doomed: spill.records.doomed as u64,
            disk: class(Class::Disk),
            disk_memory: pool(Pool::Disk),
            outputs_certified: outputs.certified,
            outputs_exact: outputs.exact,
            outputs_uncertified: outputs.uncertified,
            outputs_failed: outputs.failed,
            outputs_by_rung: outputs.by_rung,
            prompt_outputs: outputs.prompt,
            read_packed: read.packed,
            read_scratch: read.scratch,
            read_host: read.host,
            scratch_keys: keys,
            scratch_values: values,
            waits: seen.waits.count(),
            wait_nanoseconds: seen.waits.sum,
            recodes: seen.recodes.as_ref().map(certkv_moves::from).unwrap_or_default(),
            saturated: seen.saturated.unwrap_or(0),
        }
    }
}
