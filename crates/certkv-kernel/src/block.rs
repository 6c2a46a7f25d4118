//! What one pass reads: blocks, and the open block at the end.
use certkv_codec::KeyMetric;
use certkv_core::{Dtype, PageCode};

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

    /// What the head's keys are coded in, for a calibrated format. Without one such codes are refused, and exact keys are not.
    fn key_metric(&self) -> Option<KeyMetric<'_>> {
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
    #[inline]
    pub(crate) fn decode(self, bits: u16) -> f32 {
        match self {
            Element::F16 => Dtype::F16.decode16(bits),
            Element::Bf16 => Dtype::Bf16.decode16(bits),
            // Sign, exponent and fraction of e5m2 are where a half has them; those of e4m3 are once the magnitude moves by one.
            Element::E4m3 => Dtype::F16.decode16(bits << 8 & 0x8000 | (bits & 0x7f) << 7),
            Element::E5m2 => Dtype::F16.decode16(bits << 8),
        }
    }
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

impl Side<'_> {
    /// Numbers held.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.rows.len() * 2 / self.element.bytes()
    }

    /// Number `i`; out of range gives 0.
    #[inline]
    pub(crate) fn get(&self, i: usize) -> f32 {
        let bits = match self.rows {
            Rows::Bytes(b) if self.element.bytes() == 1 => b.get(i).copied().unwrap_or(0).into(),
            rows => rows.get(i),
        };
        self.element.decode(bits)
    }

    /// Address of the first number, for the instruction-set folders.
    #[inline]
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.rows.as_ptr().cast()
    }
}

impl Rows<'_> {
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
