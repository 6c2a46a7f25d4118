//! The page classes of one KV group, and references on their way out.
use crate::alloc::PageAllocator;
use crate::error::PageError;
use crate::stamp::Stamp;
use certkv_core::PageId;
use core::fmt;
use std::sync::Arc;

/// What a page of a block is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PageClass {
    /// 16-bit originals in host memory (Tier-2), from the block's first token on.
    Host,
    /// Codes, scales and error summaries (Tier-1), once the block is full.
    Packed,
    /// 16-bit rows in device scratch (Tier-0), while the block is open.
    Tail,
    /// Codes in host memory, of any level, while the sequence is swapped out.
    Swap,
    /// As `Packed`, in another format: of this level, from 1 on ([`Pools::levels`]).
    Level(u8),
}

/// Most levels that blocks of one table can have, the first included.
pub const MOST_LEVELS: usize = 8;

const LEVEL_NAMES: [&str; MOST_LEVELS] =
    ["packed", "level 1", "level 2", "level 3", "level 4", "level 5", "level 6", "level 7"];

impl PageClass {
    /// The class of codes at `level`: the first is [`PageClass::Packed`].
    pub const fn of_level(level: u8) -> Self {
        if level == 0 { Self::Packed } else { Self::Level(level) }
    }

    /// The level of a class of codes on the device; `None` of any other.
    pub const fn level(self) -> Option<u8> {
        match self {
            Self::Packed => Some(0),
            Self::Level(level) => Some(level),
            Self::Host | Self::Tail | Self::Swap => None,
        }
    }

    /// The class in one word, as errors name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Packed => "packed",
            Self::Tail => "tail",
            Self::Swap => "swap",
            Self::Level(level) if (level as usize) < MOST_LEVELS => LEVEL_NAMES[level as usize],
            Self::Level(_) => "level",
        }
    }
}

impl fmt::Display for PageClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A page and its class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageRef {
    /// Which allocator the id belongs to.
    pub class: PageClass,
    /// The page.
    pub id: PageId,
}

/// Rows `0..rows` to be copied from one page to another, in every layer of the group. The caller executes it on a
/// stream before anything reads or retires either page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyOp {
    /// Where the rows are.
    pub from: PageRef,
    /// Where they go.
    pub to: PageRef,
    /// How many rows, from row 0.
    pub rows: usize,
}

impl CopyOp {
    /// Level of the codes that it copies, to or from the device; `None` of a copy of rows.
    pub fn level(&self) -> Option<u8> {
        self.from.class.level().or(self.to.class.level())
    }
}

/// The allocators of one KV group.
#[derive(Debug, Clone)]
pub struct Pools {
    /// Pages of 16-bit originals.
    pub host: PageAllocator,
    /// Pages of packed records.
    pub packed: PageAllocator,
    /// Scratch slots of open blocks.
    pub tail: PageAllocator,
    /// Pages of records in host memory, of sequences that are swapped out.
    pub swap: PageAllocator,
    /// Pages of records at the levels behind the first, whose are `packed`: [`PageClass::Level`] from 1 on. Mostly none.
    pub levels: Arc<[PageAllocator]>,
}

impl Pools {
    /// The allocator of a class. A level that there is not has the pages of the first, which know no page of it.
    pub fn of(&self, class: PageClass) -> &PageAllocator {
        match class {
            PageClass::Host => &self.host,
            PageClass::Packed => &self.packed,
            PageClass::Tail => &self.tail,
            PageClass::Swap => &self.swap,
            PageClass::Level(level) => {
                usize::from(level).checked_sub(1).and_then(|at| self.levels.get(at)).unwrap_or(&self.packed)
            }
        }
    }

    /// How many levels full blocks can have, the first included.
    pub fn level_count(&self) -> u8 {
        1 + self.levels.len().min(MOST_LEVELS - 1) as u8
    }

    /// The classes that there are, those of levels last.
    pub fn classes(&self) -> impl Iterator<Item = PageClass> + use<> {
        CLASSES.into_iter().chain((1..self.level_count()).map(PageClass::Level))
    }

    /// [`PageAllocator::reclaim`] on each; returns how many pages became free.
    pub fn reclaim(&self, passed: &mut dyn FnMut(Stamp) -> bool) -> usize {
        self.classes().map(|class| self.of(class).reclaim(passed)).sum()
    }

    /// [`PageAllocator::erase`] on each; returns how many pages were erased.
    pub fn erase(&self, wipe: &mut dyn FnMut(PageClass, &[PageId]) -> bool) -> usize {
        self.classes().map(|class| self.of(class).erase(&mut |ids| wipe(class, ids))).sum()
    }

