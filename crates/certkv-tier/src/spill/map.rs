//! Residency of originals: which frame of host memory holds a slot, and which slots lie in a store alone.
//!
//! A *slot* is one layer of a host page, a *frame* is the memory of a slot. There are fewer frames than slots. Nothing here
//! does I/O or locks; every call but a sweep takes time that does not grow with the number of slots, evictions aside, which
//! pass each frame at most twice.
use certkv_core::PageId;
use std::collections::VecDeque;

/// No frame.
const NONE: u32 = u32::MAX;

/// Where the originals of a slot are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Nowhere: the page is free, or not yet housed.
    Absent,
    /// In a frame, and rows may still come or change.
    Open,
    /// In a frame and final; the frame is the only place that is sure to have them.
    Resident,
    /// As `Resident`, and a copy is on its way to the store.
    Spilling,
    /// In a frame and in the store: the frame can be given up at any time.
    Stored,
    /// In the store alone.
    Spilled,
    /// As `Spilled`, and on the way into a frame.
    Fetching,
}

/// All states, in the order of [`Census::slots`].
pub const STATES: [State; 7] =
    [State::Absent, State::Open, State::Resident, State::Spilling, State::Stored, State::Spilled, State::Fetching];

impl State {
    /// In a word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Open => "open",
            Self::Resident => "resident",
            Self::Spilling => "spilling",
            Self::Stored => "stored",
            Self::Spilled => "spilled",
            Self::Fetching => "fetching",
        }
    }

    /// The rows can be read.
    const fn is_here(self) -> bool {
        matches!(self, Self::Open | Self::Resident | Self::Spilling | Self::Stored)
    }

    /// They lie in the store alone.
    const fn is_away(self) -> bool {
        matches!(self, Self::Spilled | Self::Fetching)
    }
}

/// One layer of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId {
    /// The host page.
    pub page: PageId,
    /// Layer within the page's KV group.
    pub layer: u32,
}

/// A slot to be copied to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    /// Which.
    pub slot: SlotId,
    /// Where its rows are.
    pub frame: u32,
    /// A put of the same record was begun before.
    pub again: bool,
}

/// Slots by state and frames by use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Census {
    /// In the order of [`STATES`].
    pub slots: [usize; STATES.len()],
    /// Frames that hold nothing.
    pub free: usize,
    /// Frames given up that somebody may still read, or that are to be erased.
    pub retiring: usize,
}

impl Census {
    /// Slots in one state.
    pub const fn of(&self, state: State) -> usize {
        self.slots[state as usize]
    }
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    frame: u32,
    pins: u16,
    state: State,
    /// A put was begun under the present generation: a record may be there.
    record: bool,
}

#[derive(Debug, Clone, Copy)]
struct Frame {
    /// Index of the slot; `NONE` while free or retiring.
    slot: u32,
    /// Asked for since the hand came by.
    used: bool,
}

#[derive(Debug, Clone, Copy)]
struct Page {
    generation: u32,
    housed: bool,
    /// Layers whose rows are in no frame.
    away: u16,
}

/// The map of one KV group.
#[derive(Debug)]
pub struct Residency {
    layers: usize,
    pages: Box<[Page]>,
    slots: Box<[Slot]>,
    frames: Box<[Frame]>,
    free: Vec<u32>,
    /// Frames that hold what their last owners left; `None` where nobody erases it.
    soiled: Option<Vec<u32>>,
    /// Behind the stamps of those that may read them, oldest first.
    retiring: VecDeque<(u32, u64)>,
    counts: [usize; STATES.len()],
    /// Frames that are never taken by slots that the store does not have.
    reserve: usize,
    /// Next frame to be looked at for eviction, and for writing.
    hand: usize,
    writer: usize,
}

