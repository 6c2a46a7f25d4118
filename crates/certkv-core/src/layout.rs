//! The one description of a record's bytes.
//!
//! A record holds one block (B tokens) of one KV head in the order in which the kernel reads it: key codes, key scales,
//! value codes, value scales, error summary; that is the *main part*, which every pass reads. A refinable format has the
//! summary of the refined block behind the error summary, in the same section, and two more sections after the main part,
//! which a pass reads only where weights ask for it: key residuals, value residuals. Sections start at multiples of 64 bytes.
//!
//! **Element order.** Key codes: for each tile of 16 tokens, for each quad of 4 channels, for each of the 16 tokens, the
//! 4 channels; so 64 consecutive codes are 16 tokens x 4 channels. Value codes: for each quad of 4 tokens, for each
//! channel, the 4 tokens; so 64 consecutive codes are 16 channels x 4 tokens. Codes are stored unsigned
//! (`code + 2^(bits-1)` for signed ones). Uncoded sides are row-major `[token][channel]`, 16 bit.
//!
//! **Bit planes.** A `b`-bit code is cut into planes of 8, 4, 2 and 1 bits (the binary digits of `b`, widest first; the
//! widest plane holds the *high* bits). With `N` codes, a plane of width `w` takes `N w / 8` bytes and is cut into `8/w`
//! equal segments: byte `i` holds element `i` of segment `j` in bits `w j .. w (j+1)`. So an 8-bit plane is the codes
//! themselves, and the low nibbles of a 4-bit plane are the first half of the elements. Floating-point codes are a byte each and
//! lie row-major, `[token][channel]`, as uncoded sides do.
//!
//! **Residuals**, math.md (2.23): `r + 2^(bits-1)` for every element, in the element order and the bit planes of the codes of
//! their side.
//!
//! **Block-GTQ.** Keys are in the order of (2.18), and each group of one width has codes of its own, element order and bit planes as if
//! its channels were the head; groups follow each other. A tile of [`crate::tiles::gtq_tile`] channels, of which a group is a
//! multiple, fills whole lines of every plane.
//!
//! **Spherical keys.** A byte for the radius of each group and token, `[group][token]`, then the indices of the directions in the same
//! order, as bit planes.
//!
//! **Scales.** Per-channel keys: `sigma[d]`, then `z[d]`, in the format's metadata type. Per-token keys:
//! `scale[group][token]`, f16. Values: `sigma[group][token]`, then `z[group][token]`, f16; per channel `sigma, z` by turns, `[d]`, f16. TurboQuant, either side:
//! `radius[token]`, f16; Block-GTQ keys `radius[group][token]`, those of groups that a head lacks 0. One scale per block, either
//! side, and spherical keys: `scale[group]`, f16.
use crate::summary::{REFINED_SUMMARY_BYTES, SUMMARY_BYTES};
use crate::{Dtype, Format, Geometry, GroupCode, KeyFormat, ValueFormat};
use core::ops::Range;

/// Alignment of every section and of the record.
pub const ALIGN: usize = 64;

/// Rounds `n` up to a multiple of [`ALIGN`].
pub const fn align(n: usize) -> usize {
    n.div_ceil(ALIGN) * ALIGN
}

/// One bit plane of a code array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plane {
    /// Bits of the code held here: 8, 4, 2 or 1.
    pub width: usize,
    /// How far the plane's bits are shifted left inside the code.
    pub shift: usize,
    /// First byte, relative to the start of the code section.
    pub offset: usize,
    /// Bytes of the plane, `N width / 8`.
    pub bytes: usize,
}

/// The planes of `count` codes of `bits` bits, widest first. `count` must be a multiple of 8.
pub fn planes(bits: usize, count: usize) -> impl Iterator<Item = Plane> + Clone {
    let mut offset = 0;
    let mut left = bits;
    [8, 4, 2, 1].into_iter().filter(move |w| bits & w != 0).map(move |width| {
        left -= width;
        let plane = Plane { width, shift: left, offset, bytes: count * width / 8 };
        offset += plane.bytes;
        plane
    })
}

/// Index of key element (`token`, `channel`) in the code order, `dim` channels per head.
#[inline]
pub const fn key_index(token: usize, channel: usize, dim: usize) -> usize {
    (token / 16) * 16 * dim + (channel / 4) * 64 + (token % 16) * 4 + channel % 4
}

/// Index of value element (`token`, `channel`) in the code order, `dim` channels per head.
#[inline]
pub const fn value_index(token: usize, channel: usize, dim: usize) -> usize {
    (token / 4) * 4 * dim + channel * 4 + token % 4
}

