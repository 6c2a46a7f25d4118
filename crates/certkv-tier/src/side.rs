//! Sides of blocks: what Tier-0 caches and what a promotion asks for.
use certkv_core::hash::splitmix64;
use certkv_core::{LayerId, PageId};
use core::fmt;
use core::hash::{BuildHasher, Hasher};

/// Keys or values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// The key rows of a block.
    Key,
    /// The value rows of a block.
    Value,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key => "key",
            Self::Value => "value",
        })
    }
}

/// One side of one block of one KV head. The page's generation is part of the name: a reused page is another key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SideKey {
    /// Host page that holds the block's originals.
    pub page: PageId,
    /// Layer within the page's KV group.
    pub layer: u32,
    /// Key/value head.
    pub kv_head: u32,
    /// Keys or values.
    pub side: Side,
}

impl SideKey {
    /// The key of a layer index as the engine counts it.
    pub fn new(page: PageId, layer: LayerId, kv_head: usize, side: Side) -> Self {
        Self { page, layer: layer as u32, kv_head: kv_head as u32, side }
    }
}

/// Hashes small integer keys that no client chooses: one splitmix64 step per field.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mix(u64);

impl BuildHasher for Mix {
    type Hasher = Mix;
    fn build_hasher(&self) -> Mix {
        Mix(0)
    }
}

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u64(u64::from(b)));
    }
    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = splitmix64(self.0 ^ n);
    }
    fn write_isize(&mut self, n: isize) {
        self.write_u64(n as u64);
    }
}
