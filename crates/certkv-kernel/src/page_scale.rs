//! Sides with one scale per block and group of channels, math.md (2.9a).
//!
//! Integer codes take the functions of codes with a scale per token: the block's scales are written out for its tokens, in the
//! first cache. Floating-point codes become 16-bit rows there and take the functions of rows; their scales go into the query, and
//! into a block's sum of values.
use crate::attend::{Kernel, Workspace};
use crate::block::{Rows, Side};
use crate::line::Line;
use crate::masses::Entry;
use crate::partial::Partial;
use crate::query::{GROUPS, HEADS};
use certkv_core::{Dtype, ErrorSummary, PageCode};

/// Tokens of the largest block.
const TOKENS: usize = 64;

/// Buffers of one thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct PageScratch {
    /// Scales, f16, `[group][token]`.
    by_token: Vec<u8>,
    /// Rows of one side; the first aligned element is `first`.
    rows: Vec<u16>,
    first: usize,
    /// Scaled queries, or a block's sums of values, `[head][dim / 16]`.
    pub(crate) lines: Vec<Line>,
}

impl PageScratch {
    pub(crate) fn new() -> Self {
        let rows = vec![0u16; TOKENS * 256 + 32];
        let first = rows.as_ptr().align_offset(64).min(32);
        Self { by_token: vec![0; 2 * GROUPS * TOKENS], rows, first, lines: crate::line::lines(HEADS * 16) }
    }

    /// `scale[group]` written out as `[group][token]`.
    pub(crate) fn scales(&mut self, scales: &[u8], tokens: usize) -> &[u8] {
        let bytes = scales.len() * tokens;
        let Some(out) = self.by_token.get_mut(..bytes) else { return &[] };
        for (row, scale) in out.chunks_exact_mut(2 * tokens).zip(scales.as_chunks::<2>().0) {
            row.as_chunks_mut::<2>().0.fill(*scale);
        }
        out
    }
}

/// What a scale is multiplied by for the rows that [`Ops::unpack_floats`](crate::arch::Ops) makes: e4m3 comes 2^-8 too small, so that
/// no exponent has to be added.
fn raise(code: PageCode) -> f32 {
    if code == PageCode::E4m3 { 256.0 } else { 1.0 }
}

/// Value of group `g`'s scale.
fn scale_at(scales: &[u8], g: usize, code: PageCode) -> f32 {
    let bits = scales.as_chunks::<2>().0.get(g).map_or(u16::MAX, |b| u16::from_le_bytes(*b));
    Dtype::F16.decode16(bits) * raise(code)
}

/// Codes as f16 rows: the plain form, compiled again with wide instructions by the instruction-set folders.
#[inline(always)]
pub(crate) fn unpack_floats_body(codes: &[u8], e4m3: bool, out: &mut [u16]) {
    // Sign, exponent and fraction of e5m2 are where a half has them; those of e4m3 are once the magnitude moves by one.
    if e4m3 {
        for (word, code) in out.iter_mut().zip(codes) {
            let high = u16::from(*code) << 8;
            *word = high & 0x8000 | (high & 0x7f00) >> 1;
        }
    } else {
        out.iter_mut().zip(codes).for_each(|(word, code)| *word = u16::from(*code) << 8);
    }
}

impl Kernel {
    /// Sizes of the queries that floating-point codes meet. There are no digits, so nothing of a query is left over.
    pub(crate) fn load_float_query(&self, work: &mut Workspace) {
        for h in 0..self.shape.heads {
            (work.digits.l1[h], work.digits.square[h], work.digits.residual[h]) = (work.reach[h], work.reach[h], 0.0);
        }
    }

