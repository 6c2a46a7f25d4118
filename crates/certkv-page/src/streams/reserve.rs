//! Rows taken for tokens that come, or that move to another width: reserve, copy, commit.
use super::change::StreamDropped;
use super::table::{Place, StreamTable};
use super::{StreamClass, StreamError, StreamMove, StreamRow};
use crate::error::PageError;
use crate::stamp::Stamp;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::word::Operation;
use certkv_core::PageId;
use core::fmt;

/// A row to write, and for a token that moves the row it is copied from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamSpan {
    /// The KV head.
    pub head: usize,
    /// Position in the sequence.
    pub token: usize,
    /// Where the token is now; `None` for a new one.
    pub from: Option<StreamRow>,
    /// The row to write.
    pub to: StreamRow,
}

/// Lists of a reservation, kept from one to the next.
#[derive(Debug, Default)]
pub(super) struct Spare {
    spans: Vec<StreamSpan>,
    /// Pages taken, by class.
    pages: Vec<Vec<PageId>>,
    /// By stream: page and row of the next token, or how many tokens it gets.
    cursors: Vec<Cursor>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Cursor {
    wanted: usize,
    next: Option<(PageId, usize)>,
}

/// Rows for tokens that are not yet, or not yet there, part of a sequence; owned until [`StreamTable::commit`].
///
/// Left to drop it gives everything back: at once if [`rows`](Self::rows) was never asked for, else behind [`Stamp::IDLE`].
#[derive(Debug)]
#[must_use = "dropping a reservation gives its pages back"]
pub struct StreamReservation {
    classes: Vec<StreamClass>,
    table: u64,
    version: u64,
    /// New tokens; 0 for moves.
    tokens: usize,
    lists: Spare,
    dropped: StreamDropped,
    shown: AtomicBool,
}

/// A commit that did not happen; the reservation comes back whole.
#[derive(Debug)]
pub struct StreamCommitError {
    /// What was wrong.
    pub error: StreamError,
    /// The reservation, unchanged.
    pub reservation: StreamReservation,
}

impl fmt::Display for StreamCommitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}
impl core::error::Error for StreamCommitError {}

impl StreamReservation {
    /// New tokens; 0 for moves.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The rows to write, in the order in which they were asked for. From here on the pages count as touched.
    pub fn rows(&self) -> impl Iterator<Item = StreamSpan> + '_ {
        self.shown.store(true, Ordering::Relaxed);
        self.lists.spans.iter().copied()
    }

    /// Gives all pages back, behind the stamp that `record` returns: a fence that follows everything enqueued on them.
    pub fn abort(mut self, record: impl FnOnce() -> Stamp) {
        let stamp = record();
        self.give_back(stamp);
    }

    fn give_back(&mut self, stamp: Stamp) {
        for (class, pages) in self.classes.iter().zip(&mut self.lists.pages) {
            for id in pages.drain(..) {
                // The only owner of pages that nobody else has seen: nothing can refuse.
                if stamp == Stamp::UNTOUCHED {
                    let _ = class.pages.give_back(id);
                } else if class.pages.release(id).is_ok_and(|released| released.last) {
                    let _ = class.pages.retire(id, stamp);
                }
            }
        }
    }
}

impl Drop for StreamReservation {
    fn drop(&mut self) {
        let shown = self.shown.load(Ordering::Relaxed);
        self.give_back(if shown { Stamp::IDLE } else { Stamp::UNTOUCHED });
    }
}

impl StreamTable {
    /// Takes all pages for new tokens, or none: `widths` holds a class for each head of each token, token by token. The table does
    /// not change.
    ///
    /// # Errors
    /// [`StreamError::Widths`], [`StreamError::NoClass`], [`StreamError::TooLong`], [`StreamError::Page`],
    /// [`StreamError::OutOfMemory`].
    pub fn reserve(&mut self, widths: &[usize]) -> Result<StreamReservation, StreamError> {
        let (heads, first) = (self.heads, self.len);
        if !widths.len().is_multiple_of(heads) {
            return Err(StreamError::Widths { given: widths.len(), heads });
        }
        let tokens = widths.len() / heads;
        if tokens > self.max_tokens - self.len {
            return Err(StreamError::TooLong { len: self.len, tokens, limit: self.max_tokens });
        }
        let moves = widths.iter().enumerate();
        let moves = moves.map(move |(i, &class)| StreamMove { head: i % heads, token: first + i / heads, class });
        self.take(moves, tokens)
    }

