//! The page word: all that must change together about one page, in one atomic.
//!
//! ```text
//! 63            32 31      24   23    22        0
//! [  generation  ] [ state ] [moving] [  pins   ]
//! ```
//!
//! Every transition names the generation it is meant for and is one compare-and-swap; giving up a page that nobody holds is
//! two transitions, Retire and Free, in one. One is a store: a free page opens under the lock of the free list, and nothing
//! else may happen to it. What is allowed is decided by the pure function [`step`] and by nothing else.
use crate::sync::atomic::{AtomicU64, Ordering};
use core::fmt;

/// Most pins one page can carry.
pub const MAX_PINS: u32 = (1 << 23) - 1;
/// Generation of a slot that was never used. 0 is never valid, so a zeroed id is always stale.
pub const FIRST_GENERATION: u32 = 1;

/// Where a page is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// In the free list; nobody may touch it.
    Free = 0,
    /// One owner adds rows. Readers may pin it: they read only rows written before.
    Open = 1,
    /// Its contents are being made final (codes are written, the last row arrives). No new pins.
    Closing = 2,
    /// Contents are final: they never change while the page has this state and generation. May be shared.
    Packed = 3,
    /// The last reference is gone; waiting for its fence and for its pins.
    Retiring = 4,
    /// The slot has used up its generations and is never handed out again.
    Worn = 5,
}

/// A transition of the page word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Free -> Open.
    Open,
    /// Open -> Closing.
    CloseBegin,
    /// Closing -> Packed.
    CloseCommit,
    /// Closing -> Open: the packing failed, the rows are as before.
    CloseAbort,
    /// Packed -> Open under a new generation: a sequence was cut inside this block and goes on writing into it.
    Reopen,
    /// One more reader.
    Pin,
    /// One reader less.
    Unpin,
    /// Sets the moving bit: the mover alone may touch the contents, until `MoveEnd`.
    MoveBegin,
    /// Clears the moving bit.
    MoveEnd,
    /// Open or Packed -> Retiring.
    Retire,
    /// Retiring -> Free under the next generation, or -> Worn when there is none.
    Free,
}

/// Why a transition was refused. Checked in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Not allowed in this state.
    State,
    /// A mover has the page for itself.
    Moving,
    /// `MoveEnd` without a move.
    NotMoving,
    /// Readers hold pins.
    Pinned,
    /// `Unpin` without a pin.
    NotPinned,
    /// The page already carries [`MAX_PINS`] pins.
    PinOverflow,
    /// The slot has no further generation.
    GenerationsSpent,
}

/// All fields of a page word at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snapshot {
    /// Moves on whenever the contents stop being what an id promised: at free and at reopen.
    pub generation: u32,
    /// Where the page is in its life.
    pub state: State,
    /// A mover has the page for itself.
    pub moving: bool,
    /// Number of readers.
    pub pins: u32,
}

/// A transition that the table does not allow. Nothing changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// What was asked.
    pub operation: Operation,
    /// Why not.
    pub reason: Reason,
    /// State found.
    pub state: State,
    /// Moving bit found.
    pub moving: bool,
    /// Pins found.
    pub pins: u32,
}

/// A transition that did not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WordError {
    /// The caller's generation is not the page's: the id outlived its page.
    Stale {
        /// Generation the caller named.
        asked: u32,
        /// Generation of the slot now.
        found: u32,
    },
    /// The generation is right and the transition is not allowed.
    Refused(Refused),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, reason, state, moving, pins } = self;
        write!(f, "{operation:?} refused ({reason:?}): page is {state:?} with {pins} pins")?;
        f.write_str(if *moving { ", moving" } else { "" })
    }
}

impl fmt::Display for WordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale { asked, found } => write!(f, "stale page: generation {asked}, the slot is at {found}"),
            Self::Refused(refused) => refused.fmt(f),
        }
    }
}
impl std::error::Error for Refused {}
impl std::error::Error for WordError {}