/// Index of an element (`token`, `channel`) of a side that lies row-major, `dim` channels per head.
#[inline]
pub const fn row_index(token: usize, channel: usize, dim: usize) -> usize {
    token * dim + channel
}

/// Code `index` out of the planes in `section`. Out-of-range reads give 0 bits.
#[inline]
pub fn read_code(section: &[u8], bits: usize, count: usize, index: usize) -> u8 {
    planes(bits, count).fold(0, |code, p| {
        let (segment, byte) = (index / p.bytes, index % p.bytes);
        let raw = section.get(p.offset + byte).copied().unwrap_or(0);
        let part = u16::from(raw) >> (p.width * segment) & ((1 << p.width) - 1);
        code | (part << p.shift) as u8
    })
}

/// Writes code `index` into planes that were zero before. Out-of-range writes are dropped.
#[inline]
pub fn write_code(section: &mut [u8], bits: usize, count: usize, index: usize, code: u8) {
    for p in planes(bits, count) {
        let (segment, byte) = (index / p.bytes, index % p.bytes);
        let part = (u16::from(code) >> p.shift) & ((1 << p.width) - 1);
        if let Some(slot) = section.get_mut(p.offset + byte) {
            *slot |= (part << (p.width * segment)) as u8;
        }
    }
}

/// Byte ranges of one record. Built by [`RecordLayout::new`]; all ranges lie inside `0..bytes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordLayout {
    /// The format laid out.
    pub format: Format,
    /// Channels per head.
    pub dim: usize,
    /// Type of uncoded sides, originals and tails.
    pub store: Dtype,
    /// Key codes (bit planes), or the 16-bit keys themselves.
    pub key_codes: Range<usize>,
    /// Key scales: `sigma[d], z[d]` per channel, or `scale[group][token]`, or `radius[group][token]`, or `scale[group]`; empty for
    /// uncoded keys.
    pub key_scales: Range<usize>,
    /// Value codes (bit planes), or the 16-bit values themselves.
    pub value_codes: Range<usize>,
    /// Value scales `sigma[group][token]`, then `z[group][token]`, or `sigma, z` of each channel, or `radius[token]`, or `scale[group]`;
    /// empty for uncoded values.
    pub value_scales: Range<usize>,
    /// Error summary; of a refinable format, the summary of the refined block follows in the same section.
    pub summary: Range<usize>,
    /// Key residuals (bit planes); empty without refinement.
    pub key_residuals: Range<usize>,
    /// Value residuals (bit planes); empty without refinement.
    pub value_residuals: Range<usize>,
    /// Bytes of the main part, from the record's start, that every pass reads; a multiple of [`ALIGN`].
    pub main_bytes: usize,
    /// Bytes of the record, a multiple of [`ALIGN`]: `main_bytes` and the residuals.
    pub bytes: usize,
}

impl RecordLayout {
    /// Lays out one block of one KV head.
    ///
    /// # Errors
    /// [`crate::FormatError`] if the format does not fit the geometry.
    pub fn new(geometry: &Geometry, format: Format) -> Result<Self, crate::FormatError> {
        let (dim, store) = (geometry.head_dim, geometry.store);
        let format = format.validated(dim, store)?;
        let tokens = format.block;
        let count = tokens * dim;
        let key_scales = match format.key {
            KeyFormat::F16 | KeyFormat::Bf16 => 0,
            KeyFormat::Channel { meta, .. } => 2 * dim * meta.bytes(),
            KeyFormat::Gtq { code: GroupCode::Directions(_) } | KeyFormat::Page { .. } => {
                dim / format.key.group(dim) * 2
            }
            KeyFormat::Token { .. } | KeyFormat::Turbo { .. } | KeyFormat::Gtq { .. } => {
                2 * tokens * format.key.scales(dim, tokens)
            }
        };
        let value_scales = match format.value {
            ValueFormat::F16 | ValueFormat::Bf16 => 0,
            ValueFormat::Affine { .. } => 2 * tokens * (dim / format.value.group(dim)) * 2,
            ValueFormat::Channel { .. } => 2 * dim * 2,
            ValueFormat::Turbo { .. } => tokens * 2,
            ValueFormat::Page { .. } => dim / format.value.group(dim) * 2,
        };
        let mut at = 0;
        let mut section = |bytes: usize| {
            let range = at..at + bytes;
            at = align(range.end);
            range
        };
        let key_codes = section(format.key.code_bytes(count));
        let key_scales = section(key_scales);
        let value_codes = section(count * format.value.bits() / 8);
        let value_scales = section(value_scales);
        let refined = if format.refine.is_none() { 0 } else { REFINED_SUMMARY_BYTES };
        let summary = section(SUMMARY_BYTES + refined);
        let key_residuals = section(count * format.refine.key as usize / 8);
        let value_residuals = section(count * format.refine.value as usize / 8);
        Ok(Self {
            format,
            dim,
            store,
            key_codes,
            key_scales,
            value_codes,
            value_scales,
            summary,
            main_bytes: key_residuals.start,
            key_residuals,
            value_residuals,
            bytes: at,
        })
    }

