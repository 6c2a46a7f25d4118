//! Events of blocks that move.
use crate::argument;
use crate::cache::{self, certkv_cache};
use crate::events::certkv_events_read;
use crate::guard::{Failure, guard};
use crate::sequence::{self, CERTKV_NO_SEQUENCE, certkv_sequence};
use crate::status::certkv_status::{self, CERTKV_INVALID_ARGUMENT, CERTKV_UNSUPPORTED};
use certkv::{MoveEvent, MoveKind};
use core::mem::offset_of;

/// Where a block went.
pub type certkv_move_kind = i32;
/// Its codes left the device's memory with their sequence: certkv_sequence_swap_out.
pub const CERTKV_MOVE_SWAPPED_OUT: certkv_move_kind = 1;
/// Its codes are back: certkv_sequence_swap_in.
pub const CERTKV_MOVE_SWAPPED_IN: certkv_move_kind = 2;
/// Its originals are in `config->spill_store`, too, in one layer: they leave host memory when others need the room.
pub const CERTKV_MOVE_SPILLED: certkv_move_kind = 3;
/// Its originals are back in host memory, in one layer, for a step that reads them.
pub const CERTKV_MOVE_FETCHED: certkv_move_kind = 4;

/// In `certkv_move_event.block`: not known.
pub const CERTKV_NO_BLOCK: u32 = u32::MAX;

/// A block that has moved, in one layer or in a run of layers that share pages.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct certkv_move_event {
    /// 0 for the first event of a cache; each is one more than the one before.
    pub number: u64,
    /// One of the CERTKV_MOVE values.
    pub kind: certkv_move_kind,
    /// The first layer.
    pub layer: u32,
    /// How many layers from it on.
    pub layers: u32,
    /// Which block of the sequence; CERTKV_NO_BLOCK where `sequence` is CERTKV_NO_SEQUENCE.
    pub block: u32,
    /// Whose it is; CERTKV_NO_SEQUENCE where that is not known: what is spilled is a page, which forks and cached prefixes may share.
    pub sequence: certkv_sequence,
    /// What the page of its originals is called, for as long as it is this block's: with `layer`, what was spilled is what is fetched.
    pub page: u64,
    /// Bytes that moved.
    pub bytes: u64,
}

impl From<&MoveEvent> for certkv_move_event {
    fn from(event: &MoveEvent) -> Self {
        Self {
            number: event.number,
            kind: match event.kind {
                MoveKind::SwappedOut => CERTKV_MOVE_SWAPPED_OUT,
                MoveKind::SwappedIn => CERTKV_MOVE_SWAPPED_IN,
                MoveKind::Spilled => CERTKV_MOVE_SPILLED,
                MoveKind::Fetched => CERTKV_MOVE_FETCHED,
            },
            layer: event.layer,
            layers: event.layers,
            block: event.block.unwrap_or(CERTKV_NO_BLOCK),
            sequence: event.sequence.map_or(CERTKV_NO_SEQUENCE, sequence::number),
            page: event.page,
            bytes: event.bytes,
        }
    }
}

/// Events that are copied under the lock at once.
const AT_ONCE: usize = 64;

/// Copies events of blocks that moved from number `from` on, or from the oldest that is left, to `events`, as many as there are and have room, and
/// fills `*read`, whose `struct_size` must be set; `read->unit_tokens` is 0. With 0 `n_events` nothing is copied, and `*read` says what there is. Reading
/// removes nothing: any number of readers ask for any number. The cache keeps the latest `config->move_events` events.
///
/// Threads: any, at any time; waits for nobody but other readers and who adds an event.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, OVERLAP, INVALID_ARGUMENT (an array beyond memory, or `from` beyond the next event: it is of another
/// cache), INVALID_HANDLE, UNSUPPORTED (the cache keeps no moves), POISONED. Nothing changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_cache_moves(
    cache: *const certkv_cache,
    from: u64,
    events: *mut certkv_move_event,
    n_events: u64,
    read: *mut certkv_events_read,
) -> certkv_status {
    guard(|| {
        let room = argument::array(events, n_events, "events")?;
        // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes.
        let size = unsafe { argument::struct_size(read, "read", offset_of!(certkv_events_read, newest) + 8)? };
        argument::disjoint((events, room, "events"), (read, 1, "read"))?;
        cache::with(cache, |held| {
            let none = || Failure::new(CERTKV_UNSUPPORTED, "the cache keeps no moves (config->move_events)");
            let log = held.moves.as_ref().ok_or_else(none)?;
            let invalid = |e: certkv::NotYet| Failure::new(CERTKV_INVALID_ARGUMENT, format!("from: {e}"));
            let mut some = [MoveEvent::default(); AT_ONCE];
            let said = log.read(from, &mut some[..room.min(AT_ONCE)]).map_err(invalid)?;
            let (mut done, mut part) = (0, said);
            loop {
                for (i, event) in some[..part.read].iter().enumerate() {
                    // SAFETY: `done + i` is below `room`, as what is read is cut to what is left of it.
                    unsafe { events.add(done + i).write(event.into()) };
                }
                done += part.read;
                if done == room || part.next == part.newest {
                    break;
                }
                let more = log.read(part.next, &mut some[..(room - done).min(AT_ONCE)]).map_err(invalid)?;
                // What follows was overwritten meanwhile: the next call says so.
                if more.lost > 0 {
                    break;
                }
                part = more;
            }
            let filled = certkv_events_read {
                struct_size: size as u32,
                unit_tokens: 0,
                read: done as u64,
                lost: said.lost,
                next: part.next,
                newest: part.newest,
            };
            // SAFETY: the struct has `size` bytes, by the caller's promise, and so has `filled`.
            unsafe { argument::write_prefix(read, &filled, size) };
            Ok(())
        })
    })
}
