//! Values with one scale and offset per channel and block, math.md (2.9b): `sum_t w_t v^_t = sigma o sum_t w_t code_t + z sum_t w_t`.
//!
//! A block's codes are summed apart, as codes of scale 1, and join the others with their scales once: no weight is multiplied by one.
use crate::arch::generic::keys::meta_at;
use crate::attend::{Kernel, Workspace};
use crate::line::Line;
use crate::masses::Entry;
use crate::partial::Partial;
use crate::query::{Cursor, HEADS, Shape, ValueCodes};
use certkv_core::{Dtype, Refine};

/// 1 as a half.
const ONE: [u8; 2] = 0x3c00u16.to_le_bytes();

/// What joins a block's sums of codes with the output: `o += sigma o (sums + half W) + z W` for each head, `W` its sum of weights.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Join<'a> {
    /// f16 `sigma` and `z` of each channel by turns.
    pub(crate) scales: &'a [u8],
    /// `[head][dim / 16]`.
    pub(crate) sums: &'a [Line],
    pub(crate) weights: &'a [f32; HEADS],
    /// What of a step belongs to every weight beside its code.
    pub(crate) half: Option<f32>,
}

impl Join<'_> {
    /// The plain form. Returns `sum sigma^2`, up to `dim / 16 + 4` roundings.
    pub(crate) fn run(&self, shape: Shape, o: &mut [Line]) -> f32 {
        let lines = shape.dim_lines();
        let mut square = Line::ZERO;
        for line in 0..lines {
            let half = |i: usize| meta_at(self.scales, Dtype::F16, 32 * line + i);
            let sigma = Line(core::array::from_fn(|i| half(2 * i)));
            let z = Line(core::array::from_fn(|i| half(2 * i + 1)));
            square.fma(&sigma, &sigma);
            for h in 0..shape.heads {
                let o = &mut o[h * lines + line];
                o.fma(&sigma, &self.sums[h * lines + line]);
                o.axpy(self.weights[h], &z);
                if let Some(half) = self.half {
                    o.axpy(half * self.weights[h], &sigma);
                }
            }
        }
        square.sum()
    }

    /// True if there are scales for all channels and sums for all heads: what wide code asserts.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn fits(&self, shape: Shape) -> bool {
        self.scales.len() >= 4 * shape.dim && self.sums.len() >= shape.heads * shape.dim_lines()
    }
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
        let join = Join { scales, sums: &sums[..used], weights: &work.softmax.sum, half };
        let square = (self.ops.join_channels)(&join, shape, &mut out.o);
        // As of other codes: each weight is off by half a digit, against a code of at most 2^(m-1), and a residual of at most a step.
        let most = f64::from(codes.half()) + if half.is_some() { 1.0 } else { 0.0 };
        // Half the roundings of the sum of squares are less than what `set_values` adds.
        let half_codes = most * shape.tokens as f64 * f64::from(square).sqrt();
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
