//! The table: head and token to width, page and row, and back.
use super::map::Stream;
use super::reserve::Spare;
use super::{StreamClass, StreamError, StreamRow};
use crate::stamp::Stamp;
use certkv_core::PageId;

/// Where a token is in its stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) slot: u32,
    pub(super) row: u32,
    pub(super) class: u16,
    /// Set while a list of moves is looked through.
    pub(super) marked: bool,
}

/// Pages and rows of one width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamCounts {
    /// Pages that the table holds.
    pub pages: usize,
    /// Rows in use.
    pub live: usize,
    /// Rows written and no longer used, in pages that are still held.
    pub dead: usize,
}

/// The tokens of one sequence in a group of mixed widths. See [`crate::streams`].
#[derive(Debug)]
pub struct StreamTable {
    pub(super) classes: Vec<StreamClass>,
    pub(super) heads: usize,
    pub(super) max_tokens: usize,
    pub(super) len: usize,
    pub(super) serial: u64,
    /// Moves on with every change, so that a reservation made before it is recognised.
    pub(super) version: u64,
    /// `[head][token]`.
    pub(super) places: Vec<Vec<Place>>,
    /// `[head][class]`.
    pub(super) streams: Vec<Stream>,
    pub(super) spare: Spare,
}

impl StreamTable {
    /// An empty table of `heads` heads for at most `max_tokens` tokens. The map of tokens is taken here; that of rows grows when a
    /// reservation needs more pages than there ever were.
    ///
    /// # Errors
    /// [`StreamError::BadShape`], [`StreamError::OutOfMemory`].
    pub fn create(classes: &[StreamClass], heads: usize, max_tokens: usize) -> Result<Self, StreamError> {
        let twice = |i: usize| {
            let (a, rest) = (&classes[i], &classes[i + 1..]);
            rest.iter().any(|b| a.bits == b.bits || a.pages.address() == b.pages.address())
        };
        let bad = classes.len() > usize::from(u16::MAX)
            || heads == 0
            || max_tokens >= u32::MAX as usize
            || heads.checked_mul(max_tokens).is_none()
            || classes.iter().any(|class| class.rows == 0 || class.rows >= u32::MAX as usize)
            || (0..classes.len()).any(twice);
        let Some(first) = classes.first().filter(|_| !bad) else {
            return Err(StreamError::BadShape { classes: classes.len(), heads, max_tokens });
        };
        let lacking = StreamError::OutOfMemory { what: "a table of streams" };
        let mut places = Vec::new();
        places.try_reserve_exact(heads).map_err(|_| lacking)?;
        for _ in 0..heads {
            let mut of_head = Vec::new();
            of_head.try_reserve_exact(max_tokens).map_err(|_| lacking)?;
            places.push(of_head);
        }
        let mut streams = Vec::new();
        streams.try_reserve_exact(heads * classes.len()).map_err(|_| lacking)?;
        streams.resize_with(heads * classes.len(), Stream::default);
        let serial = first.pages.next_serial();
        let spare = Spare::default();
        Ok(Self { classes: classes.to_vec(), heads, max_tokens, len: 0, serial, version: 0, places, streams, spare })
    }

    /// Host bytes of the map of tokens: for the ledger. The map of rows comes to 4 bytes a row of all pages held at once.
    pub const fn bytes(heads: usize, max_tokens: usize) -> usize {
        heads.saturating_mul(max_tokens).saturating_mul(size_of::<Place>())
    }

    /// Tokens committed.
    pub fn len(&self) -> usize {
        self.len
    }

    /// No tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// KV heads.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// The widths, by number.
    pub fn classes(&self) -> &[StreamClass] {
        &self.classes
    }

    /// Where a token of a head is; `None` for one that the table does not have.
    pub fn get(&self, head: usize, token: usize) -> Option<StreamRow> {
        let place = self.places.get(head)?.get(token)?;
        let class = usize::from(place.class);
        let page = self.stream(head, class).pages.get(place.slot as usize)?.as_ref()?;
        Some(StreamRow { class, page: page.id, row: place.row as usize })
    }

    /// The token of a head that is in a row; `None` for a row that is not in use. Costs a look at each page of the stream.
    pub fn token(&self, head: usize, row: StreamRow) -> Option<usize> {
        let class = self.classes.get(row.class).filter(|_| head < self.heads)?;
        let stream = self.stream(head, row.class);
        let (slot, _) = stream.used().find(|(_, page)| page.id == row.page)?;
        stream.token(slot, row.row, class.rows).map(|token| token as usize)
    }

    /// Pages of one head in one width with the tokens of their rows, `None` for dead ones: what a kernel reads, in no order of
    /// positions. Empty for a head or width that the table does not have.
    pub fn pages(
        &self,
        head: usize,
        class: usize,
    ) -> impl Iterator<Item = (PageId, impl Iterator<Item = Option<usize>> + '_)> + '_ {
        let known = self.classes.get(class).filter(|_| head < self.heads);
        known.into_iter().flat_map(move |of| {
            let stream = self.stream(head, class);
            stream.used().map(move |(slot, page)| {
                let rows = 0..page.rows as usize;
                (page.id, rows.map(move |row| stream.token(slot, row, of.rows).map(|token| token as usize)))
            })
        })
    }

    /// Pages and rows of a width, over all heads. Zero for one that the table does not have.
    pub fn counts(&self, class: usize) -> StreamCounts {
        let mut counts = StreamCounts::default();
        let heads = if class < self.classes.len() { self.heads } else { 0 };
        for (_, page) in (0..heads).flat_map(|head| self.stream(head, class).used()) {
            counts.pages += 1;
            counts.live += page.live as usize;
            counts.dead += (page.rows - page.live) as usize;
        }
        counts
    }

    pub(super) fn stream(&self, head: usize, class: usize) -> &Stream {
        &self.streams[head * self.classes.len() + class]
    }

    /// All pages with their classes.
    pub(super) fn all_pages(&self) -> impl Iterator<Item = (usize, PageId)> + '_ {
        let classes = self.classes.len();
        self.streams.iter().enumerate().flat_map(move |(i, s)| s.used().map(move |(_, page)| (i % classes, page.id)))
    }
}

impl Drop for StreamTable {
    fn drop(&mut self) {
        for (class, id) in self.all_pages() {
            let pages = &self.classes[class].pages;
            // A refusal means tampering, which `PageAllocator::check` reports.
            if pages.release(id).is_ok_and(|released| released.last) {
                let _ = pages.retire(id, Stamp::IDLE);
            }
        }
    }
}