    fn float_rows<'a>(
        &self,
        codes: &[u8],
        code: PageCode,
        scratch: &'a mut PageScratch,
        work: &mut Workspace,
    ) -> Side<'a> {
        let count = self.layout.count().min(codes.len());
        let (first, e4m3) = (scratch.first, code == PageCode::E4m3);
        let rows = &mut scratch.rows[first..first + count];
        (self.ops.unpack_floats)(&codes[..count], e4m3, rows, &mut work.ahead.record);
        Side { rows: Rows::Words(rows), store: Dtype::F16, n: self.shape.tokens, ahead: 0 }
    }

    /// Logits of a block of floating-point keys into `work.x`: `q.k^ = (q o s).codes`.
    pub(crate) fn float_keys(
        &self,
        codes: &[u8],
        scales: &[u8],
        code: PageCode,
        summary: &ErrorSummary,
        work: &mut Workspace,
        entry: &mut Entry,
    ) {
        let shape = self.shape;
        // A product of query and scale may underflow, which a float of the least normal size covers (`set_keys`).
        entry.slack.set_keys(f64::from(summary.eps), 0.0, f64::from(summary.kappa));
        let mut scratch = core::mem::take(&mut work.page);
        let (lines, group) = (shape.dim_lines(), self.layout.format.key.group(shape.dim));
        for (l, line) in scratch.lines[..shape.heads * lines].iter_mut().enumerate() {
            *line = work.q[l];
            line.scale(scale_at(scales, l % lines * 16 / group, code));
        }
        let q = core::mem::take(&mut scratch.lines);
        let rows = self.float_rows(codes, code, &mut scratch, work);
        (self.ops.score_rows)(&rows, &q, self.unit(), shape, &mut work.x);
        scratch.lines = q;
        work.page = scratch;
    }

    /// A block's floating-point values summed into `out`: `sum_t w_t v^_t = s o sum_t w_t codes_t`.
    pub(crate) fn float_values(
        &self,
        codes: &[u8],
        scales: &[u8],
        code: PageCode,
        work: &mut Workspace,
        out: &mut Partial,
    ) {
        let shape = self.shape;
        let (lines, group) = (shape.dim_lines(), self.layout.format.value.group(shape.dim));
        let mut scratch = core::mem::take(&mut work.page);
        let mut sums = core::mem::take(&mut scratch.lines);
        let of_heads = &mut sums[..shape.heads * lines];
        of_heads.fill(Line::ZERO);
        let rows = self.float_rows(codes, code, &mut scratch, work);
        (self.ops.value_rows)(&rows, &work.x, shape, of_heads);
        for (l, (o, sum)) in out.o.iter_mut().zip(&*of_heads).enumerate() {
            o.axpy(scale_at(scales, l % lines * 16 / group, code), sum);
        }
        scratch.lines = sums;
        work.page = scratch;
        // Tokens, the scale, one more sum.
        out.chain += shape.tokens + 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Arch;
    use crate::query::Cursor;
    use certkv_codec::fp8::Fp8;

    #[test]
    fn rows_are_what_codes_stand_for() {
        let codes: Vec<u8> = (0..16 * 256).map(|i| (i % 256) as u8).collect();
        for arch in Arch::ALL.into_iter().filter_map(Arch::ops) {
            for (code, kind) in [(PageCode::E4m3, Fp8::E4m3), (PageCode::E5m2, Fp8::E5m2)] {
                let mut out = vec![0; codes.len()];
                (arch.unpack_floats)(&codes, code == PageCode::E4m3, &mut out, &mut Cursor::default());
                for (word, byte) in out.iter().zip(&codes) {
                    let (got, want) = (f64::from(Dtype::F16.decode16(*word) * raise(code)), kind.value(*byte));
                    // Codes of NaN and infinities are never written.
                    assert!(got == want || want.is_nan(), "{code} {byte:#x}: {got}, not {want}");
                }
            }
        }
    }

    #[test]
    fn scales_are_written_out_by_token() {
        let mut scratch = PageScratch::new();
        let scales = [0.5, 3.0].map(|s| Dtype::F16.encode16(s).to_le_bytes()).concat();
        let number = |bytes: &[u8], i: usize| Dtype::F16.decode16(u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]));
        let all = scratch.scales(&scales, 16).to_vec();
        assert_eq!(all.len(), 2 * 16 * 2);
        for t in 0..16 {
            assert_eq!([0, 16].map(|at| number(&all, at + t)), [0.5, 3.0]);
        }
        assert_eq!(scratch.rows[scratch.first..].as_ptr() as usize % 64, 0);
    }
}
