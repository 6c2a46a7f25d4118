//! Pages that are in use, looked at: whether they are what was written, and what memory holds that nobody holds.
use crate::argument;
use crate::cache::{self, certkv_cache};
use crate::guard::{Failure, guard};
use crate::sequence::{self, CERTKV_NO_SEQUENCE, certkv_sequence};
use crate::status::certkv_status::{self, CERTKV_INVALID_ARGUMENT};
use certkv::{Damage, Fault, Scrub};
use core::mem::offset_of;

/// What is wrong with a page.
pub type certkv_fault = i32;
/// Codes are not those that were sealed, and its originals do not give these: what is read of it is wrong, and no bound covers that.
pub const CERTKV_FAULT_CODES: certkv_fault = 1;
/// Codes are those that were sealed, and its originals give others: what is read exactly of it is wrong.
pub const CERTKV_FAULT_ORIGINALS: certkv_fault = 2;

/// A page that is not what was sealed, and could not be mended.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct certkv_damage {
    /// The sequence that has the block, or one of them; CERTKV_NO_SEQUENCE for a cached prefix that no sequence holds.
    pub sequence: certkv_sequence,
    /// Layer of the model.
    pub layer: u32,
    /// The first of the page's KV heads.
    pub kv_head: u32,
    /// Block of the sequence.
    pub block: u32,
    /// One of the CERTKV_FAULT values.
    pub fault: certkv_fault,
}

impl From<&Damage> for certkv_damage {
    fn from(damage: &Damage) -> Self {
        Self {
            sequence: damage.sequence.map_or(CERTKV_NO_SEQUENCE, sequence::number),
            layer: damage.layer as u32,
            kv_head: damage.kv_head as u32,
            block: damage.block as u32,
            fault: match damage.fault {
                Fault::Codes(_) => CERTKV_FAULT_CODES,
                Fault::Originals => CERTKV_FAULT_ORIGINALS,
            },
        }
    }
}

/// What certkv_cache_scrub found.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct certkv_scrubbed {
    /// sizeof(certkv_scrubbed), set by the caller; nothing is written beyond it.
    pub struct_size: u32,
    /// 1 if the last page that there is was looked at: the next call begins anew. 0 otherwise.
    pub complete: u32,
    /// Pages that were compared, each of one layer.
    pub pages: u64,
    /// Those of them that were not what was sealed, and are again.
    pub mended: u64,
    /// Those that could not be mended, whether `damages` had room for them or not.
    pub damaged: u64,
    /// Sequences that were passed over: a step holds them.
    pub busy: u64,
}

/// Compares the next pages of codes with their seals, `pages` of them at least as blocks are looked at whole, those of sequences on the device and
/// swapped out and those of cached prefixes, and codes those again from their originals that are not what was sealed: what is mended has the bits that it had. On a GPU pages have no
/// seals while they lie there: the first call that looks at one remembers its digest, later ones compare it, and what differs is mended if coding it again
/// gives what was seen first; the first of all takes 16 bytes of host memory a page and layer. With 1 for
/// `originals` (0 otherwise) originals in host memory are compared too, which costs what coding costs. Calls go on where the last one ended, each page once a round. A server
/// calls it between steps to find out of memory that somebody else wrote to, or that rotted. The first `n_damages` pages that could not be mended are
/// described; `*scrubbed`, whose `struct_size` must be set, is filled.
///
/// Threads: any, at any time; other calls on the cache wait until it is done, half a clock for each byte of codes. Sequences that a step holds are passed over.
/// Stream: on a GPU the cache's own; blocks until its work is done.
/// Capture: not allowed.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, OVERLAP, INVALID_ARGUMENT (an array beyond memory, another number for `originals`), INVALID_HANDLE, BUDGET (the digests'), OUT_OF_MEMORY,
/// DEVICE, POISONED; on a GPU BUSY_STEP while a step is open. What was mended by then is; `damages` and `*scrubbed` are unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_cache_scrub(
    cache: *mut certkv_cache,
    pages: u64,
    originals: u32,
    damages: *mut certkv_damage,
    n_damages: u64,
    scrubbed: *mut certkv_scrubbed,
) -> certkv_status {
    guard(|| {
        let room = argument::array(damages, n_damages, "damages")?;
        // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes.
        let size = unsafe { argument::struct_size(scrubbed, "scrubbed", offset_of!(certkv_scrubbed, damaged) + 8)? };
        argument::disjoint((damages, room, "damages"), (scrubbed, 1, "scrubbed"))?;
        if originals > 1 {
            let why = format!("originals = {originals}: must be 0 or 1");
            return Err(Failure::new(CERTKV_INVALID_ARGUMENT, why));
        }
        let how = Scrub { pages: usize::try_from(pages).unwrap_or(usize::MAX), originals: originals == 1 };
        let found = cache::with(cache, |held| held.engine.on(|on| on.scrub(how), |on| on.scrub(how)))?;
        for (at, damage) in found.damaged.iter().take(room).enumerate() {
            // SAFETY: `at` is below `room`, elements that the caller has.
            unsafe { damages.add(at).write(damage.into()) };
        }
        let filled = certkv_scrubbed {
            struct_size: size as u32,
            complete: found.complete.into(),
            pages: found.pages as u64,
            mended: found.mended as u64,
            damaged: found.damaged.len() as u64,
            busy: found.busy as u64,
        };
        // SAFETY: the struct has `size` bytes, by the caller's promise, and so has `filled`.
        unsafe { argument::write_prefix(scrubbed, &filled, size) };
        Ok(())
    })
}

/// Counts the bytes that are not zero in memory that nobody holds: in free pages of all kinds, and free scratch. With `config->erase` that is 0, but for what was given up and is
/// still read. Reads all of it: for audits and tests.
///
/// Threads: any, at any time; other calls on the cache wait until it is done.
/// Stream: on a GPU the cache's own; blocks until its work is done.
/// Capture: not allowed.
/// Errors: NULL_POINTER, MISALIGNED, INVALID_HANDLE, DEVICE, OUT_OF_MEMORY, POISONED; on a GPU BUSY_STEP while a step is open. `*bytes` is unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_cache_residue(cache: *mut certkv_cache, bytes: *mut u64) -> certkv_status {
    guard(|| {
        argument::aligned(bytes, "bytes")?;
        let left = cache::with(cache, |held| held.engine.on(|on| on.residue(), |on| on.residue()))?;
        // SAFETY: not NULL and aligned; the caller's promise that it may be written.
        unsafe { bytes.write(left as u64) };
        Ok(())
    })
}
