//! Fragment order: the order of codes in a record on a GPU, that of the registers of a matrix product.
//!
//! A record on the device has the sections, offsets, scales, summary and codes of [`crate::layout`]; only the order of the
//! codes inside the two code sections differs, and of the residuals inside theirs: a residual lies where a code of its width
//! would. Codes lie in *units* of 16 tokens x 32 channels. A unit gives each of the
//! 32 lanes of a warp 16 codes, in 8 pairs: the two codes of a pair are neighbours along the summed axis (channels for
//! keys, tokens for values) and go into the two halves of one register of an m16n8k16 product.
//!
//! In a plane of width `w` a lane's 16 codes of unit `u` are the `2 w` bytes at `64 w u + 2 w lane`. Read as little-endian
//! words of 32 bits (16 bits where `w = 1`), `16 / w` pairs share a word (8 where `w = 1`): pair `i` of a word lies at bits
//! `w i` and `w i + 16` (`w i + 8`). So a shift and a mask give the two codes of a pair, each at the bottom of its half.
//!
//! Codes that stand for levels (TurboQuant, Block-GTQ), up to 4 bits, are looked up four at a time, by the nibbles of a selector, so their planes are cut otherwise: of a lane's
//! codes `8 h + n`, `n` from 0 to 7, the ones of a plane of 4 bits are nibble `n` of word `h`; of 2 bits, bits `4 n + 2 h` of the word; of 1 bit, bit `4 (n % 4) + 2 h + n / 4` of 16. See
//! [`level_position`]. Those of 5 and 6 bits lie as other codes do, but with the lower four bits of the magnitude in the plane of 4 bits and what is above them in the other.
//!
//! Uncoded sides, open blocks and promoted sides are held alike, 16 bits to an element: the 32 bytes of a lane at
//! `1024 u + 32 lane`, see [`original_index`].
//!
//! Block-GTQ keys have an order of their own, [`grouped_place`], and so have spherical ones, [`direction_place`].
use crate::{
    KeyFormat, PageCode, RecordLayout, ValueFormat,
    layout::{self, Plane, key_index, planes, row_index, value_index},
};
use core::{fmt, ops::Range};

mod directions;
mod grouped;
pub use directions::direction_place;
pub use grouped::{Run, from_fragment_in, grouped_place, to_fragment_in};

/// Tokens of a unit.
pub const UNIT_TOKENS: usize = 16;
/// Channels of a unit.
pub const UNIT_CHANNELS: usize = 32;

/// Where a code is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Unit, counted along the channels first.
    pub unit: usize,
    /// Lane of the warp, 0 to 31.
    pub lane: usize,
    /// Pair of the lane, 0 to 7.
    pub pair: usize,
    /// Half of the pair, 0 or 1.
    pub el: usize,
}

const fn unit(token: usize, channel: usize, dim: usize) -> usize {
    (token / UNIT_TOKENS) * (dim / UNIT_CHANNELS) + channel / UNIT_CHANNELS
}

/// Place of key element (`token`, `channel`), `dim` channels per head.
#[inline]
pub const fn key_place(token: usize, channel: usize, dim: usize) -> Place {
    let (half, w) = ((token / 8) % 2, channel % 8);
    Place {
        unit: unit(token, channel, dim),
        lane: (token % 8) * 4 + (channel % UNIT_CHANNELS) / 8,
        pair: (w / 4) * 4 + ((w % 4) / 2) * 2 + half,
        el: w % 2,
    }
}

/// Place of value element (`token`, `channel`), `dim` channels per head.
#[inline]
pub const fn value_place(token: usize, channel: usize, dim: usize) -> Place {
    let (row, k, half) = (channel % 16, token % UNIT_TOKENS, (channel % UNIT_CHANNELS) / 16);
    Place {
        unit: unit(token, channel, dim),
        lane: (row % 8) * 4 + (k % 8) / 2,
        pair: half * 4 + (k / 8) * 2 + row / 8,
        el: k % 2,
    }
}

