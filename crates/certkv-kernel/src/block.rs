//! What one pass reads: blocks, and the open block at the end.
use crate::line::Line;
use certkv_codec::KeyMetric;
use certkv_core::{Dtype, KeyFormat, PageCode};

/// One block of one KV head.
///
/// `record` always holds the stored record (its error summary is read whatever sides are used). A side given as
/// `Some` is used instead of the record's codes: row-major `[token][channel]` 16-bit originals, in the type of the
/// layout's `store`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Block<'a> {
    /// The record, at least `layout.bytes` long.
    pub record: &'a [u8],
    /// Exact keys of a promoted block.
    pub keys: Option<&'a [u16]>,
    /// Exact values of a promoted block.
    pub values: Option<&'a [u16]>,
    /// The values are not read: [`BlockSource::centre`] stands for each of them, math.md (6.9). Without effect where
    /// `values` is given or the format's values are exact.
    pub skip_values: bool,
    /// The keys are read with their residuals, math.md (2.23). Without effect where `keys` is given, or in a format without residuals.
    pub fine_keys: bool,
    /// The values are: without effect where `values` is given or they are not read, or in a format without residuals.
    pub fine_values: bool,
    /// Bit `t`: token `t` of the block is not attended here, because it is read elsewhere, math.md (6.16).
    pub left_out: u64,
}

/// Where the blocks of one (sequence, layer, KV head) are found.
pub trait BlockSource: Sync {
    /// Block `index`. Called once per block and sweep.
    fn block(&self, index: usize) -> Block<'_>;

    /// The head's value centre `c` that the summaries' `R_b` refer to (3.3), `[dim]`; empty for zero.
    fn centre(&self) -> &[f32] {
        &[]
    }

    /// What the head's keys are coded in where they are of `format`, a calibrated one. Without one such codes are refused, and exact keys
    /// are not.
    fn key_metric(&self, format: KeyFormat) -> Option<KeyMetric<'_>> {
        let _ = format;
        None
    }
}

impl BlockSource for [Block<'_>] {
    fn block(&self, index: usize) -> Block<'_> {
        self.get(index).copied().unwrap_or_default()
    }
}

impl BlockSource for Vec<Block<'_>> {
    fn block(&self, index: usize) -> Block<'_> {
        self.as_slice().block(index)
    }
}

/// The open block: exact keys and values of the newest `tokens` tokens, row-major `[token][channel]`. Rows past
/// `tokens` are never read.
#[derive(Debug, Clone, Copy)]
pub struct Tail<'a> {
    /// Keys, at least `tokens * dim` elements.
    pub keys: &'a [u16],
    /// Values, at least `tokens * dim` elements.
    pub values: &'a [u16],
    /// Tokens, 1 to the layout's block size.
    pub tokens: usize,
    /// Upper bound of `||c||` for the head's value centre `c`: the tail has no stored radius, so
    /// `max ||v_t|| + ||c||` stands for it in (5.4).
    pub centre_norm: f32,
}

/// 16-bit rows, as words or as the little-endian bytes of a record.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rows<'a> {
    Words(&'a [u16]),
    Bytes(&'a [u8]),
}

/// How a row holds its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    F16,
    Bf16,
    E4m3,
    E5m2,
}

impl Element {
    /// Of originals, which no cache keeps in single precision.
    #[inline]
    pub(crate) fn of(store: Dtype) -> Self {
        if store == Dtype::Bf16 { Element::Bf16 } else { Element::F16 }
    }

    /// Of floating-point codes (2.9a).
    #[inline]
    pub(crate) fn of_code(code: PageCode) -> Self {
        if code == PageCode::E4m3 { Element::E4m3 } else { Element::E5m2 }
    }

    #[inline]
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Element::F16 | Element::Bf16 => 2,
            Element::E4m3 | Element::E5m2 => 1,
        }
    }

    /// What the rows' numbers are multiplied by: e4m3 is read as the half whose bits it gives, so that no exponent has to be added.
    #[inline]
    pub(crate) const fn unit(self) -> f32 {
        if matches!(self, Element::E4m3) { 256.0 } else { 1.0 }
    }

    /// The number, by [`Self::unit`].
    #[inline(always)]
    pub(crate) fn decode(self, bits: u16) -> f32 {
        match self {
            Element::F16 => half(bits),
            Element::Bf16 => f32::from_bits(u32::from(bits) << 16),
            // As of a half, but for what is not finite, which no code is.
            Element::E4m3 => f32::from_bits(((bits as i8 as i32) as u32) << 20 & 0x87f0_0000) * RAISE,
            Element::E5m2 => f32::from_bits(((bits as i8 as i32) as u32) << 21 & 0x8fe0_0000) * RAISE,
        }
    }
}

/// By how much a half's bits are too small where an f32 has its exponent.
const RAISE: f32 = f32::from_bits((127 + 112) << 23);

