//! A small machine: originals of a few pages, tails, a scratch cache, two lanes and two readers.
use crate::{Item, Lane, MoveError, OriginalLayout, Originals, RowStore, Scratch, ScratchConfig, Side, SideKey};
use certkv_core::PageId;
use certkv_core::hash::hash64;
use certkv_device::{Arena, DeviceError, Fence, Mode, SimDevice, SimOptions, Stream};

pub(super) const PAGES: u32 = 3;

pub(super) struct World {
    pub(super) device: SimDevice,
    pub(super) originals: Originals,
    pub(super) tails: Arena,
    pub(super) scratch: Scratch,
    pub(super) fills: Lane,
    pub(super) stores: Lane,
    pub(super) readers: [Stream; 2],
}

/// Tag of a page's content.
pub(super) fn tag(page: PageId) -> u64 {
    hash64(&[u64::from(page.index), u64::from(page.generation)])
}

/// What every 16-bit word of one side holds.
pub(super) fn word(key: &SideKey) -> u16 {
    let fields = [tag(key.page), u64::from(key.layer), u64::from(key.kv_head), key.side as u64];
    hash64(&fields) as u16
}

pub(super) fn key(page: PageId, layer: usize, head: usize, side: Side) -> SideKey {
    SideKey::new(page, layer, head, side)
}

pub(super) fn page(index: u32) -> PageId {
    PageId { index, generation: 1 }
}

/// All sides of a page.
pub(super) fn sides_of(page: PageId) -> impl Iterator<Item = SideKey> {
    (0..8).map(move |i| key(page, i / 4, i / 2 % 2, if i % 2 == 0 { Side::Key } else { Side::Value }))
}

impl World {
    pub(super) fn new(mode: Mode, key_slots: u32, value_slots: u32) -> Result<Self, DeviceError> {
        let device = SimDevice::new(SimOptions { mode, check: true });
        let layout = OriginalLayout::new(2, 2, 4, 8).map_err(|_| DeviceError::Foreign)?;
        let config = ScratchConfig { key_slots, value_slots, slot_bytes: layout.side_bytes() };
        Ok(Self {
            originals: Originals::new(&device, layout, PAGES)?,
            tails: device.arena("tails", PAGES, layout.page_bytes())?,
            scratch: Scratch::new(&device, config)?,
            fills: Lane::new(&device, "fills"),
            stores: Lane::new(&device, "stores"),
            readers: [device.stream("compute"), device.stream("verify")],
            device,
        })
    }

    /// Writes a page's content into its tail on the first reader's stream.
    pub(super) fn write_tail(&self, page: PageId) -> Result<(), DeviceError> {
        let mut guard = self.tails.write(page.index, &self.readers[0])?;
        for key in sides_of(page) {
            let words = self.originals.layout().words(key.layer as usize, key.kv_head as usize, key.side);
            guard.words_mut()[words].fill(word(&key));
        }
        guard.set_tag(tag(page));
        Ok(())
    }

    /// Stores a page's tail, both layers whole.
    pub(super) fn store(&self, page: PageId, written: &Fence) -> Result<Fence, MoveError> {
        let rows = self.originals.layout().block();
        let store = |layer| RowStore { tail: page.index, page: page.index, layer, rows: 0..rows, tag: Some(tag(page)) };
        self.originals.store(&self.stores, written, &self.tails, &[store(0), store(1)])
    }

    pub(super) fn item(&self, key: SideKey) -> Item {
        self.originals.item(key, key.page.index, Some(tag(key.page)))
    }

    pub(super) fn prefetch(&self, keys: &[SideKey]) -> Result<Fence, MoveError> {
        let items: Vec<Item> = keys.iter().map(|&key| self.item(key)).collect();
        self.scratch.prefetch(&self.fills, self.originals.arena(), &items)
    }

    /// Looks a side up and checks every word; `None` if it is not there.
    pub(super) fn read(&self, key: &SideKey, reader: usize) -> Result<Option<crate::ScratchLease>, DeviceError> {
        let lease = self.scratch.lookup(key, &self.readers[reader])?;
        if let Some(lease) = &lease {
            assert!(right(lease), "{key:?} holds another content");
        }
        Ok(lease)
    }

    /// A machine whose pages 0.. hold their first generation and have been stored.
    pub(super) fn stored(mode: Mode, key_slots: u32, value_slots: u32) -> Self {
        Self::try_stored(mode, key_slots, value_slots).unwrap()
    }

    pub(super) fn try_stored(mode: Mode, key_slots: u32, value_slots: u32) -> Result<Self, String> {
        let world = Self::new(mode, key_slots, value_slots).map_err(|e| e.to_string())?;
        for page in (0..PAGES).map(page) {
            world.write_tail(page).map_err(|e| e.to_string())?;
            let written = world.readers[0].record().map_err(|e| e.to_string())?;
            let stored = world.store(page, &written).map_err(|e| e.to_string())?;
            stored.synchronize().map_err(|e| e.to_string())?;
        }
        Ok(world)
    }

    /// Every slot is in one state; `pins` leases are alive.
    pub(super) fn assert_books(&self, slots: [u32; 2], pins: u32) {
        let mut held = 0;
        for (side, slots) in [Side::Key, Side::Value].into_iter().zip(slots) {
            let census = self.scratch.census(side);
            assert_eq!(census.empty + census.filling + census.valid + census.retiring, slots, "{side}: {census:?}");
            held += census.pins;
            let (seen, _) = self.scratch.glance(side);
            let named = (census.filling + census.valid) as usize;
            assert_eq!(
                (seen.empty, seen.named, seen.retiring),
                (census.empty as usize, named, census.retiring as usize)
            );
        }
        assert_eq!(held, pins);
    }
}

pub(super) fn right(lease: &crate::ScratchLease) -> bool {
    lease.words().iter().all(|&w| w == word(&lease.key()))
}