/// Where 16-bit element (`token`, `channel`) of a side in fragment order lies, in elements; `keys` says which side.
#[inline]
pub const fn original_index(token: usize, channel: usize, dim: usize, keys: bool) -> usize {
    let p = if keys { key_place(token, channel, dim) } else { value_place(token, channel, dim) };
    (p.unit * 32 + p.lane) * 16 + p.pair * 2 + p.el
}

/// Byte inside a plane of `width` bits, and the shift inside that byte, of the code at `place`.
#[inline]
pub const fn bit_position(width: usize, place: Place) -> (usize, usize) {
    // Words of 32 bits hold two 16-bit halves; a lane's 16 one-bit codes fill only one word of 16.
    let (half, per_word) = if width == 1 { (8, 8) } else { (16, 16 / width) };
    let bit = (place.pair / per_word) * 2 * half + place.el * half + width * (place.pair % per_word);
    (place.unit * 64 * width + place.lane * 2 * width + bit / 8, bit % 8)
}

/// The same of codes that stand for levels, of up to 4 bits a plane.
#[inline]
pub const fn level_position(width: usize, place: Place) -> (usize, usize) {
    let (half, n) = (place.pair / 4, place.pair % 4 * 2 + place.el);
    let bit = match width {
        4 => 32 * half + 4 * n,
        2 => 4 * n + 2 * half,
        _ => n % 4 * 4 + 2 * half + n / 4,
    };
    (place.unit * 64 * width + place.lane * 2 * width + bit / 8, bit % 8)
}

/// The code at `place` out of the planes of `count` codes in `section`. Out-of-range reads give 0 bits.
#[inline]
pub fn read_code(section: &[u8], bits: usize, count: usize, place: Place) -> u8 {
    read_at(section, bits, count, (place, Cut::Bits))
}

/// Writes the code at `place` into planes that were zero before. Out-of-range writes are dropped.
#[inline]
pub fn write_code(section: &mut [u8], bits: usize, count: usize, place: Place, code: u8) {
    write_at(section, bits, count, (place, Cut::Bits), code);
}

/// Where a plane of some width has a place.
type Position = fn(usize, Place) -> (usize, usize);

/// How codes lie in a section: as what they are, or as selectors of the levels that they stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    Bits,
    Levels,
}

impl Cut {
    /// The planes of `count` codes: of more than 4 bits, a sign above a magnitude, a look-up begins with the magnitude's lower four.
    fn planes(self, bits: usize, count: usize) -> impl Iterator<Item = Plane> {
        let low = (self == Self::Levels && bits > 4).then(|| {
            let (wide, rest) = (count / 2, count * bits.saturating_sub(4) / 8);
            let low = Plane { width: 4, shift: 0, offset: 0, bytes: wide };
            [low, Plane { width: bits - 4, shift: 4, offset: wide, bytes: rest }]
        });
        planes(if low.is_some() { 0 } else { bits }, count).chain(low.into_iter().flatten())
    }

    /// Where one of them has a place.
    fn position(self, bits: usize) -> Position {
        if self == Self::Levels && bits <= 4 { level_position } else { bit_position }
    }
}

fn read_at(section: &[u8], bits: usize, count: usize, (place, cut): (Place, Cut)) -> u8 {
    let position = cut.position(bits);
    cut.planes(bits, count).fold(0, |code, p| {
        let (byte, shift) = position(p.width, place);
        let raw = section.get(p.offset + byte).copied().unwrap_or(0);
        let part = u16::from(raw) >> shift & ((1 << p.width) - 1);
        code | (part << p.shift) as u8
    })
}

fn write_at(section: &mut [u8], bits: usize, count: usize, (place, cut): (Place, Cut), code: u8) {
    let position = cut.position(bits);
    for p in cut.planes(bits, count) {
        let (byte, shift) = position(p.width, place);
        let part = (u16::from(code) >> p.shift) & ((1 << p.width) - 1);
        if let Some(slot) = section.get_mut(p.offset + byte) {
            *slot |= (part << shift) as u8;
        }
    }
}

/// A buffer that does not have the size of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordSize {
    /// Bytes of the layout's record.
    pub expected: usize,
    /// Bytes given.
    pub found: usize,
}