/// A half as f32, without a branch: compilers make wide code of it.
#[inline(always)]
fn half(bits: u16) -> f32 {
    // The exponent moves by three less than the sign: all copies of the sign but the first go.
    let scaled = f32::from_bits(((bits as i16 as i32) as u32) << 13 & 0x8fff_e000) * RAISE;
    // What is not finite has the largest exponent here, too.
    let infinite = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled.to_bits() | infinite)
}

/// A side as the row functions read it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Side<'a> {
    pub(crate) rows: Rows<'a>,
    pub(crate) element: Element,
    /// Rows that exist.
    pub(crate) n: usize,
    /// Bytes to the next block's side, 0 if there is none.
    pub(crate) ahead: isize,
}

impl<'a> Side<'a> {
    /// `n` rows of the open block.
    pub(crate) fn open(words: &'a [u16], store: Dtype, n: usize) -> Self {
        Self { rows: Rows::Words(words), element: Element::of(store), n, ahead: 0 }
    }

    /// Numbers held.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.rows.len() * 2 / self.element.bytes()
    }

    /// Sixteen numbers from `at` on; 0 where they are not all there.
    #[inline(always)]
    pub(crate) fn line(&self, at: usize) -> Line {
        // Each kind of number has a loop of its own.
        match self.element {
            Element::F16 => self.rows.sixteen(at, |bits| Element::F16.decode(bits)),
            Element::Bf16 => self.rows.sixteen(at, |bits| Element::Bf16.decode(bits)),
            Element::E4m3 => self.rows.sixteen_codes(at, |code| Element::E4m3.decode(code)),
            Element::E5m2 => self.rows.sixteen_codes(at, |code| Element::E5m2.decode(code)),
        }
        .unwrap_or(Line::ZERO)
    }

    /// Address of the first number, for the instruction-set folders.
    #[inline]
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.rows.as_ptr().cast()
    }
}

impl Rows<'_> {
    /// Sixteen numbers of 16 bits, if they are all there.
    #[inline(always)]
    fn sixteen(&self, at: usize, decode: impl Fn(u16) -> f32) -> Option<Line> {
        match self {
            Rows::Words(w) => w.get(at..)?.first_chunk().map(|w: &[u16; 16]| Line(w.map(decode))),
            Rows::Bytes(b) => {
                let pairs: &[[u8; 2]; 16] = b.get(2 * at..)?.as_chunks().0.first_chunk()?;
                Some(Line(pairs.map(|bits| decode(u16::from_le_bytes(bits)))))
            }
        }
    }

    /// Sixteen numbers of 8 bits, if they are all there.
    #[inline(always)]
    fn sixteen_codes(&self, at: usize, decode: impl Fn(u16) -> f32) -> Option<Line> {
        let Rows::Bytes(b) = self else { return None };
        b.get(at..)?.first_chunk().map(|b: &[u8; 16]| Line(b.map(|code| decode(code.into()))))
    }

    /// Elements held.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Rows::Words(w) => w.len(),
            Rows::Bytes(b) => b.len() / 2,
        }
    }

    /// Element `i`; out of range gives 0.
    #[inline]
    pub(crate) fn get(&self, i: usize) -> u16 {
        match self {
            Rows::Words(w) => w.get(i).copied().unwrap_or(0),
            Rows::Bytes(b) => match b.get(2 * i..2 * i + 2) {
                Some(&[lo, hi]) => u16::from_le_bytes([lo, hi]),
                _ => 0,
            },
        }
    }

    /// Address of the first element, for the instruction-set folders (little-endian machines).
    #[inline]
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn as_ptr(&self) -> *const u16 {
        match self {
            Rows::Words(w) => w.as_ptr(),
            Rows::Bytes(b) => b.as_ptr().cast(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_what_they_stand_for() {
        for bits in 0..=u16::MAX {
            let (got, want) = (half(bits), Dtype::F16.decode16(bits));
            assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{bits:#x}: {got}, not {want}");
        }
    }

    #[test]
    fn a_line_is_read_whatever_holds_it() {
        let words: Vec<u16> = (0..48).map(|i| 0x3c00 + 37 * i).collect();
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        for element in [Element::F16, Element::Bf16, Element::E4m3, Element::E5m2] {
            let side = |rows| Side { rows, element, n: 1, ahead: 0 };
            for at in 0..33 {
                let line = side(Rows::Bytes(&bytes)).line(at).0;
                if element.bytes() == 2 {
                    assert_eq!(line, side(Rows::Words(&words)).line(at).0);
                    assert_eq!(line, core::array::from_fn(|i| element.decode(words[at + i])));
                } else {
                    assert_eq!(line, core::array::from_fn(|i| element.decode(bytes[at + i].into())));
                }
            }
            assert_eq!(side(Rows::Words(&words)).line(33).0, [0.0; 16]);
            assert_eq!(side(Rows::Bytes(&bytes)).line(96).0, [0.0; 16]);
        }
    }
}
