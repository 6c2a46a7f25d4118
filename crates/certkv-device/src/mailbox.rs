//! A ring of entries in memory that a device writes while the host reads: what it published last, without waiting for it.
//!
//! Words are 8 bytes. Word 0 counts the entries so far; entry `n` lies in slot `n % slots`, behind two marks. A writer sets the first mark
//! to `n + 1` before it writes any word of entry `n`, and the second after the last one, with a fence between each two of these. A reader
//! that finds `n + 1` in the second mark before and in the first one after has read entry `n` and nothing of a later one. Of several
//! writers of an entry each sets the first mark before its own words. The device's side is `kernels/publish.cu`.
use certkv_core::sync::atomic::{Ordering, fence};
use core::fmt;

/// Words that others write, 8 bytes at once.
pub trait Words {
    /// Word `at`, which the layout of the ring says is there.
    fn load(&self, at: usize, order: Ordering) -> u64;
}

/// How a ring is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    slots: usize,
    words: usize,
}

/// Why an entry was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missed {
    /// It is not published yet.
    NotYet,
    /// A later one has taken its slot.
    Overwritten,
}

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotYet => "the entry is not published yet",
            Self::Overwritten => "the entry was overwritten by a later one",
        })
    }
}
impl core::error::Error for Missed {}

impl Slots {
    /// Words before the first slot.
    pub const HEAD: usize = 8;
    /// Words of a slot before its entry.
    pub const MARKS: usize = 2;

    /// `slots` slots for entries of at most `words` words. Slots are whole multiples of 32 bytes. `None` where there is no slot, or more
    /// than the address space holds.
    pub fn new(slots: usize, words: usize) -> Option<Self> {
        let words = words.checked_add(Self::MARKS)?.checked_next_multiple_of(4)?;
        let all = words.checked_mul(slots)?.checked_add(Self::HEAD)?;
        (slots > 0 && all.checked_mul(8).is_some()).then_some(Self { slots, words })
    }

    /// Entries that it holds.
    pub fn count(&self) -> usize {
        self.slots
    }

    /// Words from a slot to the next.
    pub fn stride(&self) -> usize {
        self.words
    }

    /// Words in all.
    #[allow(clippy::len_without_is_empty, reason = "a ring is never empty")]
    pub fn len(&self) -> usize {
        Self::HEAD + self.slots * self.words
    }

    /// Entries published so far.
    pub fn published(memory: &impl Words) -> u64 {
        memory.load(0, Ordering::Acquire)
    }