impl fmt::Display for RecordSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record of {} bytes where the layout has {}", self.found, self.expected)
    }
}
impl std::error::Error for RecordSize {}

/// Puts `rows`, `[token][dim]`, into `side`, a side of 16-bit originals in fragment order, starting at token 0; the places of
/// other tokens are left alone. Elements that do not fit are dropped.
pub fn put_rows(rows: &[u16], dim: usize, keys: bool, side: &mut [u16]) {
    for (token, row) in rows.chunks_exact(dim).enumerate() {
        for (channel, word) in row.iter().enumerate() {
            if let Some(slot) = side.get_mut(original_index(token, channel, dim, keys)) {
                *slot = *word;
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Towards {
    Fragment,
    Line,
}

/// Rewrites the codes, residuals and uncoded sides of a record of the line order of [`crate::layout`] in fragment order; scales and
/// summary are copied, and so are keys of unlike widths, which are for [`to_fragment_in`].
///
/// # Errors
/// [`RecordSize`] if `record` or `out` has not `layout.bytes` bytes.
pub fn to_fragment(layout: &RecordLayout, record: &[u8], out: &mut [u8]) -> Result<(), RecordSize> {
    convert(layout, record, out, Towards::Fragment)
}

/// The inverse of [`to_fragment`].
///
/// # Errors
/// As [`to_fragment`].
pub fn from_fragment(layout: &RecordLayout, record: &[u8], out: &mut [u8]) -> Result<(), RecordSize> {
    convert(layout, record, out, Towards::Line)
}

fn convert(layout: &RecordLayout, record: &[u8], out: &mut [u8], to: Towards) -> Result<(), RecordSize> {
    for found in [record.len(), out.len()] {
        if found != layout.bytes {
            return Err(RecordSize { expected: layout.bytes, found });
        }
    }
    out.copy_from_slice(record);
    let format = &layout.format;
    let float = |page: Option<PageCode>| page.is_some_and(PageCode::is_float);
    let of = |levels: bool| if levels { Cut::Levels } else { Cut::Bits };
    let key: Mapping = (
        if float(format.key.page()) { row_index } else { key_index },
        key_place,
        of(matches!(format.key, KeyFormat::Turbo { .. })),
    );
    let value: Mapping = (
        if float(format.value.page()) { row_index } else { value_index },
        value_place,
        of(matches!(format.value, ValueFormat::Turbo { .. })),
    );
    if format.key.is_exact() {
        move_words(layout, &layout.key_codes, true, (record, &mut *out), to);
    } else if let Some(tier) = format.key.tier() {
        directions::convert(layout, tier, (record, &mut *out), to);
    } else if !matches!(format.key, KeyFormat::Gtq { .. }) {
        reorder(layout, &layout.key_codes, format.key.bits(), key, (record, &mut *out), to);
    }
    if format.value.is_exact() {
        move_words(layout, &layout.value_codes, false, (record, &mut *out), to);
    } else {
        reorder(layout, &layout.value_codes, format.value.bits(), value, (record, &mut *out), to);
    }
    if !format.refine.is_none() {
        reorder(layout, &layout.key_residuals, format.refine.key as usize, key, (record, &mut *out), to);
        reorder(layout, &layout.value_residuals, format.refine.value as usize, value, (record, out), to);
    }
    Ok(())
}

fn move_words(
    layout: &RecordLayout,
    section: &Range<usize>,
    keys: bool,
    (record, out): (&[u8], &mut [u8]),
    to: Towards,
) {
    let (Some(from), Some(into)) = (record.get(section.clone()), out.get_mut(section.clone())) else { return };
    for token in 0..layout.tokens() {
        for channel in 0..layout.dim {
            let line = 2 * (token * layout.dim + channel);
            let fragment = 2 * original_index(token, channel, layout.dim, keys);
            let (a, b) = match to {
                Towards::Fragment => (line, fragment),
                Towards::Line => (fragment, line),
            };
            if let (Some(word), Some(slot)) = (from.get(a..a + 2), into.get_mut(b..b + 2)) {
                slot.copy_from_slice(word);
            }
        }
    }
}

type Index = fn(usize, usize, usize) -> usize;
type Order = fn(usize, usize, usize) -> Place;
/// Index of a code in the line order, its place, and how it lies there.
type Mapping = (Index, Order, Cut);

fn reorder(
    layout: &RecordLayout,
    section: &Range<usize>,
    bits: usize,
    (index, place, cut): Mapping,
    (record, out): (&[u8], &mut [u8]),
    to: Towards,
) {
    let (Some(from), Some(into)) = (record.get(section.clone()), out.get_mut(section.clone())) else { return };
    let (dim, count) = (layout.dim, layout.count());
    into.fill(0);
    for token in 0..layout.tokens() {
        for channel in 0..dim {
            let (line, fragment) = (index(token, channel, dim), place(token, channel, dim));
            match to {
                Towards::Fragment => {
                    write_at(into, bits, count, (fragment, cut), layout::read_code(from, bits, count, line));
                }
                Towards::Line => {
                    layout::write_code(into, bits, count, line, read_at(from, bits, count, (fragment, cut)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dtype, Geometry, geometry::HEAD_DIMS, hash::splitmix64};

    fn layout(format: &str, dim: usize) -> Option<RecordLayout> {
        let mut geometry = Geometry::new(1, 4, 1, dim).unwrap();
        if format.contains("bf16") {
            geometry.store = Dtype::Bf16;
        }
        RecordLayout::new(&geometry, format.parse().unwrap()).ok()
    }

    #[test]
    fn every_element_has_a_place_of_its_own() {
        for dim in HEAD_DIMS {
            for tokens in [16, 32, 64] {
                for order in [key_place as Order, value_place] {
                    let mut seen = vec![false; tokens * dim];
                    for (t, c) in (0..tokens).flat_map(|t| (0..dim).map(move |c| (t, c))) {
                        let p = order(t, c, dim);
                        assert!(p.lane < 32 && p.pair < 8 && p.el < 2);
                        let at = ((p.unit * 32 + p.lane) * 8 + p.pair) * 2 + p.el;
                        assert!(!std::mem::replace(&mut seen[at], true), "{dim} {tokens}: {at} twice");
                    }
                    assert!(seen.iter().all(|s| *s));
                }
            }
        }
    }

    #[test]
    fn pairs_of_a_word_come_out_with_one_shift_and_one_mask() {
        for width in [8usize, 4, 2, 1] {
            let (unit, lane) = (3, 11);
            let mut plane = vec![0u8; 64 * width * 4];
            let code = |pair: usize, el: usize| (splitmix64((2 * pair + el) as u64) & ((1 << width) - 1)) as u32;
            for (pair, el) in (0..8).flat_map(|p| [(p, 0), (p, 1)]) {
                let (byte, shift) = bit_position(width, Place { unit, lane, pair, el });
                plane[byte] |= (code(pair, el) << shift) as u8;
            }
            let at = unit * 64 * width + lane * 2 * width;
            let own = &plane[at..at + 2 * width];
            let (bytes, half) = if width == 1 { (2, 8) } else { (4, 16) };
            let (per_word, mask) = (half / width, (1u32 << width) - 1);
            for pair in 0..8 {
                let word =
                    own[pair / per_word * bytes..][..bytes].iter().rev().fold(0u32, |w, b| w << 8 | u32::from(*b));
                let got = word >> (width * (pair % per_word)) & (mask | mask << half);
                assert_eq!(got, code(pair, 0) | code(pair, 1) << half, "width {width} pair {pair}");
            }
        }
    }

    #[test]
    fn levels_are_selected_by_the_nibbles_of_a_word() {
        for width in [4usize, 2, 1] {
            let (unit, lane) = (3, 11);
            let mut plane = vec![0u8; 64 * width * 4];
            let code = |p: usize| (splitmix64(p as u64 ^ 91) & ((1 << width) - 1)) as u32;
            for p in 0..16 {
                let (byte, shift) = level_position(width, Place { unit, lane, pair: p / 2, el: p % 2 });
                assert_eq!(plane[byte] >> shift & ((1 << width) - 1), 0, "a place of its own");
                plane[byte] |= (code(p) << shift) as u8;
            }
            let own = &plane[unit * 64 * width + lane * 2 * width..][..2 * width];
            let word = |bytes: &[u8]| bytes.iter().rev().fold(0u32, |w, b| w << 8 | u32::from(*b));
            for half in 0..2 {
                let selector = match width {
                    4 => word(&own[4 * half..4 * half + 4]),
                    2 => word(own) >> (2 * half) & 0x3333_3333,
                    _ => (word(own) & 0xffff | word(own) >> 1 << 16) >> (2 * half) & 0x1111_1111,
                };
                for n in 0..8 {
                    assert_eq!(selector >> (4 * n) & 15, code(8 * half + n), "width {width}, half {half}, {n}");
                }
            }
        }
    }

    /// A look-up of 32 magnitudes begins with the lower four bits.
    #[test]
    fn levels_of_more_than_four_bits_have_their_upper_bits_apart() {
        for bits in [5usize, 6] {
            let count = 512;
            for p in 0..16 {
                let place = Place { unit: 0, lane: 9, pair: p / 2, el: p % 2 };
                let mut section = vec![0; count * bits / 8];
                let code = splitmix64(p as u64) as u8 & ((1 << bits) - 1);
                write_at(&mut section, bits, count, (place, Cut::Levels), code);
                assert_eq!(read_at(&section, bits, count, (place, Cut::Levels)), code);
                let (low, rest) = section.split_at(count / 2);
                assert_eq!(read_code(low, 4, count, place), code & 15);
                assert_eq!(read_code(rest, bits - 4, count, place), code >> 4);
            }
        }
    }

    #[test]
    fn the_operands_of_a_product_are_registers_of_the_lane() {
        // m16n8k16, A row-major: lane l holds rows l/4 and l/4 + 8, columns 2 (l%4), + 1 and + 8, + 9, in registers
        // (row, column) = (0, 0), (8, 0), (0, 8), (8, 8). Values: rows are channels, columns tokens, as they are.
        for (half, register) in (0..2).flat_map(|h| (0..4).map(move |r| (h, r))) {
            for (lane, el) in (0..32).flat_map(|l| [(l, 0), (l, 1)]) {
                let row = lane / 4 + 8 * (register % 2);
                let column = 2 * (lane % 4) + 8 * (register / 2) + el;
                let p = value_place(column, 16 * half + row, 64);
                assert_eq!(p, Place { unit: 0, lane, pair: 4 * half + register, el });
            }
        }
        // Keys: rows are tokens; columns are channels in an order that gives each lane 8 neighbours, so that a query
        // row is read in one piece too. Registers 0..4 of product `j` hold channels 8 (l%4) + 4 j + {0, 1} and {2, 3}.
        for (j, register) in (0..2).flat_map(|j| (0..4).map(move |r| (j, r))) {
            for (lane, el) in (0..32).flat_map(|l| [(l, 0), (l, 1)]) {
                let token = lane / 4 + 8 * (register % 2);
                let channel = 8 * (lane % 4) + 4 * j + 2 * (register / 2) + el;
                assert_eq!(key_place(token, channel, 64), Place { unit: 0, lane, pair: 4 * j + register, el });
            }
        }
    }

    #[test]
    fn records_of_every_width_round_trip() {
        let mut executed = 0;
        for dim in HEAD_DIMS {
            for tokens in [16, 32, 64] {
                for bits in 2..=8 {
                    for key in [format!("t{bits}"), "k8f32".to_owned(), "f16".to_owned(), format!("tq{}", bits.min(6))]
                    {
                        let l = layout(&format!("{key}-v{bits}g32-b{tokens}"), dim).unwrap();
                        let record: Vec<u8> = (0..l.bytes).map(|i| splitmix64(i as u64 * 7 + bits) as u8).collect();
                        let (mut fragment, mut back) = (vec![0xff; l.bytes], vec![0xff; l.bytes]);
                        to_fragment(&l, &record, &mut fragment).unwrap();
                        from_fragment(&l, &fragment, &mut back).unwrap();
                        assert_eq!(back, record, "{key} dim {dim} tokens {tokens} bits {bits}");
                        assert_ne!(fragment[l.value_codes.clone()], record[l.value_codes.clone()]);
                        assert_eq!(fragment[l.value_scales.clone()], record[l.value_scales.clone()]);
                        let (t, c) = (splitmix64(bits) as usize % tokens, splitmix64(tokens as u64) as usize % dim);
                        let (section, b) = (l.value_codes.clone(), bits as usize);
                        assert_eq!(
                            read_code(&fragment[section.clone()], b, l.count(), value_place(t, c, dim)),
                            layout::read_code(&record[section], b, l.count(), value_index(t, c, dim))
                        );
                        executed += 1;
                    }
                }
            }
        }
        assert_eq!(executed, 4 * 3 * 7 * 4);
    }

    #[test]
    fn residuals_lie_where_codes_of_their_width_would() {
        let mut executed = 0;
        for dim in HEAD_DIMS {
            for (tokens, key, value) in [(16, 1, 8), (32, 5, 4), (64, 8, 1), (16, 2, 7), (32, 3, 6), (64, 4, 4)] {
                let l = layout(&format!("k8-v4g32-b{tokens}-r{key}.{value}"), dim).unwrap();
                let record: Vec<u8> = (0..l.bytes).map(|i| splitmix64(i as u64 * 5 + key as u64) as u8).collect();
                let (mut fragment, mut back) = (vec![0xff; l.bytes], vec![0xff; l.bytes]);
                to_fragment(&l, &record, &mut fragment).unwrap();
                from_fragment(&l, &fragment, &mut back).unwrap();
                assert_eq!(back, record, "dim {dim} tokens {tokens} r{key}.{value}");
                assert_eq!(fragment[l.summary.clone()], record[l.summary.clone()]);
                let sides = [
                    (&l.key_residuals, key, key_index as Index, key_place as Order),
                    (&l.value_residuals, value, value_index, value_place),
                ];
                for (section, bits, index, place) in sides {
                    let (from, into) = (&record[section.clone()], &fragment[section.clone()]);
                    for (t, c) in (0..tokens).flat_map(|t| (0..dim).map(move |c| (t, c))) {
                        let want = layout::read_code(from, bits, l.count(), index(t, c, dim));
                        assert_eq!(read_code(into, bits, l.count(), place(t, c, dim)), want, "{t} {c}");
                    }
                }
                executed += 1;
            }
        }
        assert_eq!(executed, 4 * 6);
    }

    #[test]
    fn rows_of_an_open_block_leave_the_others_alone() {
        for keys in [true, false] {
            let rows: Vec<u16> = (0..5 * 96).collect();
            let mut side = vec![0xffff; 16 * 96];
            put_rows(&rows, 96, keys, &mut side);
            for (t, c) in (0..16).flat_map(|t| (0..96).map(move |c| (t, c))) {
                let want = if t < 5 { (t * 96 + c) as u16 } else { 0xffff };
                assert_eq!(side[original_index(t, c, 96, keys)], want);
            }
        }
    }

    #[test]
    fn uncoded_records_move_whole_words_and_sizes_are_checked() {
        let l = layout("bf16-bf16-b16", 64).unwrap();
        let record: Vec<u8> = (0..l.bytes).map(|i| splitmix64(i as u64) as u8).collect();
        let (mut out, mut back) = (vec![0; l.bytes], vec![0; l.bytes]);
        to_fragment(&l, &record, &mut out).unwrap();
        for (section, keys) in [(&l.key_codes, true), (&l.value_codes, false)] {
            for (t, c) in [(0, 0), (15, 63), (3, 17), (9, 40)] {
                let (at, line) = (2 * original_index(t, c, 64, keys), 2 * (t * 64 + c));
                assert_eq!(out[section.clone()][at..at + 2], record[section.clone()][line..line + 2], "{t} {c}");
            }
        }
        from_fragment(&l, &out, &mut back).unwrap();
        assert_eq!(back, record);
        let wrong = Err(RecordSize { expected: l.bytes, found: l.bytes - 1 });
        assert_eq!(to_fragment(&l, &record[1..], &mut out), wrong);
        assert_eq!(from_fragment(&l, &record, &mut out[1..]), wrong);
    }
}