impl Residency {
    /// `frames` frames for the slots of `pages` pages of `layers` layers. At any time `reserve` of the frames are free, or hold
    /// what the store has too: so whoever reads so many slots at once finds room for them without a put.
    ///
    /// `None` if host memory cannot be had, or for more layers than a model has.
    pub fn new(pages: usize, layers: usize, frames: usize, reserve: usize) -> Option<Self> {
        fn filled<T: Clone>(n: usize, value: T) -> Option<Box<[T]>> {
            let mut all = Vec::new();
            all.try_reserve_exact(n).ok()?;
            all.resize(n, value);
            Some(all.into_boxed_slice())
        }
        let mut free = Vec::new();
        free.try_reserve_exact(frames).ok()?;
        free.extend((0..frames as u32).rev());
        let mut retiring = VecDeque::new();
        retiring.try_reserve_exact(frames).ok()?;
        u16::try_from(layers).ok()?;
        let slots = pages.checked_mul(layers)?;
        let mut counts = [0; STATES.len()];
        counts[State::Absent as usize] = slots;
        Some(Self {
            layers,
            pages: filled(pages, Page { generation: 0, housed: false, away: 0 })?,
            slots: filled(slots, Slot { frame: NONE, pins: 0, state: State::Absent, record: false })?,
            frames: filled(frames, Frame { slot: NONE, used: false })?,
            free,
            soiled: None,
            retiring,
            counts,
            reserve,
            hand: 0,
            writer: 0,
        })
    }

    /// The same, where frames that are given up are free only when they have been [erased](Self::take_soiled). `None` if host memory cannot be had.
    pub fn erasing(mut self) -> Option<Self> {
        let mut soiled = Vec::new();
        soiled.try_reserve_exact(self.frames.len()).ok()?;
        self.soiled = Some(soiled);
        Some(self)
    }

    /// Takes a frame that nobody reads any more, to be erased and given back with [`Residency::erased`].
    pub fn take_soiled(&mut self) -> Option<u32> {
        self.soiled.as_mut()?.pop()
    }

    /// Gives back a frame that was taken to be erased: it is free, or waits on where that could not be `done`.
    pub fn erased(&mut self, frame: u32, done: bool) {
        match &mut self.soiled {
            Some(soiled) if !done => soiled.push(frame),
            _ => self.free.push(frame),
        }
    }

