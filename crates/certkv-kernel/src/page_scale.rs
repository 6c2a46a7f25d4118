//! Sides with one scale per block and group of channels, math.md (2.9a).
//!
//! Integer codes take the functions of codes with a scale per token: the block's scales are written out for its tokens, in the
//! first cache. Floating-point codes take the functions of rows; their scales go into the query, and into a block's sum of values.
use crate::attend::{Kernel, Workspace};
use crate::block::{Element, Rows, Side};
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
    /// Scaled queries, or a block's sums of values, `[head][dim / 16]`.
    pub(crate) lines: Vec<Line>,
}

impl PageScratch {
    pub(crate) fn new() -> Self {
        Self { by_token: vec![0; 2 * GROUPS * TOKENS], lines: crate::line::lines(HEADS * 16) }
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

/// The scale of every line of channels, groups being `group` channels wide, for numbers as rows of `element` give them; NaN where the record has none.
fn by_line(scales: &[u8], group: usize, element: Element) -> [f32; 16] {
    let mut out = [f32::NAN; 16];
    let lines = out.chunks_mut(group / 16);
    for (lines, bits) in lines.zip(scales.as_chunks::<2>().0) {
        lines.fill(Dtype::F16.decode16(u16::from_le_bytes(*bits)) * element.unit());
    }
    out
}

impl Kernel {
    /// Sizes of the queries that floating-point codes meet. There are no digits, so nothing of a query is left over.
    pub(crate) fn load_float_query(&self, work: &mut Workspace) {
        for h in 0..self.shape.heads {
            (work.digits.l1[h], work.digits.square[h], work.digits.residual[h]) = (work.reach[h], work.reach[h], 0.0);
        }
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
        let (lines, element) = (shape.dim_lines(), Element::of_code(code));
        let rows = Side { rows: Rows::Bytes(codes), element, n: shape.tokens, ahead: work.ahead.keys };
        let group = self.layout.format.key.group(shape.dim);
        let scales = by_line(scales, group, element);
        // One scale for all channels multiplies the logits: as many roundings, and no query to be scaled anew for every block. Products with codes are those
        // with keys over the scale, so none overflows where the bound is finite, and what underflows is nothing beside `slack::EXP`.
        if group == shape.dim {
            (self.ops.score_rows)(&rows, &work.q, self.unit() * scales[0], shape, &mut work.x);
            return;
        }
        for (l, line) in work.page.lines[..shape.heads * lines].iter_mut().enumerate() {
            *line = work.q[l];
            line.scale(scales[l % lines]);
        }
        (self.ops.score_rows)(&rows, &work.page.lines, self.unit(), shape, &mut work.x);
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
        let (lines, element) = (shape.dim_lines(), Element::of_code(code));
        let sums = &mut work.page.lines[..shape.heads * lines];
        sums.fill(Line::ZERO);
        let rows = Side { rows: Rows::Bytes(codes), element, n: shape.tokens, ahead: work.ahead.values };
        (self.ops.value_rows)(&rows, &work.x, shape, sums);
        let scales = by_line(scales, self.layout.format.value.group(shape.dim), element);
        for (l, (o, sum)) in out.o.iter_mut().zip(&*sums).enumerate() {
            o.axpy(scales[l % lines], sum);
        }
        // Tokens, the scale, one more sum.
        out.chain += shape.tokens + 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Arch;
    use crate::query::Shape;
    use certkv_codec::fp8::Fp8;

    #[test]
    fn rows_are_what_codes_stand_for() {
        for (code, kind) in [(PageCode::E4m3, Fp8::E4m3), (PageCode::E5m2, Fp8::E5m2)] {
            let element = Element::of_code(code);
            for byte in 0..=255u8 {
                let (got, want) = (f64::from(element.decode(byte.into()) * element.unit()), kind.value(byte));
                // Codes of NaN and infinities are never written.
                assert!(got == want || !want.is_finite(), "{code} {byte:#x}: {got}, not {want}");
            }
        }
    }

    /// A row of one number that is not 0, met by ones: every code, on every machine, as a logit and as a sum.
    #[test]
    fn every_machine_reads_every_code() {
        let shape = Shape { heads: 1, dim: 32, tokens: 16 };
        let mut ones = crate::line::lines(4);
        ones.iter_mut().for_each(|line| line.0 = [1.0; 16]);
        let kinds = [(Element::E4m3, Fp8::E4m3), (Element::E5m2, Fp8::E5m2)];
        for (ops, (element, kind)) in
            Arch::ALL.into_iter().filter_map(Arch::ops).flat_map(|ops| kinds.map(|k| (ops, k)))
        {
            for byte in 0..=255u8 {
                let channel = usize::from(byte) % 32;
                if !kind.value(byte).is_finite() {
                    continue;
                }
                let want = element.decode(byte.into());
                let mut codes = [0; 16 * 32];
                codes[3 * 32 + channel] = byte;
                let side = Side { rows: Rows::Bytes(&codes), element, n: 16, ahead: 0 };
                let (mut x, mut o) = (crate::line::lines(4), crate::line::lines(2));
                (ops.score_rows)(&side, &ones, 1.0, shape, &mut x);
                (ops.value_rows)(&side, &ones, shape, &mut o);
                assert_eq!((x[0].0[3], o[channel / 16].0[channel % 16]), (want, want), "{element:?} {byte:#x}");
                assert_eq!((x[0].sum(), o[0].sum() + o[1].sum()), (want, want), "{element:?} {byte:#x}");
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
    }
}