/// What `operation` makes of a page, or why it is refused: the state table itself (docs/states.md).
pub fn step(operation: Operation, page: Snapshot) -> Result<Snapshot, Reason> {
    use {Operation as Op, State as S};
    let Snapshot { generation, state, moving, pins } = page;
    let to = |state| Ok(Snapshot { state, ..page });
    match (operation, state) {
        (Op::Open, S::Free) => to(S::Open),
        // Readers of the rows written so far may stay: closing does not change those rows.
        (Op::CloseBegin, S::Open) => to(S::Closing),
        (Op::CloseCommit, S::Closing) => to(S::Packed),
        (Op::CloseAbort, S::Closing) => to(S::Open),

        (Op::Reopen, S::Packed) if moving => Err(Reason::Moving),
        (Op::Reopen, S::Packed) if pins > 0 => Err(Reason::Pinned),
        (Op::Reopen, S::Packed) if generation == u32::MAX => Err(Reason::GenerationsSpent),
        // A new generation: whatever was cached under the old id can no longer be found under the new contents.
        (Op::Reopen, S::Packed) => Ok(Snapshot { generation: generation + 1, state: S::Open, moving, pins }),

        (Op::Pin, S::Open | S::Packed) if moving => Err(Reason::Moving),
        (Op::Pin, S::Open | S::Packed) if pins >= MAX_PINS => Err(Reason::PinOverflow),
        (Op::Pin, S::Open | S::Packed) => Ok(Snapshot { pins: pins + 1, ..page }),
        (Op::Unpin, S::Open | S::Closing | S::Packed | S::Retiring) if pins == 0 => Err(Reason::NotPinned),
        (Op::Unpin, S::Open | S::Closing | S::Packed | S::Retiring) => Ok(Snapshot { pins: pins - 1, ..page }),

        (Op::MoveBegin, S::Packed) if moving => Err(Reason::Moving),
        (Op::MoveBegin, S::Packed) if pins > 0 => Err(Reason::Pinned),
        (Op::MoveBegin, S::Packed) => Ok(Snapshot { moving: true, ..page }),
        (Op::MoveEnd, S::Packed | S::Retiring) if !moving => Err(Reason::NotMoving),
        (Op::MoveEnd, S::Packed | S::Retiring) => Ok(Snapshot { moving: false, ..page }),

        // Readers and a mover may still be at work; they hold up `Free`, not the loss of the last reference.
        (Op::Retire, S::Open | S::Packed) => to(S::Retiring),
        (Op::Free, S::Retiring) if moving => Err(Reason::Moving),
        (Op::Free, S::Retiring) if pins > 0 => Err(Reason::Pinned),
        (Op::Free, S::Retiring) if generation == u32::MAX => to(S::Worn),
        (Op::Free, S::Retiring) => Ok(Snapshot { generation: generation + 1, state: S::Free, moving, pins }),
        _ => Err(Reason::State),
    }
}

const GENERATION_SHIFT: u32 = 32;
const STATE_SHIFT: u32 = 24;
const MOVING_BIT: u64 = 1 << 23;

impl Snapshot {
    const fn pack(self) -> u64 {
        (self.generation as u64) << GENERATION_SHIFT
            | (self.state as u64) << STATE_SHIFT
            | if self.moving { MOVING_BIT } else { 0 }
            | self.pins as u64
    }

    const fn unpack(bits: u64) -> Self {
        let state = match (bits >> STATE_SHIFT) as u8 {
            0 => State::Free,
            1 => State::Open,
            2 => State::Closing,
            3 => State::Packed,
            4 => State::Retiring,
            // `pack` writes only the six codes; an impossible one reads as the state that refuses everything.
            _ => State::Worn,
        };
        let pins = (bits & (MOVING_BIT - 1)) as u32;
        Self { generation: (bits >> GENERATION_SHIFT) as u32, state, moving: bits & MOVING_BIT != 0, pins }
    }
}

/// The word of one slot.
#[derive(Debug)]
pub struct PageWord(AtomicU64);

impl PageWord {
    /// A free slot at `generation`.
    pub fn free_at(generation: u32) -> Self {
        Self(AtomicU64::new(Snapshot { generation, state: State::Free, moving: false, pins: 0 }.pack()))
    }

