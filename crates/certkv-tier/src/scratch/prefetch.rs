//! Filling: reserve under the lock, copy without it, publish under it again.
use crate::error::{MoveCause, MoveError};
use crate::lane::Lane;
use crate::scratch::pool::Pool;
use crate::scratch::slots::Reserved;
use crate::scratch::{Item, Scratch};
use crate::side::Side;
use certkv_core::{OutOfMemory, planted, reserve_total, span};
use certkv_device::{Arena, DeviceError, Dst, Fence, Src, Stream};
use core::mem::take;

/// A slot reserved for an item.
#[derive(Debug, Clone, Copy)]
struct Planned {
    item: usize,
    slot: u32,
    enqueued: bool,
}

/// What one `prefetch` plans: slots by side, the streams to wait for, and what it could not do.
#[derive(Debug, Default)]
pub(crate) struct Work {
    planned: [Vec<Planned>; 2],
    readers: Vec<Stream>,
    not_moved: Vec<(usize, MoveCause)>,
}

/// How a batch of sides is brought in.
#[derive(Debug, Clone, Copy)]
pub struct Offer<'a> {
    /// Copies.
    pub lane: &'a Lane,
    /// Arena of the originals.
    pub from: &'a Arena,
    /// The lane copies after what this stream was given so far.
    pub after: Option<&'a Stream>,
    /// Batches, the present one included, whose sides are not evicted, and neither is what was looked up since the first of
    /// them. At least 1. As many as there are between two uses of a side keep a cache that is too small from evicting
    /// everything just before it is needed.
    pub spared: u64,
}

impl Scratch {
    /// Brings sides in from `from`. A side that is there, or on its way, is left alone. The lane copies only after every
    /// stream that read an evicted slot has finished the work it was given so far.
    ///
    /// The originals must be ordered before the lane ([`Lane::wait`]) and stay where they are until the fence has passed.
    /// On checked devices no guard of a reading stream may be alive.
    ///
    /// # Errors
    /// [`MoveError`] names what did not move, with the cause; the other items are on their way behind its fence.
    pub fn prefetch(&self, lane: &Lane, from: &Arena, items: &[Item]) -> Result<Fence, MoveError> {
        self.with_work(|work| {
            let how = Offer { lane, from, after: None, spared: 1 };
            let mut fence = self.prefetch_in(work, how, items);
            if matches!(fence, Ok(None)) && work.not_moved.is_empty() {
                fence = lane.finish().map(Some);
            }
            match fence {
                Ok(Some(fence)) if work.not_moved.is_empty() => Ok(fence),
                Ok(fence) => Err(MoveError { not_moved: work.not_moved.clone(), fence }),
                Err(error) if work.not_moved.is_empty() => Err(MoveError::all(items.len(), MoveCause::Device(error))),
                Err(_) => Err(MoveError { not_moved: work.not_moved.clone(), fence: None }),
            }
        })
    }

    /// As [`Scratch::prefetch`] for a caller to whom it does not matter which of the sides move: those that do not are
    /// read from their originals as before. Allocates nothing once it has seen a batch of this size.
    ///
    /// Whoever changes or reuses an original afterwards waits for [`Lane::last_fence`].
    pub fn offer(&self, how: Offer<'_>, items: &[Item]) {
        // The lane keeps the fence, the statistics count the failures.
        self.with_work(|work| drop(self.prefetch_in(work, how, items)));
    }

    fn with_work<T>(&self, run: impl FnOnce(&mut Work) -> T) -> T {
        // A prefetch that runs beside another works in an area of its own.
        let mut work = take(&mut *self.work.lock());
        let result = run(&mut work);
        work.planned.iter_mut().for_each(Vec::clear);
        work.readers.clear();
        work.not_moved.clear();
        *self.work.lock() = work;
        result
    }

