//! Queues of slots, linked by index: one set of links, several queues.
use certkv_core::{OutOfMemory, try_filled};

const NIL: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Link {
    older: u32,
    younger: u32,
}

/// The neighbours of every slot. A slot is in at most one queue.
#[derive(Debug)]
pub(super) struct Links(Vec<Link>);

impl Links {
    pub(super) fn create(slots: usize) -> Result<Self, OutOfMemory> {
        Ok(Self(try_filled(slots, Link { older: NIL, younger: NIL })?))
    }

    pub(super) const fn bytes(slots: usize) -> usize {
        slots.saturating_mul(size_of::<Link>())
    }

    fn at(&mut self, slot: u32) -> &mut Link {
        let at = slot as usize;
        if at >= self.0.len() {
            self.0.resize(at + 1, Link { older: NIL, younger: NIL });
        }
        &mut self.0[at]
    }
}

/// A queue: the oldest goes first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Queue {
    oldest: u32,
    youngest: u32,
    pub(super) len: usize,
}

impl Queue {
    pub(super) const EMPTY: Self = Self { oldest: NIL, youngest: NIL, len: 0 };

    /// Puts a slot that is in no queue behind all others.
    pub(super) fn push(&mut self, links: &mut Links, slot: u32) {
        *links.at(slot) = Link { older: self.youngest, younger: NIL };
        match self.youngest {
            NIL => self.oldest = slot,
            youngest => links.at(youngest).younger = slot,
        }
        self.youngest = slot;
        self.len += 1;
    }

    /// Takes a slot of this queue out.
    pub(super) fn unlink(&mut self, links: &mut Links, slot: u32) {
        let Link { older, younger } = *links.at(slot);
        match older {
            NIL => self.oldest = younger,
            older => links.at(older).younger = younger,
        }
        match younger {
            NIL => self.youngest = older,
            younger => links.at(younger).older = older,
        }
        self.len -= 1;
    }

    pub(super) fn pop(&mut self, links: &mut Links) -> Option<u32> {
        let slot = self.oldest;
        if slot == NIL {
            return None;
        }
        self.unlink(links, slot);
        Some(slot)
    }
}