    /// The word as it is now; it may change right after.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::unpack(self.0.load(Ordering::Acquire))
    }

    /// Makes `operation` happen on the page of `generation`, as one compare-and-swap.
    ///
    /// # Errors
    /// [`WordError`], and nothing changed. A lost race is not an error: the operation is judged again on the new word.
    pub fn apply(&self, operation: Operation, generation: u32) -> Result<Snapshot, WordError> {
        self.change(generation, operation, |now| step(operation, now))
    }

    /// The generation as it is now.
    #[inline]
    pub(crate) fn generation(&self) -> u32 {
        (self.0.load(Ordering::Acquire) >> GENERATION_SHIFT) as u32
    }

    /// [`Operation::Retire`], and [`Operation::Free`] at once if nobody holds the page: one compare-and-swap for both. A page that is
    /// free again takes the short way, on bits; a test compares it with [`step`].
    ///
    /// # Errors
    /// As [`PageWord::apply`] for the retirement.
    #[inline]
    pub(crate) fn retire_or_free(&self, generation: u32) -> Result<State, WordError> {
        let seen = self.0.load(Ordering::Acquire);
        let low = seen as u32;
        // Neither moved nor pinned.
        let idle = low == (State::Open as u32) << STATE_SHIFT || low == (State::Packed as u32) << STATE_SHIFT;
        if idle && (seen >> GENERATION_SHIFT) as u32 == generation && generation != u32::MAX {
            // Free is 0, and so is all else beside the generation.
            let next = u64::from(generation + 1) << GENERATION_SHIFT;
            if self.0.compare_exchange(seen, next, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return Ok(State::Free);
            }
        }
        let left = self.change(generation, Operation::Retire, |now| {
            let retiring = step(Operation::Retire, now)?;
            Ok(step(Operation::Free, retiring).unwrap_or(retiring))
        })?;
        Ok(left.state)
    }

    /// [`Operation::Open`] on whatever generation a free slot has, which is returned, by whoever holds the lock of the free list: no other
    /// operation is allowed on a free page, and what is refused writes nothing, so that a store will do. `None`: not free.
    #[inline]
    pub(crate) fn open_free(&self) -> Option<u32> {
        let seen = self.0.load(Ordering::Acquire);
        if seen as u32 != (State::Free as u32) << STATE_SHIFT {
            return None;
        }
        self.0.store(seen | (State::Open as u64) << STATE_SHIFT, Ordering::Release);
        Some((seen >> GENERATION_SHIFT) as u32)
    }

    fn change(
        &self,
        generation: u32,
        operation: Operation,
        step: impl Fn(Snapshot) -> Result<Snapshot, Reason>,
    ) -> Result<Snapshot, WordError> {
        let mut seen = self.0.load(Ordering::Acquire);
        loop {
            let now = Snapshot::unpack(seen);
            if now.generation != generation {
                return Err(WordError::Stale { asked: generation, found: now.generation });
            }
            let next = step(now).map_err(|reason| {
                let Snapshot { state, moving, pins, .. } = now;
                WordError::Refused(Refused { operation, reason, state, moving, pins })
            })?;
            // AcqRel: what a holder did before letting go is seen by whoever takes the page next.
            match self.0.compare_exchange_weak(seen, next.pack(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(next),
                Err(actual) => seen = actual,
            }
        }
    }

    /// The planted defect of the loom tests: a load and a store where `apply` has one compare-and-swap.
    #[cfg(test)]
    #[cfg_attr(not(loom), expect(dead_code, reason = "only loom explores the window"))]
    pub(crate) fn apply_torn(&self, operation: Operation, generation: u32) -> Result<Snapshot, Reason> {
        let now = self.snapshot();
        let next =
            step(operation, now).and_then(|n| if now.generation == generation { Ok(n) } else { Err(Reason::State) })?;
        self.0.store(next.pack(), Ordering::Release);
        Ok(next)
    }

    /// Overwrites the word: for planted defects only.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn force(&self, page: Snapshot) {
        self.0.store(page.pack(), Ordering::Release);
    }
}