    /// The fence behind what was enqueued, if anything was; `not_moved` lists what was not, in order.
    fn prefetch_in(&self, work: &mut Work, how: Offer<'_>, items: &[Item]) -> Result<Option<Fence>, DeviceError> {
        let span = span!("fill", sides = (items.len()), moved = _, refused = _);
        let Work { planned, readers, not_moved } = work;
        // An item is named once among those that did not move, and planned once at most.
        let none = |OutOfMemory { bytes }| DeviceError::OutOfMemory { name: "moves to scratch", bytes };
        reserve_total(not_moved, items.len()).map_err(none)?;
        for planned in &mut *planned {
            reserve_total(planned, items.len()).map_err(none)?;
        }
        let sides = [(Side::Key, self.pool(Side::Key)), (Side::Value, self.pool(Side::Value))];
        for ((side, pool), planned) in sides.iter().zip(planned.iter_mut()) {
            if let Err(error) = fill(pool, how, items, *side, planned, readers, not_moved) {
                not_moved.extend(planned.drain(..).map(|p| (p.item, MoveCause::Device(error))));
            }
        }
        let under_way = planned.iter().flatten().any(|p| p.enqueued);
        let fence = if under_way { how.lane.finish().map(Some) } else { Ok(None) };
        for ((_, pool), planned) in sides.iter().zip(planned.iter()) {
            let mut slots = pool.lock();
            for p in planned {
                match &fence {
                    Ok(Some(fence)) if p.enqueued => slots.filling(p.slot, fence),
                    Ok(_) => slots.give_back(p.slot),
                    Err(error) => {
                        // What was enqueued has run, its outcome unseen: it counts as not moved.
                        slots.give_back(p.slot);
                        if p.enqueued {
                            not_moved.push((p.item, MoveCause::Device(*error)));
                        }
                    }
                }
            }
        }
        not_moved.sort_unstable_by_key(|&(item, _)| item);
        span.record("moved", planned.iter().flatten().filter(|p| p.enqueued && fence.is_ok()).count() as u64);
        span.record("refused", not_moved.len() as u64);
        fence
    }
}

/// Reserves slots for the items of one side and enqueues their copies.
///
/// On an error no copy was enqueued and nothing is reserved; `planned` names the items concerned.
fn fill(
    pool: &Pool,
    how: Offer<'_>,
    items: &[Item],
    side: Side,
    planned: &mut Vec<Planned>,
    readers: &mut Vec<Stream>,
    not_moved: &mut Vec<(usize, MoveCause)>,
) -> Result<(), DeviceError> {
    let Offer { lane, from, after, spared } = how;
    let mask = reserve(pool, items, side, spared, planned, not_moved);
    let Some(arena) = pool.arena() else { return Ok(()) };
    readers.clear();
    if mask != 0 {
        let read = |i: usize, s: &Stream| mask >> i & 1 == 1 && s.index() != lane.index();
        readers.extend(pool.lock().readers.iter().enumerate().filter(|&(i, s)| read(i, s)).map(|(_, s)| s.clone()));
    }
    if let Some(after) = after
        && !planned.is_empty()
        && readers.iter().all(|s| s.index() != after.index())
    {
        readers.push(after.clone());
    }
    if planted!(B2) {
        readers.clear();
    }
    let ordered = readers.iter().try_for_each(|stream| lane.wait(&stream.record()?));
    if let Err(error) = ordered {
        let mut slots = pool.lock();
        planned.iter().for_each(|p| slots.give_back(p.slot));
        return Err(error);
    }
    for p in planned {
        let item = &items[p.item];
        let src = Src { arena: from, slot: item.slot, range: item.range.clone(), expect: item.tag };
        match lane.copy(src, Dst { arena, slot: p.slot, offset: 0 }) {
            Ok(()) => p.enqueued = true,
            Err(error) => not_moved.push((p.item, MoveCause::Device(error))),
        }
    }
    Ok(())
}

/// Under the lock: a slot for every item that needs one. Returns the set of streams that read those slots.
fn reserve(
    pool: &Pool,
    items: &[Item],
    side: Side,
    spared: u64,
    planned: &mut Vec<Planned>,
    not_moved: &mut Vec<(usize, MoveCause)>,
) -> u64 {
    let size = pool.arena().map_or(0, |arena| arena.slot_bytes());
    let mut slots = pool.lock();
    slots.begin_batch(items.iter().map(|item| &item.key).filter(|key| key.side == side), pool.pins());
    let (mut readers, mut full) = (0, false);
    for (i, item) in items.iter().enumerate().filter(|(_, item)| item.key.side == side) {
        if pool.arena().is_some() && item.range.len() != size {
            not_moved.push((i, MoveCause::WrongSize { given: item.range.len(), slot: size }));
            continue;
        }
        match slots.reserve(item.key, item.tag, pool.pins(), spared, full) {
            Reserved::Present => {}
            Reserved::Slot(slot, mask) => {
                readers |= mask;
                planned.push(Planned { item: i, slot, enqueued: false });
            }
            Reserved::Full => {
                full = true;
                slots.stats.refused += 1;
                not_moved.push((i, MoveCause::Full));
            }
        }
    }
    readers
}