    /// Gives up one reference and, if it was the last, retires the page behind `stamp`. For pages whose only owner is
    /// the caller; shared ones go through [`Dropped`], which takes the stamp after the release.
    pub(crate) fn give_up(&self, page: PageRef, stamp: Stamp) -> Result<(), PageError> {
        let pages = self.of(page.class);
        if stamp == Stamp::UNTOUCHED {
            return pages.give_back(page.id).map(drop);
        }
        if pages.release(page.id)?.last { pages.retire(page.id, stamp) } else { Ok(()) }
    }
}

const CLASSES: [PageClass; 4] = [PageClass::Host, PageClass::Packed, PageClass::Tail, PageClass::Swap];

/// Dropping a block or two, as a decode step does, needs no heap.
const INLINE: usize = 6;

/// References that a table no longer needs and still holds, so that the pages outlive the copies just ordered.
///
/// Enqueue what still uses the pages, then call [`retire`](Self::retire). Left to drop, the pages are retired behind
/// [`Stamp::IDLE`]: nothing leaks, but they come back only when the device is idle.
#[derive(Debug)]
#[must_use = "the pages wait for the stamp of the work that may still use them"]
pub struct Dropped {
    pools: Pools,
    inline: [Option<PageRef>; INLINE],
    more: Vec<PageRef>,
    /// The references are gone; what is still listed waits for its stamp only.
    released: bool,
}

impl Dropped {
    pub(crate) fn new(pools: &Pools) -> Self {
        Self { pools: pools.clone(), inline: [None; INLINE], more: Vec::new(), released: false }
    }

    /// Room for `n` pages, so that `push` cannot fail.
    pub(crate) fn with_room(pools: &Pools, n: usize) -> Option<Self> {
        let mut dropped = Self::new(pools);
        dropped.more.try_reserve_exact(n.saturating_sub(INLINE)).ok()?;
        Some(dropped)
    }

    /// Room for `n` more pages, if the host has the memory.
    pub(crate) fn grow(&mut self, n: usize) {
        let _ = self.more.try_reserve(n);
    }

    /// Adds a page. Without room it is given up behind [`Stamp::IDLE`], which is always safe.
    pub(crate) fn push(&mut self, class: PageClass, id: PageId) {
        let page = PageRef { class, id };
        if let Some(place) = self.inline.iter_mut().find(|place| place.is_none()) {
            *place = Some(page);
        } else if self.more.len() < self.more.capacity() {
            self.more.push(page);
        } else {
            let _ = self.pools.give_up(page, Stamp::IDLE);
        }
    }

    /// The pages, shared or not.
    pub fn pages(&self) -> impl Iterator<Item = PageRef> + '_ {
        self.inline.iter().flatten().chain(&self.more).copied()
    }

    /// Gives the references up, takes the stamp, and retires behind it the pages that lost their last reference.
    /// Returns how many those are; `record` is called only if there are any.
    ///
    /// The order is the point: another owner may have used a shared page until its own release, so a stamp taken before
    /// ours is gone might not cover that use. `record` must return a stamp that follows everything enqueued so far.
    ///
    /// # Errors
    /// The first refusal. It means that the references were tampered with; all other pages are retired all the same.
    pub fn retire(mut self, record: impl FnOnce() -> Stamp) -> Result<usize, PageError> {
        self.let_go(record)
    }

    fn let_go(&mut self, record: impl FnOnce() -> Stamp) -> Result<usize, PageError> {
        let mut refused = None;
        // Not again when `record` panicked the first time: the pages left are the last owner's.
        if !core::mem::replace(&mut self.released, true) {
            let Self { pools, inline, more, .. } = self;
            for class in pools.classes() {
                let mut pages = pools.of(class).letting_go();
                let mut keeps = |page: PageRef| {
                    page.class != class
                        || pages.release(page.id).unwrap_or_else(|error| {
                            refused.get_or_insert(error);
                            false
                        })
                };
                for place in inline.iter_mut() {
                    *place = place.filter(|page| keeps(*page));
                }
                more.retain(|page| keeps(*page));
            }
        }
        let count = self.pages().count();
        if count > 0 {
            let stamp = record();
            for class in self.pools.classes() {
                let mut pages = self.pools.of(class).letting_go();
                for page in self.pages().filter(|page| page.class == class) {
                    if let Err(error) = pages.retire(page.id, stamp) {
                        refused.get_or_insert(error);
                    }
                }
            }
        }
        self.inline = [None; INLINE];
        self.more.clear();
        refused.map_or(Ok(count), Err)
    }
}

impl Drop for Dropped {
    fn drop(&mut self) {
        // A refusal means tampering, which `PageAllocator::check` reports; a drop has nobody to tell.
        let _ = self.let_go(|| Stamp::IDLE);
    }
}
