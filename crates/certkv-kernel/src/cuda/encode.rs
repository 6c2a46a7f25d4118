//! Arguments of the kernels that store and code rows, byte for byte as `kernels/append.cu`, `pack.cu` and `gather.cu` have them.
//! Addresses are those of the device.
use super::args::Strides;
use super::grouped::{halves as halves_of, table_words};
use certkv_core::{GroupCode, KeyFormat, RecordLayout, ValueFormat};

/// Threads of a CTA that appends or packs.
pub const PACK_THREADS: u32 = 256;

/// No slot, no row: an entry of a table that names nothing.
pub const NONE: u32 = u32::MAX;

/// What a word of `errors` of [`AppendArgs`] says: as `kernels/refused.cuh` has it.
pub mod append_error {
    /// An input was NaN or infinite.
    pub const NONFINITE: u32 = 1;
    /// An input was finite, and too large for the type of the originals.
    pub const ROUNDING: u32 = 2;
    /// The sequence has no tail, or its tables end before the block.
    pub const NO_PLACE: u32 = 4;
    const CAUSE_BITS: u32 = 3;
    const MOST: u32 = u32::MAX >> CAUSE_BITS;

    /// Of a token at `position` of its sequence. Of two words the larger is the earlier token's.
    pub const fn word(position: u32, causes: u32) -> u32 {
        (MOST - if position < MOST { position } else { MOST }) << CAUSE_BITS | causes
    }

    /// Position of the first token that was refused, and why; `None` where none was.
    pub const fn refused(word: u32) -> Option<(u32, u32)> {
        if word == 0 { None } else { Some((MOST - (word >> CAUSE_BITS), word & !(u32::MAX << CAUSE_BITS))) }
    }
}

/// Bits of `flags` of [`AppendArgs`].
pub mod append_flag {
    /// No launch that may still run when this one starts writes tables, lengths or the count: they are read before the launch ahead ends.
    pub const SETTLED: u32 = 1;
    /// Lengths and tails are by place in the batch, not by row: of every new token, where a sequence has several.
    pub const BY_PLACE: u32 = 2;
}

/// Arguments of `ckv_append`: one new token of every sequence of a batch, or several, all heads, one layer.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct AppendArgs {
    /// `[batch][kv_heads][dim]` of type `key_input`, by `key_strides`.
    pub keys: u64,
    /// The same of its own type and strides.
    pub values: u64,
    /// `u32`: sequences of the batch.
    pub count: u64,
    /// `u32[batch]`: row of each sequence; 0: its own number.
    pub rows: u64,
    /// `u32[rows]`, or by place: tokens before this one.
    pub lens: u64,
    /// `u32[rows]`: the [`append_error`] of the first token that was refused.
    pub errors: u64,
    /// `u32[rows]`, or by place: slot of the block that is written.
    pub tails: u64,
    /// Tail slots, `[kv_head][keys, values]` in fragment order.
    pub tail_base: u64,
    /// Bytes from a tail to the next.
    pub tail_stride: u64,
    /// As [`AttendArgs::row_norms`](super::args::AttendArgs::row_norms).
    pub row_norms: u64,
    /// `u32` that is set to 0: the count of a list that later launches fill; 0: none.
    pub clear: u64,
    /// Where the keys are; a token is a sequence's.
    pub key_strides: Strides,
    /// Where the values are.
    pub value_strides: Strides,
    /// Blocks that a sequence can have.
    pub blocks: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// [`Element`](super::args::Element) of the keys.
    pub key_input: u32,
    /// The same of the values.
    pub value_input: u32,
    /// Bits of [`append_flag`].
    pub flags: u32,
}

/// One full block of one KV head to be coded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PackItem {
    /// Keys, in the launch's order.
    pub keys: u64,
    /// Values.
    pub values: u64,
    /// `f32[dim]`: the head's value centre.
    pub centre: u64,
    /// The record.
    pub record: u64,
}

impl PackItem {
    /// Words of 64 bits.
    pub const WORDS: usize = size_of::<Self>() / 8;

    /// The item as words, for a staging buffer.
    pub const fn words(&self) -> [u64; Self::WORDS] {
        [self.keys, self.values, self.centre, self.record]
    }
}

/// Order of the originals that [`PackArgs`] names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Order {
    /// `[token][channel]`.
    Rows = 0,
    /// Fragment order.
    Fragment = 1,
}