    /// Tokens per block.
    pub const fn tokens(&self) -> usize {
        self.format.block
    }

    /// Codes per side: tokens times channels.
    pub const fn count(&self) -> usize {
        self.format.block * self.dim
    }

    /// Bytes of one side (keys or values) of a block as 16-bit originals.
    pub const fn original_side_bytes(&self) -> usize {
        2 * self.format.block * self.dim
    }

    /// Scales of one token among the key scales, of formats that have scales per token.
    pub const fn key_slots(&self) -> usize {
        self.format.key.scales(self.dim, self.format.block)
    }

    /// Bytes the pass reads for the key side from the record: codes and scales.
    pub fn key_bytes(&self) -> usize {
        self.key_codes.len() + self.key_scales.len()
    }

    /// Bytes the pass reads for the value side from the record: codes and scales.
    pub fn value_bytes(&self) -> usize {
        self.value_codes.len() + self.value_scales.len()
    }

    /// The layout's own arithmetic, math.md section 10: codes, scales, summaries and residuals, without alignment, per block.
    pub fn net_bytes(&self) -> usize {
        let residuals = self.key_residuals.len() + self.value_residuals.len();
        self.key_bytes() + self.value_bytes() + self.summary.len() + residuals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(format: &str, dim: usize) -> RecordLayout {
        RecordLayout::new(&Geometry::new(1, 4, 1, dim).unwrap(), format.parse().unwrap()).unwrap()
    }

    #[test]
    fn sections_tile_the_record_without_overlap() {
        for dim in crate::geometry::HEAD_DIMS {
            for text in [
                "k8-v4g32-b32",
                "k8f32-v6g16-b16",
                "t4-v3g32-b64",
                "f16-v8g32-b16",
                "f16-f16-b64",
                "t5g32-v7g16-b16",
                "tq3-tq5-b32",
                "gtq3-tq5-b32",
                "gtq2-v4g32-b16",
                "gtq5.5-tq3-b64",
                "s1-tq3-b64",
                "s2-v4g32-b32",
                "s3-f16-b16",
                "e4m3-p4g32-b16",
                "p3g16-e5m2g32-b64",
                "k8-v4g32-b64-r5.4",
                "k8-v2g16-b16-r1.7",
                "k8-c4-b64",
                "tq3-c5-b16",
                "k8-c4-b64-r8.4",
                "k0-c0-b64",
                "k0-v4g32-b16",
            ] {
                let l = layout(text, dim);
                let mut end = 0;
                let main = [&l.key_codes, &l.key_scales, &l.value_codes, &l.value_scales, &l.summary];
                for (i, r) in main.into_iter().chain([&l.key_residuals, &l.value_residuals]).enumerate() {
                    assert_eq!(r.start % ALIGN, 0);
                    assert!(r.start >= end && r.start - end < ALIGN);
                    assert_eq!(r.start >= l.main_bytes, i >= 5, "{text}");
                    end = r.end;
                }
                assert!(l.bytes >= end && l.bytes - end < ALIGN && l.bytes.is_multiple_of(ALIGN));
                // The summary has a line that it does not fill, and so have the scales of a whole block and few radii.
                let short = usize::from(l.format.key.page().is_some() || matches!(l.format.key, KeyFormat::Gtq { .. }))
                    + usize::from(l.format.value.page().is_some());
                let most = l.net_bytes() as f64 * 1.01 + (ALIGN * (1 + short)) as f64;
                assert!(l.bytes as f64 <= most, "{text} {dim}");
            }
        }
    }

    #[test]
    fn the_default_formats_cost_what_the_table_says() {
        // math.md section 10: K8 with f16 scales and 32 tokens 144 bytes a token, V4 g32 80, summary 1.
        assert_eq!(layout("k8-v4g32-b32", 128).bytes, (144 + 80 + 1) * 32 + 32);
        assert_eq!(layout("k8-v6g64-b64", 128).net_bytes(), (136 + 104) * 64 + 32);
        // A scale and an offset a channel, and no codes.
        assert_eq!(layout("k0-c0-b64", 128).net_bytes(), 2 * 4 * 128 + 32);
        assert!(layout("k0-c0-b64", 128).bytes <= 17 * 64);
        // A scale and an offset a channel are, in blocks of 64, those of two groups a token.
        assert_eq!(layout("k8-c4-b64", 128).bytes, layout("k8-v4g64-b64", 128).bytes);
        // TurboQuant: 4 bits and a radius of 2 bytes a side.
        assert_eq!(layout("tq4-tq4-b64", 128).net_bytes(), (66 + 66) * 64 + 32);
        // A byte a channel, and of scales and summaries less than two bytes a token.
        assert!(layout("e4m3-e4m3-b64", 128).bytes <= 259 * 64);
        assert!(layout("tq4-tq4-b64", 128).bytes <= 136 * 64 && layout("tq3-tq3-b64", 128).bytes <= 104 * 64);
        // Block-GTQ: radii of six widths at 3 bits, of four at 2.
        assert_eq!(layout("gtq3-tq3-b64", 128).net_bytes(), (48 + 12 + 50) * 64 + 32);
        assert_eq!(layout("gtq2-tq2-b64", 128).net_bytes(), (32 + 8 + 34) * 64 + 32);
        assert_eq!(layout("gtq2.5-tq2-b64", 128).net_bytes(), (40 + 10 + 34) * 64 + 32);
        assert!(layout("gtq3-tq3-b64", 128).bytes <= 112 * 64);
        // Spherical: 112, 96 and 44 bits of codes a token, 8 or 4 scales a block; with half of the summary at most 15 bytes a token.
        for (format, bits, scales) in [("s1-tq3-b64", 112, 8), ("s2-tq3-b64", 96, 8), ("s3-tq3-b64", 44, 4)] {
            let l = layout(format, 128);
            assert_eq!((l.key_codes.len(), l.key_scales.len()), (bits * 8, 2 * scales), "{format}");
            assert!(l.key_bytes() + l.summary.len() / 2 <= 15 * 64);
            assert_eq!(l.net_bytes(), bits * 8 + 50 * 64 + 2 * scales + 32);
        }
    }

    #[test]
    fn residuals_leave_the_main_part_as_it_was() {
        for dim in crate::geometry::HEAD_DIMS {
            for (text, key, value) in [("k8-v4g32-b64", 5, 4), ("k8f32-v6g16-b16", 1, 8), ("k8bf16-v2g32-b32", 8, 1)] {
                let (old, l) = (layout(text, dim), layout(&format!("{text}-r{key}.{value}"), dim));
                assert_eq!((old.main_bytes, old.key_residuals.len(), old.value_residuals.len()), (old.bytes, 0, 0));
                // The longer summary fits the space that alignment leaves anyway.
                assert_eq!((l.main_bytes, l.summary.start), (old.bytes, old.summary.start));
                assert_eq!(l.summary.len(), SUMMARY_BYTES + REFINED_SUMMARY_BYTES);
                assert_eq!(l.value_scales, old.value_scales);
                let residuals = l.count() * (key + value) / 8;
                assert_eq!((l.bytes, l.net_bytes()), (old.bytes + residuals, old.net_bytes() + 16 + residuals));
                assert_eq!(
                    (l.key_residuals.len(), l.value_residuals.len()),
                    (l.count() * key / 8, l.count() * value / 8)
                );
            }
        }
    }

    #[test]
    fn codes_of_every_width_round_trip_in_both_orders() {
        for dim in [64, 96] {
            for bits in 1..=8usize {
                let count = 16 * dim;
                let mut section = vec![0; count * bits / 8];
                let code = |i: usize| (crate::hash::splitmix64(i as u64) & ((1 << bits) - 1)) as u8;
                let mut seen = vec![false; 2 * count];
                for t in 0..16 {
                    for c in 0..dim {
                        let (k, v) = (key_index(t, c, dim), value_index(t, c, dim));
                        assert!(!std::mem::replace(&mut seen[k], true), "key order visits {k} twice");
                        assert!(!std::mem::replace(&mut seen[count + v], true), "value order visits {v} twice");
                        write_code(&mut section, bits, count, k, code(k));
                    }
                }
                assert!((0..count).all(|i| read_code(&section, bits, count, i) == code(i)), "{bits} bits");
            }
        }
    }
}
