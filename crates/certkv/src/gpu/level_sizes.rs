//! Bytes and numbers of pages where blocks have levels. Pure arithmetic.
use super::config::GpuConfig;
use super::sections::ALIGN;
use super::sizes::{Sizes, too_large};
use crate::Error;
use certkv_core::RecordLayout;
use certkv_kernel::cuda::select::LevelRecords;

/// One of several levels of blocks, in every layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LevelSizes {
    pub(super) layout: RecordLayout,
    /// Bytes of a page of records.
    pub(super) page_bytes: usize,
    pub(super) pages: usize,
    /// Pages of the levels before it: on the device pages of all levels count on.
    pub(super) first: u32,
    /// First byte of its pages among the layer's.
    pub(super) at: usize,
}

/// Levels of blocks, one after the other in a layer's pages of records.
pub(super) fn level_sizes(config: &GpuConfig) -> Result<Vec<LevelSizes>, Error> {
    let (mut levels, mut first, mut at) = (Vec::new(), 0usize, 0usize);
    for (level, layout) in config.levels.iter().zip(config.level_layouts()?) {
        let (pages, page_bytes) = (level.tokens.div_ceil(layout.tokens()), config.geometry.kv_heads * layout.bytes);
        levels.push(LevelSizes {
            layout,
            page_bytes,
            pages,
            first: u32::try_from(first).map_err(|_| too_large())?,
            at,
        });
        first += pages;
        let end = pages.checked_mul(page_bytes).and_then(|bytes| at.checked_add(bytes)).ok_or_else(too_large)?;
        at = end.checked_next_multiple_of(ALIGN).ok_or_else(too_large)?;
    }
    Ok(levels)
}

impl Sizes {
    /// Pages of records of a layer, of all levels.
    pub(super) fn pages_of(&self, layer: usize) -> usize {
        match &self.levels[..] {
            [] => self.group(layer).packed_pages,
            levels => levels.iter().map(|level| level.pages).sum(),
        }
    }

    /// On the device, the number of page `index` of a level.
    pub(super) fn page_of(&self, level: u8, index: u32) -> u32 {
        self.levels.get(usize::from(level)).map_or(index, |level| level.first + index)
    }

    /// The level of a page by that number.
    pub(super) fn level_of(&self, page: u32) -> Option<&LevelSizes> {
        self.levels.iter().rev().find(|level| level.first <= page)
    }

    /// Layout of the records in a page of a layer whose own is `layout`.
    pub(super) fn layout_at<'a>(&'a self, layout: &'a RecordLayout, page: u32) -> &'a RecordLayout {
        self.level_of(page).map_or(layout, |level| &level.layout)
    }

    /// First byte of page `page` of records in `layer`.
    pub(super) fn packed_at(&self, layer: usize, page: u32) -> usize {
        let own = &self.of_layer[layer];
        match self.level_of(page) {
            None => own.packed_at + page as usize * own.page_bytes,
            Some(level) => own.packed_at + level.at + (page - level.first) as usize * level.page_bytes,
        }
    }

    /// Bytes of a page of records of a layer at a level; of the layer's own without any.
    pub(super) fn record_page_bytes(&self, layer: usize, level: u8) -> usize {
        self.levels.get(usize::from(level)).map_or(self.of_layer[layer].page_bytes, |level| level.page_bytes)
    }

    /// Bytes of what attention of levels leaves, and of where records of all are.
    pub(super) fn level_buffers(&self) -> [usize; 2] {
        [self.level_kept_bytes, self.layers * size_of::<LevelRecords>()].map(|bytes| bytes * self.levels.len())
    }
}