/// Arguments of `ckv_pack`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct PackArgs {
    /// `PackItem[count]`.
    pub items: u64,
    /// `u32`.
    pub count: u64,
    /// `u32`: what could not be coded; 0: not wanted.
    pub status: u64,
    /// [`Order`].
    pub order: u32,
    /// With `metrics` or `reaches`: item `i` is of KV head `i % kv_heads`. At least 1.
    pub kv_heads: u32,
    /// `u32[kv_heads][metric_stride]`: what keys are coded in ([`metrics`](super::metrics)), of a variant that [needs them](super::Variant::is_calibrated); 0 for others.
    pub metrics: u64,
    /// `f32[kv_heads][2][dim / 16]`: what the fixed scales of sides with one scale per block and group reach, keys then values; 0: a block's own.
    pub reaches: u64,
    /// `u64`: elements beyond them are added; 0: not wanted.
    pub saturated: u64,
}

/// One piece that `ckv_gather` moves. Addresses and bytes are multiples of 16.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GatherItem {
    /// Mapped host memory, or the device's.
    pub from: u64,
    /// Device memory.
    pub to: u64,
    /// Bytes.
    pub bytes: u64,
    /// `u32` that becomes the launch's epoch when the piece is there; 0: not wanted.
    pub mark: u64,
}

/// Arguments of `ckv_gather`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct GatherArgs {
    /// `GatherItem[count]`.
    pub items: u64,
    /// `u32`.
    pub count: u64,
    /// What the marks become.
    pub epoch: u32,
    /// Zero.
    pub unused: u32,
}

/// `PACK_SHARED` of `kernels/pack.cuh`: bytes of dynamic shared memory of a CTA that codes records of `layout`.
pub fn pack_shared(layout: &RecordLayout) -> u32 {
    let (tokens, dim) = (layout.tokens(), layout.dim);
    let (key, value) = (layout.format.key, layout.format.value);
    let key_steps = match key {
        KeyFormat::F16 | KeyFormat::Bf16 => 0,
        KeyFormat::Channel { .. } => dim,
        KeyFormat::Gtq { code: GroupCode::Directions(tier) } => tokens * (dim / tier.group()),
        KeyFormat::Token { .. } | KeyFormat::Turbo { .. } | KeyFormat::Gtq { .. } => tokens * layout.key_slots(),
        KeyFormat::Page { .. } => dim / key.group(dim),
    };
    let value_steps = match value {
        ValueFormat::F16 | ValueFormat::Bf16 => 0,
        ValueFormat::Affine { .. } | ValueFormat::Turbo { .. } => tokens * (dim / value.group(dim)),
        ValueFormat::Channel { .. } => dim,
        ValueFormat::Page { .. } => dim / value.group(dim),
    };
    let originals = 2 * tokens * (dim + 8);
    let chunk = dim.min(4096 / tokens);
    let halves = if key.is_exact() && value.is_exact() { 0 } else { 2 * tokens * (chunk + 8) };
    let steps = key_steps.max(value_steps).next_multiple_of(2);
    let inverses = match key {
        _ if !layout.format.refine.is_none() => steps,
        KeyFormat::Channel { .. } => dim,
        _ => 0,
    };
    let (warps, errors, slots) = (8, 8 * chunk * (tokens + 1), 8 * 4);
    // Of keys of several widths what they are.
    let table = if halves_of(layout) > 0 { 4 * (table_words(dim) - 2 * dim) } else { 0 };
    (originals + errors + halves + 8 * dim + 8 * inverses + 12 * steps + slots * warps + 4 * 2 * warps + table) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use certkv_core::Geometry;

    #[test]
    fn structs_have_the_sizes_of_their_twins() {
        assert_eq!(size_of::<AppendArgs>(), 11 * 8 + 9 * 4 + 4);
        assert_eq!(size_of::<PackItem>(), 4 * 8);
        assert_eq!(size_of::<PackArgs>(), 6 * 8 + 2 * 4);
        assert_eq!(size_of::<GatherItem>(), 4 * 8);
        assert_eq!(size_of::<GatherArgs>(), 2 * 8 + 2 * 4);
    }

    #[test]
    fn packing_fits_the_shared_memory_of_every_gpu() {
        for dim in [64, 96, 128, 256] {
            for text in
                ["k8-v4g32-b32", "k8-v4g64-b64", "k8-v4g64-b64-r5.4", "t4-v3g32-b64", "f16-f16-b16", "gtq3-v4g32-b64"]
            {
                let geometry = Geometry::new(1, 1, 1, dim).unwrap();
                let Ok(layout) = RecordLayout::new(&geometry, text.parse().unwrap()) else { continue };
                // The decode kernel does not refine heads of more channels.
                if dim > 128 && !layout.format.refine.is_none() {
                    continue;
                }
                // Two CTAs to a multiprocessor, as the launch bounds say.
                assert!(2 * pack_shared(&layout) as usize <= 226 * 1024, "{text} {dim}");
                assert!(pack_shared(&layout) as usize <= 98 * 1024, "{text} {dim}");
            }
        }
    }
}
