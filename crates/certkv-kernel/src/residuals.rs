//! Sides of a refinable format read with their residuals, math.md (2.23): `x^^ = x^ + (r + 1/2) sigma / 2^bits`. Residuals are codes
//! in the same steps, finer by a power of two: they meet the digits that the codes have met, and join what these gave.
use crate::attend::{Kernel, Workspace, part};
use crate::block::Block;
use crate::error::KernelError;
use crate::line::Line;
use crate::masses::Entry;
use crate::partial::Partial;
use crate::query::{Cursor, GROUPS, HEADS, KeyCodes, Scaling, ValueCodes, X_STRIDE};
use crate::slack::{Slack, inflate};
use certkv_core::{Dtype, Refine, RefinedSummary, summary::SUMMARY_BYTES};

impl Kernel {
    /// Bits of the residuals that a block's keys are read with; 0 where they are read without.
    pub(crate) fn fine_keys(&self, block: &Block<'_>) -> u8 {
        if block.fine_keys { self.layout.format.refine.key } else { 0 }
    }

    /// The same of its values.
    pub(crate) fn fine_values(&self, block: &Block<'_>) -> u8 {
        if block.fine_values { self.layout.format.refine.value } else { 0 }
    }

    /// Bounds of a refined block; NaN where the record has none.
    fn refined(&self, block: &Block<'_>) -> RefinedSummary {
        let summary = block.record.get(self.layout.summary.clone()).unwrap_or(&[]);
        RefinedSummary::from_bytes(summary.get(SUMMARY_BYTES..).unwrap_or(&[]))
    }

    /// Bounds of keys read with residuals of `bits` bits, `half` being what a code without them comes to at most. `up` covers the
    /// roundings of sums of digits.
    pub(crate) fn fine_slack(&self, block: &Block<'_>, bits: u8, half: f64, up: f64, slack: &mut Slack) {
        let s = f64::from(self.scale);
        // (4.2) with half a finer step; a digit's residual meets the code and all of its residual, which is at most one step.
        let (step, most) = (0.5 * f64::from(Refine::finer(bits)), half + 1.0);
        let refined = self.refined(block);
        slack.set_keys(s * step * up, s * most * up, s * f64::from(refined.kappa) * up);
        slack.norm = refined.eps;
        slack.magnitude = inflate(f64::from(slack.magnitude) * (1.0 + 1.0 / half));
    }

    /// Logits of keys with residuals of `bits` bits, from those of their codes in `work.x`. The digits are those of the codes.
    pub(crate) fn residual_keys(
        &self,
        index: usize,
        block: &Block<'_>,
        bits: u8,
        work: &mut Workspace,
    ) -> Result<(), KernelError> {
        let section = part(index, block.record, &self.layout.key_residuals, "record")?;
        let (unit, used) = (self.unit() * Refine::finer(bits), self.shape.heads * X_STRIDE);
        let (mut mul, mut add) = ([0.0; HEADS], [0.0; HEADS]);
        for h in 0..self.shape.heads {
            mul[h] = work.digits.step[h] * unit;
            // A sum of digits is below 2^24, and so exact.
            add[h] = 0.5 * work.digits.sums[h][0] as f32 * mul[h];
        }
        work.spare[..used].copy_from_slice(&work.x[..used]);
        let codes = KeyCodes { section, bits: bits.into(), levels: None, scaling: Scaling::Channel, mul, add };
        let (scratch, ahead) = (&mut work.values.codes, &mut Cursor::default());
        (self.ops.score_codes)(&codes, &work.digits, scratch, self.shape, &mut work.x, ahead);
        for (x, coarse) in work.x[..used].iter_mut().zip(&work.spare) {
            x.0.iter_mut().zip(&coarse.0).for_each(|(x, coarse)| *x += coarse);
        }
        Ok(())
    }

    /// The value bounds of an entry, for values read with residuals.
    pub(crate) fn fine_entry(&self, block: &Block<'_>, entry: &mut Entry) {
        let fine = self.refined(block);
        (entry.eta, entry.sop) = (fine.eta, fine.sop);
    }

    /// Sums residuals of `bits` bits of values whose scales are a token's. What they cost in digits is in the entry already.
    pub(crate) fn residual_values(
        &self,
        index: usize,
        block: &Block<'_>,
        bits: u8,
        work: &mut Workspace,
        out: &mut Partial,
        entry: &mut Entry,
    ) -> Result<(), KernelError> {
        let (shape, lines, fine) = (self.shape, self.shape.dim_lines(), Refine::finer(bits));
        let section = part(index, block.record, &self.layout.value_residuals, "record")?;
        let scales = part(index, block.record, &self.layout.value_scales, "record")?;
        let group = self.layout.format.value.group(shape.dim);
        let codes = ValueCodes { section, bits: bits.into(), levels: None, group, offsets: false, scales };
        let mut sums = core::mem::take(&mut work.page.lines);
        let of_heads = &mut sums[..shape.heads * lines];
        of_heads.fill(Line::ZERO);
        let (x, values, ahead) = (&work.x, &mut work.values, &mut Cursor::default());
        let slack = (self.ops.value_codes)(&codes, x, &work.softmax, shape, values, of_heads, ahead);
        out.o.iter_mut().zip(of_heads.iter()).for_each(|(o, sum)| o.axpy(fine, sum));
        work.page.lines = sums;
        // Half a finer step for every weight: the same in all channels of a group.
        let number = |bytes: &[u8; 2]| Dtype::F16.decode16(u16::from_le_bytes(*bytes));
        let mut sigma = scales.as_chunks::<2>().0.iter().map(|bytes| number(bytes) * (0.5 * fine));
        for g in 0..shape.dim / group {
            for l in 0..shape.tokens / 16 {
                let half = Line(core::array::from_fn(|_| sigma.next().unwrap_or(f32::NAN)));
                for h in 0..shape.heads {
                    work.values.middle[h * GROUPS + g].fma(&work.x[h * X_STRIDE + l], &half);
                }
            }
        }
        // Residuals are summed apart, each at most a step in size.
        entry.value_norm = inflate(f64::from(entry.value_norm) + f64::from(slack.sigma));
        out.chain += 2 + shape.tokens / 16;
        Ok(())
    }
}
