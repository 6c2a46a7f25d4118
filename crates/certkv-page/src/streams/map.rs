//! Rows of one head in one width: page and row to token.
use certkv_core::PageId;

/// The token of a row that is no longer used.
pub(super) const DEAD: u32 = u32::MAX;

/// A page of the stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Page {
    pub(super) id: PageId,
    /// Rows written, dead ones included.
    pub(super) rows: u32,
    /// Rows in use.
    pub(super) live: u32,
}

/// A stream: pages in slots, so that a place stays what it is while other pages come and go.
#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) pages: Vec<Option<Page>>,
    /// Token of each row, slot by slot.
    tokens: Vec<u32>,
    free: Vec<u32>,
    /// Slot of the page that rows are added to.
    pub(super) open: Option<u32>,
}

impl Stream {
    /// Room for `more` pages, so that [`begin`](Self::begin) allocates nothing.
    pub(super) fn grow(&mut self, more: usize, rows: usize) -> Option<()> {
        let new = more.saturating_sub(self.free.len());
        self.pages.try_reserve(new).ok()?;
        self.tokens.try_reserve(new.checked_mul(rows)?).ok()?;
        // Every page may end.
        let most = self.pages.len() + new;
        self.free.try_reserve(most.saturating_sub(self.free.len())).ok()
    }

    /// The same map, if the host has the memory.
    pub(super) fn try_clone(&self) -> Option<Self> {
        let mut twin = Self { open: self.open, ..Self::default() };
        twin.pages.try_reserve(self.pages.len()).ok()?;
        twin.tokens.try_reserve(self.tokens.len()).ok()?;
        twin.free.try_reserve(self.pages.len()).ok()?;
        twin.pages.extend_from_slice(&self.pages);
        twin.tokens.extend_from_slice(&self.tokens);
        twin.free.extend_from_slice(&self.free);
        Some(twin)
    }

    /// Rows left in the open page.
    pub(super) fn left(&self, rows: usize) -> usize {
        self.open_page().map_or(0, |page| rows - page.rows as usize)
    }

    pub(super) fn open_page(&self) -> Option<&Page> {
        self.pages.get(self.open? as usize)?.as_ref()
    }

    /// The open page is another one from here on.
    pub(super) fn rename_open(&mut self, id: PageId) {
        if let Some(Some(page)) = self.open.and_then(|slot| self.pages.get_mut(slot as usize)) {
            page.id = id;
        }
    }

    /// Makes `id` the open page.
    pub(super) fn begin(&mut self, id: PageId, rows: usize) {
        let page = Some(Page { id, rows: 0, live: 0 });
        let slot = match self.free.pop() {
            Some(slot) => {
                self.pages[slot as usize] = page;
                slot
            }
            None => {
                self.pages.push(page);
                self.tokens.resize(self.pages.len() * rows, DEAD);
                self.pages.len() as u32 - 1
            }
        };
        self.open = Some(slot);
    }

    /// Adds a row to the open page: its slot and row, and whether the page is full now. `None` without an open page.
    pub(super) fn add(&mut self, token: u32, rows: usize) -> Option<(u32, u32, bool)> {
        let slot = self.open?;
        let page = self.pages.get_mut(slot as usize)?.as_mut()?;
        let row = page.rows;
        self.tokens[slot as usize * rows + row as usize] = token;
        (page.rows, page.live) = (page.rows + 1, page.live + 1);
        let full = page.rows as usize == rows;
        if full {
            self.open = None;
        }
        Some((slot, row, full))
    }

    /// A row that is no longer used. The page, if that was the last use of a page that is full.
    pub(super) fn kill(&mut self, slot: u32, row: u32, rows: usize) -> Option<PageId> {
        self.tokens[slot as usize * rows + row as usize] = DEAD;
        let page = self.pages[slot as usize].as_mut()?;
        page.live -= 1;
        let id = page.id;
        (page.live == 0 && self.open != Some(slot)).then(|| {
            self.end(slot);
            id
        })
    }

    /// Takes dead rows off the end of the open page. The page, if none is left.
    pub(super) fn trim(&mut self, rows: usize) -> Option<PageId> {
        let slot = self.open?;
        let page = self.pages.get_mut(slot as usize)?.as_mut()?;
        let first = slot as usize * rows;
        while page.rows > 0 && self.tokens[first + page.rows as usize - 1] == DEAD {
            page.rows -= 1;
        }
        let (id, left) = (page.id, page.rows);
        (left == 0).then(|| {
            self.open = None;
            self.end(slot);
            id
        })
    }

    fn end(&mut self, slot: u32) {
        self.pages[slot as usize] = None;
        self.free.push(slot);
    }

    /// Token of a row; `None` for one that is not in use.
    pub(super) fn token(&self, slot: usize, row: usize, rows: usize) -> Option<u32> {
        let page = self.pages.get(slot)?.as_ref()?;
        if row >= page.rows as usize {
            return None;
        }
        self.tokens.get(slot * rows + row).copied().filter(|token| *token != DEAD)
    }

    /// Slots and pages, the open one included.
    pub(super) fn used(&self) -> impl Iterator<Item = (usize, &Page)> + Clone + '_ {
        self.pages.iter().enumerate().filter_map(|(slot, page)| Some((slot, page.as_ref()?)))
    }
}
