//! Values with one scale and offset per channel and block, math.md (2.9b): `sum_t w_t v^_t = sigma o sum_t w_t code_t + z sum_t w_t`.
//!
//! A block's codes are summed apart, as codes of scale 1, and join the others with their scales once: no weight is multiplied by one.
use crate::attend::{Kernel, Workspace};
use crate::line::Line;
use crate::masses::Entry;
use crate::partial::Partial;
use crate::query::{Cursor, ValueCodes};
use certkv_core::{Dtype, Refine};

/// 1 as a half.
const ONE: [u8; 2] = 0x3c00u16.to_le_bytes();

/// Scale and offset of a channel; NaN where the record has none.
fn pair_at(scales: &[u8], channel: usize) -> [f32; 2] {
    let number = |bytes: [u8; 2]| Dtype::F16.decode16(u16::from_le_bytes(bytes));
    scales.as_chunks::<4>().0.get(channel).map_or([f32::NAN; 2], |&[a, b, c, d]| [number([a, b]), number([c, d])])
}

impl Kernel {
    /// A block's values of `bits` bits, and `residuals` with theirs, summed into `out`, and what rounding its weights costs in `entry`.
    pub(crate) fn channel_values(
        &self,
        (section, scales): (&[u8], &[u8]),
        bits: usize,
        residuals: Option<(&[u8], u8)>,
        work: &mut Workspace,
        out: &mut Partial,
        entry: &mut Entry,
    ) {
        let (shape, lines) = (self.shape, self.shape.dim_lines());
        let used = shape.heads * lines;
        let mut page = core::mem::take(&mut work.page);
        let mut sums = core::mem::take(&mut page.lines);
        let of_heads = &mut sums[..used];
        of_heads.fill(Line::ZERO);
        let ones = page.scales(&ONE, shape.tokens);
        let codes = ValueCodes { section, bits, levels: None, group: shape.dim, offsets: false, scales: ones };
        // Values that are all their mean (2.9c) have no codes.
        if bits > 0 {
            let ahead = &mut work.ahead.record;
            (self.ops.value_codes)(&codes, &work.x, &work.softmax, shape, &mut work.values, of_heads, ahead);
        }
        // Of residuals half a finer step belongs to every weight.
        let mut half = None;
        if let Some((section, bits)) = residuals {
            let codes = ValueCodes { section, bits: bits.into(), ..codes };
            let fine = &mut work.spare[..used];
            fine.fill(Line::ZERO);
            let ahead = &mut Cursor::default();
            (self.ops.value_codes)(&codes, &work.x, &work.softmax, shape, &mut work.values, fine, ahead);
            of_heads.iter_mut().zip(fine.iter()).for_each(|(sum, fine)| sum.axpy(Refine::finer(bits), fine));
            half = Some(0.5 * Refine::finer(bits));
        }
        let mut square = 0.0;
        for line in 0..lines {
            let (mut sigma, mut z) = (Line::ZERO, Line::ZERO);
            for (i, (sigma, z)) in sigma.0.iter_mut().zip(&mut z.0).enumerate() {
                [*sigma, *z] = pair_at(scales, 16 * line + i);
                square += f64::from(*sigma) * f64::from(*sigma);
            }
            for h in 0..shape.heads {
                let o = &mut out.o[h * lines + line];
                o.fma(&sigma, &of_heads[h * lines + line]);
                o.axpy(work.softmax.sum[h], &z);
                if let Some(half) = half {
                    o.axpy(half * work.softmax.sum[h], &sigma);
                }
            }
        }
        // As of other codes: each weight is off by half a digit, against a code of at most 2^(m-1), and a residual of at most a step.
        let most = f64::from(codes.half()) + if half.is_some() { 1.0 } else { 0.0 };
        let half_codes = most * shape.tokens as f64 * square.sqrt();
        entry.slack.set_values(0.5 / f64::from(self.ops.weight_levels) * half_codes);
        page.lines = sums;
        work.page = page;
        // Sums of codes and of weights, the scale, two more sums.
        out.chain += 4 + shape.tokens / 16;
        if half.is_some() {
            out.chain += 4 + shape.tokens / 16;
        }
    }
}