    /// Takes all pages for tokens to move to other widths, or none. The caller copies (and codes anew) each row where the
    /// reservation says, then commits. The table does not change.
    ///
    /// # Errors
    /// [`StreamError::NoToken`], [`StreamError::Twice`], and as [`StreamTable::reserve`].
    pub fn reserve_moves(&mut self, moves: &[StreamMove]) -> Result<StreamReservation, StreamError> {
        let mut refused = None;
        let mut marked = 0;
        for &StreamMove { head, token, .. } in moves {
            match self.places.get_mut(head).and_then(|places| places.get_mut(token)) {
                None => refused = Some(StreamError::NoToken { head, token }),
                Some(place) if place.marked => refused = Some(StreamError::Twice { head, token }),
                Some(place) => place.marked = true,
            }
            if refused.is_some() {
                break;
            }
            marked += 1;
        }
        for m in &moves[..marked] {
            self.places[m.head][m.token].marked = false;
        }
        match refused {
            Some(error) => Err(error),
            None => self.take(moves.iter().copied(), 0),
        }
    }

    fn take(
        &mut self,
        moves: impl ExactSizeIterator<Item = StreamMove> + Clone,
        tokens: usize,
    ) -> Result<StreamReservation, StreamError> {
        let classes = self.classes.len();
        if let Some(bad) = moves.clone().find(|m| m.class >= classes) {
            return Err(StreamError::NoClass { class: bad.class, classes });
        }
        let lacking = StreamError::OutOfMemory { what: "a reservation of streams" };
        let mut lists = core::mem::take(&mut self.spare);
        let room = lists.spans.try_reserve(moves.len()).is_ok()
            && lists.cursors.try_reserve(self.streams.len()).is_ok()
            && lists.pages.try_reserve(classes).is_ok();
        let gone = if tokens == 0 { moves.len() } else { 0 };
        let (Some(dropped), true) = (StreamDropped::with_room(&self.classes, gone), room) else {
            self.spare = lists;
            return Err(lacking);
        };
        lists.cursors.resize(self.streams.len(), Cursor::default());
        lists.pages.resize_with(classes, Vec::new);
        let mut reservation = StreamReservation {
            classes: self.classes.clone(),
            table: self.serial,
            version: self.version,
            tokens,
            lists,
            dropped,
            shown: AtomicBool::new(false),
        };
        match self.fill(&mut reservation, moves) {
            Ok(()) => Ok(reservation),
            Err(error) => {
                reservation.give_back(Stamp::UNTOUCHED);
                self.keep(&mut reservation);
                Err(error)
            }
        }
    }

