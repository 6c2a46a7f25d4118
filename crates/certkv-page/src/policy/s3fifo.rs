//! Three first-in-first-out queues: scan-resistant.
use super::EvictionPolicy;
use super::list::{Links, Queue};
use certkv_core::budget::hash_table_bytes;
use certkv_core::{OutOfMemory, try_filled};
use std::collections::{HashMap, VecDeque};

/// Uses that are counted; more make no difference.
const MOST_USES: u8 = 3;

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    key: u64,
    uses: u8,
    main: bool,
}

/// S3-FIFO (Yang et al., SOSP 2023): new entries wait in a small queue, a tenth of all. Who is used there moves to the main
/// queue; who is not goes first, and only its key is remembered for a while: if it comes back it was no stray, and enters
/// the main queue at once. There, a use is another turn. So prompts that come once pass through the small queue and leave
/// the rest alone.
#[derive(Debug)]
pub struct S3Fifo {
    links: Links,
    small: Queue,
    main: Queue,
    entries: Vec<Entry>,
    /// Most entries of the small queue while there are others.
    small_share: usize,
    ghosts: Ghosts,
}

impl S3Fifo {
    /// For an index of `entries` entries.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn create(entries: usize) -> Result<Self, OutOfMemory> {
        Ok(Self {
            links: Links::create(entries)?,
            small: Queue::EMPTY,
            main: Queue::EMPTY,
            entries: try_filled(entries, Entry::default())?,
            small_share: (entries / 10).max(1),
            ghosts: Ghosts::create(entries)?,
        })
    }

    /// Host bytes for an index of `entries` entries: for the ledger.
    pub const fn bytes(entries: usize) -> usize {
        let ghosts = entries.saturating_add(1).saturating_mul(size_of::<(u64, u64)>());
        Links::bytes(entries)
            .saturating_add(entries.saturating_mul(size_of::<Entry>()))
            .saturating_add(ghosts)
            .saturating_add(hash_table_bytes::<(u64, u64)>(entries.saturating_add(1)))
    }

    fn entry(&mut self, slot: u32) -> &mut Entry {
        let at = slot as usize;
        if at >= self.entries.len() {
            self.entries.resize(at + 1, Entry::default());
        }
        &mut self.entries[at]
    }

    fn push(&mut self, slot: u32, main: bool) {
        self.entry(slot).main = main;
        let queue = if main { &mut self.main } else { &mut self.small };
        queue.push(&mut self.links, slot);
    }
}

impl EvictionPolicy for S3Fifo {
    fn insert(&mut self, slot: u32, key: u64) {
        *self.entry(slot) = Entry { key, ..Entry::default() };
        let known = self.ghosts.take(key);
        self.push(slot, known);
    }

    fn touch(&mut self, slot: u32) {
        let entry = self.entry(slot);
        entry.uses = (entry.uses + 1).min(MOST_USES);
    }

    fn remove(&mut self, slot: u32) {
        let main = self.entry(slot).main;
        let queue = if main { &mut self.main } else { &mut self.small };
        queue.unlink(&mut self.links, slot);
    }

    fn victim(&mut self, idle: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        // Entries of the main queue that may not go: when those are all, the small queue is asked, however short it is. What it
        // holds may be all that follows them.
        let mut vain = 0;
        // An entry moves up once and has at most `MOST_USES` turns; once more with a round in vain before, and all are in use.
        for _ in 0..(4 + 2 * usize::from(MOST_USES)) * self.len() {
            let main_first = self.small.len < self.small_share && vain <= self.main.len;
            let from_main = main_first && self.main.len > 0 || self.small.len == 0;
            let queue = if from_main { &mut self.main } else { &mut self.small };
            let slot = queue.pop(&mut self.links)?;
            let entry = self.entry(slot);
            let another_turn = entry.uses > 0;
            entry.uses = entry.uses.saturating_sub(1);
            if another_turn {
                self.push(slot, true);
            } else if idle(slot) {
                let key = self.entry(slot).key;
                if !from_main {
                    self.ghosts.push(key);
                }
                return Some(slot);
            } else {
                // In use, or others build on it: that is a use.
                vain += usize::from(from_main);
                self.push(slot, true);
            }
        }
        None
    }

    fn len(&self) -> usize {
        self.small.len + self.main.len
    }
}

/// Keys of entries that left the small queue lately.
#[derive(Debug)]
struct Ghosts {
    /// Oldest first, with the number under which each was remembered.
    order: VecDeque<(u64, u64)>,
    /// A key that came back, or was remembered again later, has another number than its older places in the order.
    known: HashMap<u64, u64>,
    next: u64,
    most: usize,
}

impl Ghosts {
    fn create(most: usize) -> Result<Self, OutOfMemory> {
        let (mut order, mut known) = (VecDeque::new(), HashMap::new());
        let none = |_| OutOfMemory { bytes: S3Fifo::bytes(most) };
        order.try_reserve_exact(most.saturating_add(1)).map_err(none)?;
        known.try_reserve(most.saturating_add(1)).map_err(none)?;
        Ok(Self { order, known, next: 0, most })
    }

    fn push(&mut self, key: u64) {
        self.next += 1;
        self.known.insert(key, self.next);
        self.order.push_back((key, self.next));
        if self.order.len() > self.most
            && let Some((oldest, number)) = self.order.pop_front()
            && self.known.get(&oldest) == Some(&number)
        {
            self.known.remove(&oldest);
        }
    }

    fn take(&mut self, key: u64) -> bool {
        self.known.remove(&key).is_some()
    }
}
