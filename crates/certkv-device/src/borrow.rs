//! The borrow word of a slot: any number of readers or one writer, as a `RefCell` across threads.
use crate::error::Held;
use certkv_core::sync::atomic::{AtomicU32, Ordering};

const WRITER: u32 = 1 << 31;

/// Reader count, or the writer bit. Taking is one compare-exchange, giving back one subtraction.
#[derive(Debug)]
pub(crate) struct BorrowWord(AtomicU32);

impl BorrowWord {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Acquire pairs with the Release of the writer that left: its bytes are visible to this reader.
    pub(crate) fn try_read(&self) -> Result<(), Held> {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            if seen & WRITER != 0 {
                return Err(Held::Writer);
            }
            if seen == WRITER - 1 {
                return Err(Held::Readers(seen));
            }
            match self.0.compare_exchange_weak(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => seen = now,
            }
        }
    }

    /// Acquire pairs with the Release of the readers and the writer that left.
    pub(crate) fn try_write(&self) -> Result<(), Held> {
        match self.0.compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(WRITER) => Err(Held::Writer),
            Err(readers) => Err(Held::Readers(readers)),
        }
    }

    pub(crate) fn end_read(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    pub(crate) fn end_write(&self) {
        self.0.store(0, Ordering::Release);
    }

    pub(crate) fn held(&self) -> Option<Held> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            WRITER => Some(Held::Writer),
            n => Some(Held::Readers(n)),
        }
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn readers_share_and_writers_do_not() {
        let word = BorrowWord::new();
        word.try_read().unwrap();
        word.try_read().unwrap();
        assert_eq!((word.try_write(), word.held()), (Err(Held::Readers(2)), Some(Held::Readers(2))));
        word.end_read();
        word.end_read();
        word.try_write().unwrap();
        assert_eq!((word.try_read(), word.try_write()), (Err(Held::Writer), Err(Held::Writer)));
        word.end_write();
        assert_eq!(word.held(), None);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::{cell::UnsafeCell, sync::Arc, thread};

    struct Slot {
        word: BorrowWord,
        bytes: UnsafeCell<u64>,
    }
    // SAFETY: `bytes` is touched only while `word` grants it; loom's cell reports it if that were not enough.
    unsafe impl Sync for Slot {}

    /// Two writers and a reader: loom's cell panics on any access that the word failed to order.
    #[test]
    fn the_word_alone_orders_the_bytes() {
        loom::model(|| {
            let slot = Arc::new(Slot { word: BorrowWord::new(), bytes: UnsafeCell::new(0) });
            let writers: Vec<_> = (0..2)
                .map(|_| {
                    let slot = slot.clone();
                    thread::spawn(move || {
                        if slot.word.try_write().is_ok() {
                            // SAFETY: the write borrow is held.
                            slot.bytes.with_mut(|p| unsafe { *p += 1 });
                            slot.word.end_write();
                        }
                    })
                })
                .collect();
            if slot.word.try_read().is_ok() {
                // SAFETY: a read borrow is held.
                assert!(slot.bytes.with(|p| unsafe { *p }) <= 2);
                slot.word.end_read();
            }
            for writer in writers {
                writer.join().unwrap();
            }
            assert_eq!(slot.word.held(), None);
        });
    }

    /// The model can fail: a word that releases with Relaxed is caught.
    #[test]
    #[should_panic]
    fn control_a_relaxed_release_is_caught() {
        loom::model(|| {
            let slot = Arc::new(Slot { word: BorrowWord::new(), bytes: UnsafeCell::new(0) });
            let other = slot.clone();
            let writer = thread::spawn(move || {
                if other.word.try_write().is_ok() {
                    // SAFETY: the write borrow is held.
                    other.bytes.with_mut(|p| unsafe { *p += 1 });
                    other.word.0.store(0, Ordering::Relaxed);
                }
            });
            if slot.word.try_read().is_ok() {
                // SAFETY: a read borrow is held; the planted release is what loom reports here.
                slot.bytes.with(|p| unsafe { *p });
                slot.word.end_read();
            }
            writer.join().unwrap();
        });
    }
}