    /// Counts what each stream gets, takes the pages, and says where each token goes.
    fn fill(
        &mut self,
        reservation: &mut StreamReservation,
        moves: impl Iterator<Item = StreamMove> + Clone,
    ) -> Result<(), StreamError> {
        let classes = self.classes.len();
        let Spare { spans, pages, cursors } = &mut reservation.lists;
        for m in moves.clone() {
            cursors[m.head * classes + m.class].wanted += 1;
        }
        for (i, (cursor, stream)) in cursors.iter_mut().zip(&mut self.streams).enumerate() {
            let class = &self.classes[i % classes];
            let need = cursor.wanted.saturating_sub(stream.left(class.rows)).div_ceil(class.rows);
            cursor.next = stream.open_page().map(|page| (page.id, page.rows as usize));
            stream.grow(need, class.rows).ok_or(StreamError::OutOfMemory { what: "the rows of a stream" })?;
            let of = |error| StreamError::Page { bits: class.bits, error };
            class.pages.allocate_many(need, &mut pages[i % classes]).map_err(of)?;
        }
        // The new pages of a class are handed out in order.
        let mut fresh: [usize; 16] = [0; 16];
        let mut more = Vec::new();
        let fresh = if classes <= fresh.len() {
            &mut fresh[..classes]
        } else {
            more.try_reserve_exact(classes)
                .map_err(|_| StreamError::OutOfMemory { what: "a reservation of streams" })?;
            more.resize(classes, 0);
            &mut more[..]
        };
        for m in moves {
            let (class, cursor) = (&self.classes[m.class], &mut cursors[m.head * classes + m.class]);
            let (page, row) = match cursor.next.filter(|(_, row)| *row < class.rows) {
                Some(next) => next,
                None => {
                    let id = pages[m.class].get(fresh[m.class]).copied();
                    fresh[m.class] += 1;
                    // As many were taken as are handed out.
                    let error =
                        PageError::Exhausted { asked: 1, free: 0, retiring: 0, capacity: class.pages.capacity() };
                    (id.ok_or(StreamError::Page { bits: class.bits, error })?, 0)
                }
            };
            cursor.next = Some((page, row + 1));
            let from = if reservation.tokens == 0 { self.get(m.head, m.token) } else { None };
            let to = StreamRow { class: m.class, page, row };
            spans.push(StreamSpan { head: m.head, token: m.token, from, to });
        }
        Ok(())
    }

    /// The lists, for the next reservation; pages were taken over or given back.
    fn keep(&mut self, reservation: &mut StreamReservation) {
        let mut lists = core::mem::take(&mut reservation.lists);
        lists.spans.clear();
        lists.cursors.clear();
        lists.pages.iter_mut().for_each(Vec::clear);
        self.spare = lists;
    }

    /// Makes the reserved rows part of the sequence: the caller has written (or enqueued) all of them. Pages that are full become
    /// Packed. Full pages whose last used row moved away are given up; they are in what is returned.
    ///
    /// # Errors
    /// [`StreamCommitError`] with the reservation; the table is unchanged.
    #[expect(clippy::result_large_err, reason = "the reservation goes back by value; boxing it could fail")]
    pub fn commit(&mut self, mut reservation: StreamReservation) -> Result<StreamDropped, StreamCommitError> {
        let error = match () {
            () if reservation.table != self.serial => Some(StreamError::ForeignReservation),
            () if reservation.version != self.version => Some(StreamError::OutdatedReservation),
            () => None,
        };
        if let Some(error) = error {
            return Err(StreamCommitError { error, reservation });
        }
        let classes = self.classes.len();
        let StreamReservation { lists, dropped, .. } = &mut reservation;
        for StreamSpan { head, token, to, .. } in lists.spans.iter().copied() {
            let (class, stream) = (&self.classes[to.class], &mut self.streams[head * classes + to.class]);
            if to.row == 0 {
                stream.begin(to.page, class.rows);
            }
            let Some((slot, row, full)) = stream.add(token as u32, class.rows) else { continue };
            debug_assert_eq!(row as usize, to.row, "the stream changed since the reservation");
            if full {
                // The table is the only owner of an open page: nothing can refuse.
                let closed = class.pages.apply(Operation::CloseBegin, to.page);
                let closed = closed.and_then(|_| class.pages.apply(Operation::CloseCommit, to.page));
                debug_assert!(closed.is_ok(), "page of a stream: {closed:?}");
            }
            let place = Place { slot, row, class: to.class as u16, marked: false };
            match self.places[head].get_mut(token) {
                Some(old) => {
                    let old = core::mem::replace(old, place);
                    let from = usize::from(old.class);
                    let rows = self.classes[from].rows;
                    if let Some(id) = self.streams[head * classes + from].kill(old.slot, old.row, rows) {
                        dropped.push(from, id);
                    }
                }
                None => self.places[head].push(place),
            }
        }
        self.len += reservation.tokens;
        self.version += 1;
        // They are the table's now.
        reservation.lists.pages.iter_mut().for_each(Vec::clear);
        let dropped = core::mem::replace(&mut reservation.dropped, StreamDropped::empty());
        self.keep(&mut reservation);
        Ok(dropped)
    }
}
