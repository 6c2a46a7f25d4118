//! Levels: formats that a full block can have, one above the other, each with pages of its own.
//!
//! A block becomes full at the first level. Between steps it can get another ([`crate::Cache::change_level`]): it is coded again from its
//! originals on a page of that level's class, and named in the block table when that page is complete. Each layer has tables of its own,
//! so the levels of a block in two layers have nothing to do with each other; with [`Config::levels_by_head`] each of its KV heads has. What has
//! levels of its own, a layer or a head of it, is one group and one strand, and has the number of that group wherever it is counted. Blocks are read level by level, the first level last
//! ([`order`]): new blocks come behind all others, and a certificate is over the masses of all of them.
mod change;
mod control;
mod given;
pub(crate) mod planned;
mod probes;
pub(crate) mod retained;
mod site;
mod smart;
pub(crate) mod terms;

use crate::group::{Group, SEAL_BYTES};
use crate::{Cache, Config, Error};
use certkv_codec::Encoder;
use certkv_core::{Format, RecordLayout};
use certkv_device::{Arena, SimDevice};
use certkv_kernel::{Arch, Kernel};
use certkv_page::{BlockTable, MOST_LEVELS};
use core::ops::Range;

pub use control::{Control, ControlEntry, Controlled, Planned, Scored};
pub(crate) use control::{Decides, LayerControl};
pub(crate) use given::given;
pub use planned::{BoundBudget, LevelPlan};
pub(crate) use probes::Peaks;
pub use retained::Retention;
pub(crate) use site::{Deciders, Site, of_block};
pub use smart::SmartKv;
pub(crate) use smart::{Heard, ladder_bits};
pub use terms::Measure;

/// One level of [`Config::levels`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level {
    /// Format of its blocks, both sides coded: with what it needs in [`Config::calibration`] and [`Config::codebooks`].
    pub format: Format,
    /// Tokens, in each layer, that it has pages for. What one level does not use is no other level's.
    pub tokens: usize,
}

/// Bytes of one level.
#[derive(Debug, Clone)]
pub(crate) struct LevelSizes {
    pub(crate) layout: RecordLayout,
    pub(crate) pages: usize,
    /// Of a page in one layer: seal and records.
    pub(crate) page_bytes: usize,
}

impl LevelSizes {
    /// Of pages with the records of `kv_heads` heads.
    pub(crate) fn new(config: &Config, level: &Level, kv_heads: usize) -> Result<Self, Error> {
        let layout = RecordLayout::new(&config.geometry, level.format)?;
        let (pages, page_bytes) = (level.tokens.div_ceil(layout.tokens()), SEAL_BYTES + kv_heads * layout.bytes);
        Ok(Self { layout, pages, page_bytes })
    }

    /// Bytes of so many slots.
    pub(crate) fn bytes(&self, slots: usize) -> usize {
        Arena::padded_bytes(slots, self.page_bytes)
    }
}

/// A level behind the first, with its memory.
#[derive(Debug)]
pub(crate) struct Lower {
    layout: RecordLayout,
    kernel: Kernel,
    packed: Arena,
}

impl Lower {
    pub(crate) fn new(config: &Config, sizes: &LevelSizes, slots: u32, device: &SimDevice) -> Result<Self, Error> {
        Ok(Self {
            layout: sizes.layout.clone(),
            kernel: Kernel::new(&config.geometry, &sizes.layout, Arch::detect())?,
            packed: device.arena("packed", slots, sizes.page_bytes)?,
        })
    }
}

impl Group {
    fn lower_at(&self, level: u8) -> Option<&Lower> {
        usize::from(level).checked_sub(1).and_then(|at| self.lower.get(at))
    }

    /// Layout of the records at `level`.
    pub(crate) fn layout_at(&self, level: u8) -> &RecordLayout {
        self.lower_at(level).map_or(&self.layout, |lower| &lower.layout)
    }

    /// What computes with records at `level`.
    pub(crate) fn kernel_at(&self, level: u8) -> &Kernel {
        self.lower_at(level).map_or(&self.kernel, |lower| &lower.kernel)
    }

    /// Where pages of `level` lie.
    pub(crate) fn packed_at(&self, level: u8) -> &Arena {
        self.lower_at(level).map_or(&self.packed, |lower| &lower.packed)
    }

    /// Bytes of the record of one KV head in a slot of `level`.
    pub(crate) fn record_at(&self, level: u8, head: usize) -> Range<usize> {
        let bytes = self.layout_at(level).bytes;
        let start = SEAL_BYTES + head * bytes;
        start..start + bytes
    }

    /// Bytes of a page at `level`, in one layer, without padding.
    pub(crate) fn bytes_at(&self, level: u8) -> usize {
        let lower = usize::from(level).checked_sub(1).and_then(|at| self.sizes.lower.get(at));
        lower.map_or(self.sizes.page_bytes, |level| level.page_bytes)
    }