    /// Copies an entry into `into`: its first `head` words, then as many in all as `length` makes of those, and not more than there can be.
    ///
    /// Cost: the words once; no lock, no wait.
    ///
    /// # Errors
    /// [`Missed`]; `into` then holds nothing of use.
    pub fn read(
        &self,
        memory: &impl Words,
        entry: u64,
        into: &mut Vec<u64>,
        head: usize,
        length: impl Fn(&[u64]) -> usize,
    ) -> Result<(), Missed> {
        let slot = Self::HEAD + (entry % self.slots as u64) as usize * self.words;
        let mark = entry.wrapping_add(1);
        let last = memory.load(slot + 1, Ordering::Acquire);
        if last != mark {
            return Err(if last < mark { Missed::NotYet } else { Missed::Overwritten });
        }
        let most = self.words - Self::MARKS;
        let copy = |into: &mut Vec<u64>, end: usize| {
            let from = into.len();
            into.extend((from..end.min(most)).map(|at| memory.load(slot + Self::MARKS + at, Ordering::Relaxed)));
        };
        into.clear();
        copy(into, head);
        let end = length(into);
        copy(into, end);
        fence(Ordering::Acquire);
        if memory.load(slot, Ordering::Relaxed) == mark { Ok(()) } else { Err(Missed::Overwritten) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;

    impl Words for Vec<AtomicU64> {
        fn load(&self, at: usize, order: Ordering) -> u64 {
            self[at].load(order)
        }
    }

    fn publish(slots: &Slots, memory: &[AtomicU64], entry: u64, words: &[u64]) {
        let slot = Slots::HEAD + (entry % slots.count() as u64) as usize * slots.stride();
        memory[slot].store(entry + 1, Ordering::Relaxed);
        for (at, word) in words.iter().enumerate() {
            memory[slot + Slots::MARKS + at].store(*word, Ordering::Relaxed);
        }
        memory[slot + 1].store(entry + 1, Ordering::Release);
        memory[0].store(entry + 1, Ordering::Release);
    }

    #[test]
    fn entries_are_read_until_their_slot_is_taken() {
        let slots = Slots::new(3, 4).unwrap();
        assert_eq!((slots.stride(), slots.len()), (8, 8 + 24));
        let memory: Vec<AtomicU64> = (0..slots.len()).map(|_| AtomicU64::new(0)).collect();
        let mut into = vec![9];
        let read = |entry, into: &mut Vec<u64>| slots.read(&memory, entry, into, 1, |head| head[0] as usize);
        assert_eq!(read(0, &mut into), Err(Missed::NotYet));
        for entry in 0..7 {
            publish(&slots, &memory, entry, &[3, 10 * entry, entry, 77]);
            assert_eq!(Slots::published(&memory), entry + 1);
            for old in 0..9 {
                let want = match old {
                    _ if old > entry => Err(Missed::NotYet),
                    _ if old + 3 <= entry => Err(Missed::Overwritten),
                    _ => Ok(()),
                };
                assert_eq!(read(old, &mut into), want, "{old} after {entry}");
                if want.is_ok() {
                    assert_eq!(into, [3, 10 * old, old]);
                }
            }
        }
        // A length beyond the slot is cut, and a torn entry is seen by its first mark.
        publish(&slots, &memory, 7, &[1000, 1, 2, 3]);
        assert_eq!(read(7, &mut into), Ok(()));
        assert_eq!(into.len(), slots.stride() - Slots::MARKS);
        memory[Slots::HEAD + slots.stride()].store(11, Ordering::Relaxed);
        assert_eq!(read(7, &mut into), Err(Missed::Overwritten));
    }

    #[test]
    fn rings_that_cannot_be_are_refused() {
        assert_eq!(Slots::new(0, 4), None);
        assert_eq!(Slots::new(usize::MAX / 8, 4), None);
        assert_eq!(Slots::new(2, usize::MAX - 1), None);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    struct Memory(Vec<AtomicU64>);
    impl Words for Memory {
        fn load(&self, at: usize, order: Ordering) -> u64 {
            self.0[at].load(order)
        }
    }

    /// One slot, written twice, one word an entry and writer; two writers share an entry as CTAs do.
    fn story(marked: bool) {
        loom::model(move || {
            let slots = Slots::new(1, 2).unwrap();
            let memory = Arc::new(Memory((0..slots.len()).map(|_| AtomicU64::new(0)).collect()));
            let words = Arc::clone(&memory);
            let device = thread::spawn(move || {
                let slot = Slots::HEAD;
                for entry in 0..2u64 {
                    for at in 0..2 {
                        if marked {
                            words.0[slot].store(entry + 1, Ordering::Relaxed);
                            fence(Ordering::Release);
                        }
                        words.0[slot + Slots::MARKS + at].store(entry + 1, Ordering::Relaxed);
                    }
                    if !marked {
                        words.0[slot].store(entry + 1, Ordering::Relaxed);
                    }
                    fence(Ordering::Release);
                    words.0[slot + 1].store(entry + 1, Ordering::Relaxed);
                }
            });
            let mut into = Vec::new();
            if slots.read(&*memory, 0, &mut into, 2, |_| 2).is_ok() {
                assert_eq!(into, [1, 1], "an entry and nothing of the next");
            }
            device.join().unwrap();
            assert_eq!(slots.read(&*memory, 1, &mut into, 2, |_| 2), Ok(()));
            assert_eq!(into, [2, 2]);
        });
    }

    #[test]
    fn loom_a_reader_never_sees_half_of_the_next_entry() {
        story(true);
    }

    #[test]
    #[should_panic(expected = "nothing of the next")]
    fn loom_a_mark_behind_the_words_is_found() {
        story(false);
    }
}
