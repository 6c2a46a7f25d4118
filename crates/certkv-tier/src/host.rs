//! Tier-2: the pool of uncompressed originals in host memory.
use crate::error::{MoveCause, MoveError};
use crate::lane::Lane;
use crate::original::OriginalLayout;
use crate::scratch::Item;
use crate::side::{Side, SideKey};
use certkv_core::planted;
use certkv_device::{Arena, Copy2d, DeviceError, Dst, Fence, SimDevice, Src};
use core::ops::Range;

/// Rows to be stored from a tail page to the host page of the same block.
#[derive(Debug, Clone)]
pub struct RowStore {
    /// Slot of the tail.
    pub tail: u32,
    /// Slot of the host page.
    pub page: u32,
    /// Layer within the KV group.
    pub layer: usize,
    /// Tokens of the block.
    pub rows: Range<usize>,
    /// Tag that the tail must carry; the host page takes it over.
    pub tag: Option<u64>,
}

/// Host pages: one slot holds one block's originals in every layer of a KV group.
#[derive(Debug, Clone)]
pub struct Originals {
    arena: Arena,
    layout: OriginalLayout,
}

impl Originals {
    /// Room for `pages` host pages of the given layout.
    ///
    /// # Errors
    /// As for [`SimDevice::arena`].
    pub fn new(device: &SimDevice, layout: OriginalLayout, pages: u32) -> Result<Self, DeviceError> {
        Ok(Self { arena: device.arena("originals", pages, layout.page_bytes())?, layout })
    }

    /// The memory, for guards.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Byte layout of a page.
    pub fn layout(&self) -> &OriginalLayout {
        &self.layout
    }

    /// Stores rows from tails (slots of `tails`, in this pool's layout) behind the fence of their writer: one operation
    /// per item, keys and values of all heads of the layer.
    ///
    /// The tail stays the authority until the returned fence was seen to have completed without error.
    ///
    /// # Errors
    /// [`MoveError`] names the items that were not enqueued. Storing an item again is always allowed.
    pub fn store(&self, lane: &Lane, written: &Fence, tails: &Arena, items: &[RowStore]) -> Result<Fence, MoveError> {
        let none = |error| MoveError::all(items.len(), MoveCause::Device(error));
        if !planted!(B1) {
            lane.wait(written).map_err(none)?;
        }
        let mut not_moved = Vec::new();
        for (i, item) in items.iter().enumerate() {
            if let Err(error) = self.store_item(lane, tails, item) {
                not_moved.push((i, MoveCause::Device(error)));
            }
        }
        if not_moved.len() == items.len() && !items.is_empty() {
            return Err(MoveError { not_moved, fence: None });
        }
        let fence = lane.finish().map_err(none)?;
        if not_moved.is_empty() { Ok(fence) } else { Err(MoveError { not_moved, fence: Some(fence) }) }
    }

    fn store_item(&self, lane: &Lane, tails: &Arena, item: &RowStore) -> Result<(), DeviceError> {
        let range = self.layout.row_range(item.layer, 0, Side::Key, item.rows.clone());
        let dst = Dst { arena: &self.arena, slot: item.page, offset: range.start };
        let src = Src { arena: tails, slot: item.tail, range, expect: item.tag };
        let rows = Copy2d { count: self.layout.sides(), pitch: self.layout.side_bytes() };
        lane.copy_2d(src, dst, rows)
    }

    /// The promotion of one side of the page in slot `slot`: what [`crate::Scratch::prefetch`] takes.
    pub fn item(&self, key: SideKey, slot: u32, tag: Option<u64>) -> Item {
        let range = self.layout.range(key.layer as usize, key.kv_head as usize, key.side);
        Item { key, slot, range, tag }
    }
}