    /// Some of the levels have keys in the metric of a calibration, in which bounds are not those of others.
    pub(crate) fn is_balanced(&self) -> bool {
        self.sizes.layouts().any(|layout| layout.format.key.is_folded())
    }

    /// How many levels there are.
    pub(crate) fn level_count(&self) -> u8 {
        self.pools.level_count()
    }
}

impl Cache {
    /// What is not there yet for blocks that have levels.
    pub(crate) fn without_levels(&self, what: &str) -> Result<(), Error> {
        match self.config.levels.is_empty() {
            true => Ok(()),
            false => {
                let why = format!("units of prefixes whose blocks have levels are not {what} in this release");
                Err(Error::Config { field: "levels", why })
            }
        }
    }
}

/// Full blocks of a table in the order in which they are read: the first level last, at each by their number.
pub(crate) fn order(table: &BlockTable, levels: u8) -> impl Iterator<Item = (u8, usize)> + '_ {
    (0..levels).rev().flat_map(move |level| {
        let full = table.numbered().filter(move |(_, entry)| entry.is_full() && entry.level == level);
        full.map(move |(block, _)| (level, block))
    })
}

/// Full blocks of a table.
pub(crate) fn full_blocks(table: &BlockTable) -> usize {
    table.len() / table.block_size()
}

/// Level of each full block of a table, of the ladder: it ascends, so that the first level is the last of it.
pub(crate) fn ladder_levels(table: &BlockTable, levels: u8) -> Vec<u8> {
    let mut found = vec![0; full_blocks(table)];
    for (block, entry) in table.numbered().filter(|(_, entry)| entry.is_full()) {
        found[block] = levels - 1 - entry.level;
    }
    found
}

/// An encoder for every KV head of every format: one set a level where there are levels, as all layers have the same, else one a group.
pub(crate) fn encoders(groups: &[Group]) -> Vec<Vec<Encoder>> {
    let of = |layout: &RecordLayout, heads: usize| (0..heads).map(|_| Encoder::new(layout)).collect();
    match groups.first().filter(|group| !group.lower.is_empty()) {
        Some(group) => (0..group.level_count()).map(|level| of(group.layout_at(level), group.kv_heads)).collect(),
        None => groups.iter().map(|group| of(&group.layout, group.kv_heads)).collect(),
    }
}

/// Which set of [`encoders`] serves `level` of group `index`.
pub(crate) fn encoder_of(group: &Group, index: usize, level: u8) -> usize {
    if group.lower.is_empty() { index } else { usize::from(level) }
}

impl Config {
    /// The same with levels; the first is the format of all layers.
    #[must_use]
    pub fn with_levels(mut self, levels: Vec<Level>) -> Self {
        self.formats = levels.first().map(|level| level.format).into_iter().collect();
        self.levels = levels;
        self
    }

    /// Checks the levels by themselves and beside what they do not go with.
    pub(crate) fn check_levels(&self) -> Result<(), Error> {
        let wrong = |why: String| Err(Error::Config { field: "levels", why });
        let Some(first) = self.levels.first() else {
            let why = "there are no levels for heads to have".to_owned();
            return if self.levels_by_head { Err(Error::Config { field: "levels_by_head", why }) } else { Ok(()) };
        };
        if !(2..=MOST_LEVELS).contains(&self.levels.len()) {
            return wrong(format!("{} levels; must be none or 2 to {MOST_LEVELS}", self.levels.len()));
        }
        if self.formats != [first.format] {
            return wrong(format!("the first level is {}; formats must be that and nothing else", first.format));
        }
        let mut before = usize::MAX;
        for Level { format, tokens } in &self.levels {
            let bytes = RecordLayout::new(&self.geometry, *format)?.bytes;
            if format.key.is_exact() || format.value.is_exact() {
                return wrong(format!("{format}; both sides must be coded"));
            }
            if !format.refine.is_none() {
                return wrong(format!("{format}; levels have no residuals in this release"));
            }
            if format.block != first.format.block {
                return wrong(format!("{format} has not the block size of {}", first.format));
            }
            if bytes >= before {
                return wrong(format!("{format} has {bytes} bytes a block, not fewer than the level before it"));
            }
            if *tokens == 0 || *tokens > 1 << 31 {
                return wrong(format!("{tokens} tokens at {format}; must be 1 to 2^31"));
            }
            before = bytes;
        }
        let blocks = |tokens: usize| tokens.div_ceil(first.format.block);
        let all = self.levels.iter().map(|level| blocks(level.tokens)).sum::<usize>();
        if all < blocks(self.max_tokens) {
            return wrong(format!("pages for {all} blocks at all levels, {} are wanted", blocks(self.max_tokens)));
        }
        let beside = [
            ("windows", self.windows.iter().any(Option::is_some)),
            ("spill", self.spill.is_some()),
            ("scales", self.scales.is_some()),
        ];
        match beside.into_iter().find(|(_, there)| *there) {
            Some((field, _)) => Err(Error::Config { field, why: "not beside levels in this release".to_owned() }),
            None => Ok(()),
        }
    }
}