    /// Frames that nobody holds, erased or not.
    pub fn free_frames(&self) -> impl Iterator<Item = u32> + '_ {
        self.free.iter().chain(self.soiled.iter().flatten()).copied()
    }

    fn give_up(&mut self, frame: u32) {
        self.soiled.as_mut().unwrap_or(&mut self.free).push(frame);
    }

    /// Bytes that a map takes.
    pub const fn bytes(pages: usize, layers: usize, frames: usize) -> usize {
        let of_frame = size_of::<Frame>() + 2 * size_of::<u32>() + size_of::<(u32, u64)>();
        let slots = pages.saturating_mul(layers).saturating_mul(size_of::<Slot>());
        slots.saturating_add(frames.saturating_mul(of_frame)).saturating_add(pages.saturating_mul(size_of::<Page>()))
    }

    /// Frames there are.
    pub fn frames(&self) -> usize {
        self.frames.len()
    }

    /// Slots by state, frames by use.
    pub fn census(&self) -> Census {
        let soiled = self.soiled.as_ref().map_or(0, Vec::len);
        Census { slots: self.counts, free: self.free.len(), retiring: self.retiring.len() + soiled }
    }

    fn count(&self, state: State) -> usize {
        self.counts[state as usize]
    }

    /// Slots that only their frames are sure to hold.
    fn unstored(&self) -> usize {
        self.count(State::Open) + self.count(State::Resident) + self.count(State::Spilling)
    }

    /// Frames that may hold what the store has.
    pub fn room(&self) -> usize {
        self.frames.len().saturating_sub(self.unstored())
    }

    /// Frames that too many slots would take which the store does not have, if `more` came: that many must be stored first.
    pub fn lacks(&self, more: usize) -> usize {
        (self.unstored() + more).saturating_sub(self.frames.len().saturating_sub(self.reserve))
    }

    /// Slots that should be on their way to the store by now, and are not: from three quarters of the frames that they may take
    /// down to a half.
    pub fn behind(&self) -> usize {
        let may = self.frames.len().saturating_sub(self.reserve);
        let waiting = self.count(State::Open) + self.count(State::Resident);
        if waiting <= may / 4 * 3 { 0 } else { (waiting - may / 2).min(self.count(State::Resident)) }
    }

    fn index(&self, slot: SlotId) -> Option<usize> {
        let page = self.pages.get(slot.page.index as usize)?;
        let named = page.housed && page.generation == slot.page.generation && (slot.layer as usize) < self.layers;
        named.then(|| slot.page.index as usize * self.layers + slot.layer as usize)
    }

    fn id(&self, index: usize) -> SlotId {
        let page = index / self.layers;
        let generation = self.pages[page].generation;
        SlotId { page: PageId { index: page as u32, generation }, layer: (index % self.layers) as u32 }
    }

    fn set(&mut self, index: usize, state: State) {
        let slot = &mut self.slots[index];
        let away = &mut self.pages[index / self.layers].away;
        *away = *away + u16::from(state.is_away()) - u16::from(slot.state.is_away());
        self.counts[slot.state as usize] -= 1;
        self.counts[state as usize] += 1;
        slot.state = state;
    }

    /// State of a slot.
    pub fn state(&self, slot: SlotId) -> State {
        self.index(slot).map_or(State::Absent, |index| self.slots[index].state)
    }

    /// The frame that holds the rows of a slot; `None` if none does, or the id is another page's by now.
    pub fn frame(&self, slot: SlotId) -> Option<u32> {
        let slot = self.slots[self.index(slot)?];
        slot.state.is_here().then_some(slot.frame)
    }

    /// The frame that holds the rows of a slot of whichever page has that index now; `None` if none does.
    pub fn held(&self, page: u32, layer: u32) -> Option<u32> {
        let generation = self.pages.get(page as usize)?.generation;
        self.frame(SlotId { page: PageId { index: page, generation }, layer })
    }

    /// Whether rows of the page lie in the store alone, in some layer.
    pub fn is_away(&self, page: PageId) -> bool {
        self.pages.get(page.index as usize).is_some_and(|p| p.away > 0 && p.generation == page.generation)
    }

    /// Slots whose rows lie in the store alone.
    pub fn away(&self) -> usize {
        self.count(State::Spilled) + self.count(State::Fetching)
    }

    /// As [`Residency::frame`], and the frame counts as used.
    pub fn touch(&mut self, slot: SlotId) -> Option<u32> {
        let frame = self.frame(slot)?;
        self.frames[frame as usize].used = true;
        Some(frame)
    }

    fn take(&mut self, index: usize, state: State) -> Option<u32> {
        let frame = self.free.pop()?;
        self.frames[frame as usize] = Frame { slot: index as u32, used: true };
        self.slots[index].frame = frame;
        self.set(index, state);
        Some(frame)
    }

    fn untake(&mut self, index: usize, state: State) -> u32 {
        let frame = core::mem::replace(&mut self.slots[index].frame, NONE);
        if let Some(frame) = self.frames.get_mut(frame as usize) {
            *frame = Frame { slot: NONE, used: false };
        }
        self.set(index, state);
        frame
    }

    /// Gives a new page a frame in every layer: `false` if not enough are free, or the store lacks too much. What an earlier
    /// owner of the page left goes first; the page was free in between, so nobody reads its frames.
    pub fn house(&mut self, page: PageId, dead: &mut Vec<SlotId>) -> bool {
        let Some(entry) = self.pages.get(page.index as usize).copied() else { return false };
        if entry.housed {
            self.forget(page.index, dead);
        }
        if self.free.len() < self.layers || self.lacks(self.layers) > 0 {
            return false;
        }
        self.pages[page.index as usize] = Page { generation: page.generation, housed: true, away: 0 };
        for layer in 0..self.layers {
            self.take(page.index as usize * self.layers + layer, State::Open);
        }
        true
    }

    /// The rows of the page change no more under this id.
    pub fn close(&mut self, page: PageId) {
        for layer in 0..self.layers as u32 {
            if let Some(index) = self.index(SlotId { page, layer }).filter(|i| self.slots[*i].state == State::Open) {
                self.set(index, State::Resident);
            }
        }
    }

    /// Slots that would count as not stored if the page were opened again.
    pub fn reopens(&self, page: PageId) -> usize {
        let slots = (0..self.layers as u32).map(|layer| self.state(SlotId { page, layer }));
        slots.filter(|state| *state == State::Stored).count()
    }

    /// The page has a new generation, its rows may change. All of them must be in frames: `false` otherwise, and nothing changed.
    pub fn renew(&mut self, old: PageId, new: PageId, dead: &mut Vec<SlotId>) -> bool {
        let layers = 0..self.layers as u32;
        if old.index != new.index || !layers.clone().all(|layer| self.frame(SlotId { page: old, layer }).is_some()) {
            return false;
        }
        for layer in layers {
            let Some(index) = self.index(SlotId { page: old, layer }) else { continue };
            self.bury(index, dead);
            self.slots[index].record = false;
            self.set(index, State::Open);
        }
        self.pages[new.index as usize].generation = new.generation;
        true
    }

    /// Names the record of a slot that is over. That of a put under way is named when the put ends.
    fn bury(&self, index: usize, dead: &mut Vec<SlotId>) {
        if self.slots[index].record && self.slots[index].state != State::Spilling {
            dead.push(self.id(index));
        }
    }

    /// The page is free: nobody refers to it, nobody reads it. Its frames are free, `dead` names its records.
    fn forget(&mut self, page: u32, dead: &mut Vec<SlotId>) {
        let first = page as usize * self.layers;
        for index in first..first + self.layers {
            self.bury(index, dead);
            let frame = self.untake(index, State::Absent);
            if frame != NONE {
                self.give_up(frame);
            }
            self.slots[index] = Slot { frame: NONE, pins: 0, state: State::Absent, record: false };
        }
        self.pages[page as usize].housed = false;
    }

    /// Forgets every page that is not `alive`. Looks at all pages.
    pub fn sweep(&mut self, alive: impl Fn(PageId) -> bool, dead: &mut Vec<SlotId>) {
        for index in 0..self.pages.len() as u32 {
            let Page { generation, housed, .. } = self.pages[index as usize];
            if housed && !alive(PageId { index, generation }) {
                self.forget(index, dead);
            }
        }
    }

    /// Picks up to `n` slots that only their frames hold, those that the hand of eviction comes to first. They are Spilling.
    pub fn spill(&mut self, n: usize, picks: &mut Vec<Pick>) {
        let mut left = n.min(self.count(State::Resident));
        for _ in 0..self.frames.len() {
            if left == 0 {
                return;
            }
            self.writer = (self.writer + 1) % self.frames.len();
            let index = self.frames[self.writer].slot as usize;
            if self.slots.get(index).is_some_and(|slot| slot.state == State::Resident) {
                picks.push(Pick { slot: self.id(index), frame: self.writer as u32, again: self.slots[index].record });
                self.slots[index].record = true;
                self.set(index, State::Spilling);
                left -= 1;
            }
        }
    }

    /// A put that was picked was not begun. If the page was over before it, `dead` names what an earlier put may have left.
    pub fn unspill(&mut self, pick: &Pick, dead: &mut Vec<SlotId>) {
        match self.index(pick.slot).filter(|i| self.slots[*i].state == State::Spilling) {
            Some(index) => {
                self.slots[index].record = pick.again;
                self.set(index, State::Resident);
            }
            None if pick.again => dead.push(pick.slot),
            None => {}
        }
    }

    /// A put is over. `false`: the page was over before it, and what it may have stored is nobody's.
    pub fn spilled(&mut self, slot: SlotId, stored: bool) -> bool {
        let index = self.index(slot).filter(|i| self.slots[*i].state == State::Spilling);
        if let Some(index) = index {
            self.set(index, if stored { State::Stored } else { State::Resident });
        }
        index.is_some()
    }

    /// Gives up frames of slots that the store has too, until `n` did or none is left: second chance by last use. They are free
    /// once `stamp` has passed, which follows all reads so far. `gone` is told of each. How many.
    pub fn evict(&mut self, n: usize, stamp: u64, mut gone: impl FnMut(SlotId)) -> usize {
        let (mut left, frames) = (n.min(self.count(State::Stored)), self.frames.len());
        let before = left;
        for _ in 0..2 * frames {
            if left == 0 {
                break;
            }
            self.hand = (self.hand + 1) % frames;
            let Frame { slot, used } = self.frames[self.hand];
            let Some(held) = self.slots.get(slot as usize).filter(|s| s.state == State::Stored && s.pins == 0) else {
                continue;
            };
            debug_assert_eq!(held.frame as usize, self.hand);
            if used {
                self.frames[self.hand].used = false;
                continue;
            }
            let frame = self.untake(slot as usize, State::Spilled);
            self.retiring.push_back((frame, stamp));
            gone(self.id(slot as usize));
            left -= 1;
        }
        before - left
    }

    /// The stamp that the frame given up first waits for.
    pub fn oldest(&self) -> Option<u64> {
        self.retiring.front().map(|(_, stamp)| *stamp)
    }

    /// `stamp` has passed: the frames behind it that come first are free.
    pub fn reclaim(&mut self, stamp: u64) {
        while let Some(&(frame, of)) = self.retiring.front()
            && of == stamp
        {
            self.retiring.pop_front();
            self.give_up(frame);
        }
    }

    /// A slot that lies in the store alone gets a frame to be read into; `None` if it lies elsewhere, or no frame is free.
    pub fn fetch(&mut self, slot: SlotId) -> Option<u32> {
        let index = self.index(slot).filter(|i| self.slots[*i].state == State::Spilled)?;
        self.take(index, State::Fetching)
    }

    /// The frame of a slot that is being fetched.
    pub fn arriving(&self, slot: SlotId) -> Option<u32> {
        self.index(slot).map(|i| self.slots[i]).filter(|s| s.state == State::Fetching).map(|s| s.frame)
    }

    /// A fetch is over: its rows are in the frame, or nothing is.
    pub fn fetched(&mut self, slot: SlotId, there: bool) {
        let Some(index) = self.index(slot).filter(|i| self.slots[*i].state == State::Fetching) else { return };
        if there {
            self.set(index, State::Stored);
        } else {
            let frame = self.untake(index, State::Spilled);
            self.give_up(frame);
        }
    }

    /// Keeps the slot's frame from being given up, if it has one, until [`Residency::unpin`].
    pub fn pin(&mut self, slot: SlotId) {
        if let Some(index) = self.index(slot) {
            self.slots[index].pins = self.slots[index].pins.saturating_add(1);
        }
    }

    /// Undoes one [`Residency::pin`].
    pub fn unpin(&mut self, slot: SlotId) {
        if let Some(index) = self.index(slot) {
            self.slots[index].pins = self.slots[index].pins.saturating_sub(1);
        }
    }

    /// Calls `visit` with every slot that may have a record.
    pub fn records(&self, mut visit: impl FnMut(SlotId)) {
        let recorded = self.slots.iter().enumerate().filter(|(_, slot)| slot.record);
        recorded.for_each(|(index, _)| visit(self.id(index)));
    }

    /// What is not as it must be; `None` if all is.
    pub fn check(&self) -> Option<&'static str> {
        let mut counts = [0; STATES.len()];
        let mut away = vec![0; self.pages.len()];
        let mut held = 0;
        for (index, slot) in self.slots.iter().enumerate() {
            counts[slot.state as usize] += 1;
            away[index / self.layers] += u16::from(slot.state.is_away());
            let has_frame = slot.state.is_here() || slot.state == State::Fetching;
            if has_frame != (slot.frame != NONE) {
                return Some("a frame and a state that do not go together");
            }
            if has_frame && self.frames[slot.frame as usize].slot as usize != index {
                return Some("a frame of two slots");
            }
            if matches!(slot.state, State::Stored | State::Spilled | State::Fetching | State::Spilling) && !slot.record
            {
                return Some("a slot in the store without a record");
            }
            if (slot.state == State::Absent) == self.pages[index / self.layers].housed {
                return Some("a page that is housed in part");
            }
            held += usize::from(has_frame);
        }
        let waiting = self.retiring.iter().map(|(frame, _)| frame).chain(self.soiled.iter().flatten());
        let mut loose: Vec<u32> = self.free.iter().chain(waiting).copied().collect();
        let listed = loose.len();
        loose.sort_unstable();
        loose.dedup();
        if counts != self.counts || !self.pages.iter().map(|page| page.away).eq(away) {
            Some("counts that are not those of the slots")
        } else if held + loose.len() != self.frames.len() || loose.len() != listed {
            Some("frames that are nowhere, or twice")
        } else if loose.iter().any(|frame| self.frames[*frame as usize].slot != NONE) {
            Some("a free frame with an owner")
        } else if self.lacks(0) > 0 {
            Some("fewer frames for reading than were promised")
        } else {
            None
        }
    }
}
