//! Byte layout of a host page and of a tail page: the one place that knows it.
//!
//! Per layer of the KV group, per KV head: the key rows `[block][head_dim]`, then the value rows `[block][head_dim]`,
//! 16 bits an element.
use crate::side::Side;
use core::fmt;
use core::ops::Range;

/// Bytes of an element of an original.
const ELEMENT: usize = 2;

/// A layout that is empty or does not fit the address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayoutError {
    /// The layout asked for: layers, KV heads, block, head dimension.
    pub asked: [usize; 4],
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [layers, heads, block, dim] = self.asked;
        write!(f, "page of {layers} layers x {heads} KV heads x {block} tokens x {dim} channels is empty or too large")
    }
}
impl std::error::Error for LayoutError {}

/// Shape of one block's originals in all layers of a KV group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OriginalLayout {
    layers: usize,
    kv_heads: usize,
    block: usize,
    head_dim: usize,
}

impl OriginalLayout {
    /// `block` tokens of `kv_heads` heads of `head_dim` channels in `layers` layers.
    ///
    /// # Errors
    /// [`LayoutError`] if a factor is 0 or the page exceeds the address space.
    pub fn new(layers: usize, kv_heads: usize, block: usize, head_dim: usize) -> Result<Self, LayoutError> {
        let asked = [layers, kv_heads, block, head_dim];
        let bytes = asked.iter().try_fold(2 * ELEMENT, |n: usize, &f| n.checked_mul(f));
        match bytes {
            Some(n) if n > 0 && n <= isize::MAX as usize => Ok(Self { layers, kv_heads, block, head_dim }),
            _ => Err(LayoutError { asked }),
        }
    }

    /// Layers of the group.
    pub const fn layers(&self) -> usize {
        self.layers
    }

    /// Key/value heads per layer.
    pub const fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// Tokens per block.
    pub const fn block(&self) -> usize {
        self.block
    }

    /// Channels per head.
    pub const fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Bytes of one token's row of one side.
    pub const fn row_bytes(&self) -> usize {
        self.head_dim * ELEMENT
    }

    /// Bytes of one side of one head: what a scratch slot holds.
    pub const fn side_bytes(&self) -> usize {
        self.block * self.row_bytes()
    }

    /// Sides of one layer: keys and values of every head.
    pub const fn sides(&self) -> usize {
        2 * self.kv_heads
    }

    /// Bytes of one layer.
    pub const fn layer_bytes(&self) -> usize {
        self.sides() * self.side_bytes()
    }

    /// Bytes of a page.
    pub const fn page_bytes(&self) -> usize {
        self.layers * self.layer_bytes()
    }

    /// Bytes of one side of head `head` in layer `layer` of the group. Indices past the end give a range past the page,
    /// which every slice and copy refuses.
    pub const fn range(&self, layer: usize, head: usize, side: Side) -> Range<usize> {
        let start = self.start(layer, head, side);
        start..start.saturating_add(self.side_bytes())
    }

    /// Bytes of rows `rows` of a side. Rows past the block give a range past the page.
    pub const fn row_range(&self, layer: usize, head: usize, side: Side, rows: Range<usize>) -> Range<usize> {
        if rows.end > self.block || rows.start > rows.end {
            return usize::MAX..usize::MAX;
        }
        let start = self.start(layer, head, side);
        start.saturating_add(rows.start * self.row_bytes())..start.saturating_add(rows.end * self.row_bytes())
    }

    /// As [`OriginalLayout::range`], in 16-bit words.
    pub const fn words(&self, layer: usize, head: usize, side: Side) -> Range<usize> {
        let bytes = self.range(layer, head, side);
        bytes.start / ELEMENT..bytes.end / ELEMENT
    }

    /// As [`OriginalLayout::row_range`], in 16-bit words.
    pub const fn row_words(&self, layer: usize, head: usize, side: Side, rows: Range<usize>) -> Range<usize> {
        let bytes = self.row_range(layer, head, side, rows);
        bytes.start / ELEMENT..bytes.end / ELEMENT
    }

    const fn start(&self, layer: usize, head: usize, side: Side) -> usize {
        if layer >= self.layers || head >= self.kv_heads {
            return usize::MAX;
        }
        let second = match side {
            Side::Key => 0,
            Side::Value => 1,
        };
        layer * self.layer_bytes() + (2 * head + second) * self.side_bytes()
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sides_tile_the_page_and_rows_tile_the_side(
            layers in 1..5usize, heads in 1..5usize, block in 1..70usize, dim in 1..300usize, cut in 0..70usize,
        ) {
            let layout = OriginalLayout::new(layers, heads, block, dim).unwrap();
            let cut = cut.min(block);
            let mut next = 0;
            for layer in 0..layers {
                for head in 0..heads {
                    for side in [Side::Key, Side::Value] {
                        let range = layout.range(layer, head, side);
                        prop_assert_eq!(range.start, next);
                        let (low, high) = (
                            layout.row_range(layer, head, side, 0..cut),
                            layout.row_range(layer, head, side, cut..block),
                        );
                        prop_assert_eq!((low.start, low.end, high.end), (range.start, high.start, range.end));
                        prop_assert_eq!(layout.words(layer, head, side), range.start / 2..range.end / 2);
                        next = range.end;
                    }
                }
            }
            prop_assert_eq!(next, layout.page_bytes());
        }
    }

    #[test]
    fn keys_come_before_values_of_each_head() {
        let layout = OriginalLayout::new(2, 3, 16, 64).unwrap();
        assert_eq!(layout.range(0, 0, Side::Value), 2048..4096);
        assert_eq!(layout.range(1, 2, Side::Key), 6 * 2048 + 4 * 2048..6 * 2048 + 5 * 2048);
        assert_eq!(layout.row_range(0, 1, Side::Key, 3..5), 4096 + 3 * 128..4096 + 5 * 128);
    }

    #[test]
    fn what_lies_outside_is_outside() {
        let layout = OriginalLayout::new(2, 3, 16, 64).unwrap();
        for range in [layout.range(2, 0, Side::Key), layout.range(0, 3, Side::Key)] {
            assert!(range.end > layout.page_bytes());
        }
        assert!(layout.row_range(0, 0, Side::Key, 15..17).start > layout.page_bytes());
        for [a, b, c, d] in [[0, 1, 16, 64], [1, 0, 16, 64], [1, 1, 0, 64], [1, 1, 16, 0], [usize::MAX, 2, 16, 64]] {
            assert_eq!(OriginalLayout::new(a, b, c, d), Err(LayoutError { asked: [a, b, c, d] }));
        }
    }
}
