//! What one pass reads: blocks, and the open block at the end.

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
}

/// Where the blocks of one (sequence, layer, KV head) are found.
pub trait BlockSource: Sync {
    /// Block `index`. Called once per block and pass, and once more to prefetch it.
    fn block(&self, index: usize) -> Block<'_>;

    /// Which block is visited at `position` of a pass over a range: a permutation of the range. A source that watches
    /// lets the heavy blocks come first, so that the running sum is near the final one when it judges the others.
    fn visit(&self, position: usize) -> usize {
        position
    }

    /// The head's value centre `c` that the summaries' `R_b` refer to (3.3), `[dim]`; empty for zero.
    fn centre(&self) -> &[f32] {
        &[]
    }

    /// True if the values of `index` will probably be skipped: they are not asked for ahead of time.
    fn expects_skip(&self, index: usize) -> bool {
        let _ = index;
        false
    }

    /// True if [`BlockSource::promote`] wants to see every block that was scored from codes.
    fn watches(&self) -> bool {
        false
    }

    /// Decides, once the weights of a coded block are known and before its values are read, which of its sides are read
    /// exactly after all, or whether its values are read at all. What it returns is used in place of the codes; the certificate holds whatever it chooses.
    fn promote(&self, index: usize, look: &Look<'_>) -> Promoted<'_> {
        let _ = (index, look);
        Promoted::default()
    }
}

/// What is known of a block at the moment of [`BlockSource::promote`], per query head of the group.
#[derive(Debug, Clone, Copy)]
pub struct Look<'a> {
    /// `W_b`, relative to `2^exponent`.
    pub w: &'a [f32],
    /// `P_b^2`, in the same unit.
    pub square: &'a [f32],
    /// Weights summed so far, this block included; never more than the final sum.
    pub total: &'a [f32],
    /// Running base-2 exponent.
    pub exponent: &'a [f32],
    /// `Delta_b`, nats; 0 if the keys are exact.
    pub delta: &'a [f32],
    /// `Lambda_b`, nats; 0 if the keys are exact.
    pub lambda: &'a [f32],
    /// `R_b`.
    pub radius: f32,
    /// `eta_b`; 0 if the values are exact.
    pub eta: f32,
    /// `sop_b`; 0 if the values are exact.
    pub sop: f32,
}

/// Sides to be read exactly after all, 16-bit rows `[token][channel]`, or values to be left unread.
#[derive(Debug, Clone, Copy, Default)]
pub struct Promoted<'a> {
    /// Keys.
    pub keys: Option<&'a [u16]>,
    /// Values.
    pub values: Option<&'a [u16]>,
    /// As [`Block::skip_values`].
    pub skip_values: bool,
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

/// An uncoded side as the row functions read it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Side<'a> {
    pub(crate) rows: Rows<'a>,
    pub(crate) store: certkv_core::Dtype,
    /// Rows that exist.
    pub(crate) n: usize,
    /// Bytes to the next block's side, 0 if there is none.
    pub(crate) ahead: isize,
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
