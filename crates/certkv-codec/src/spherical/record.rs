//! Spherical keys in records: `[group][token]` indices and radii, one scale per block and group. The codes are those of
//! [`encode`](super::encode) with projections as radii and f16 scales, whatever the scheme says of both.
use super::{Spherical, UNIT};
use crate::error::{CodecError, Input, sized};
use crate::numeric::divisor;
use crate::planes::write_planes;
use certkv_core::{
    Dtype, RecordLayout,
    round::{Fp, up},
};

impl Spherical {
    /// Refuses records that do not hold such keys.
    ///
    /// # Errors
    /// [`CodecError::Metric`] for a format that has no directions, [`CodecError::Shape`] for another head, or codebooks of another tier
    /// (naming the numbers of one).
    pub fn check(&self, layout: &RecordLayout) -> Result<(), CodecError> {
        let Some(tier) = layout.format.key.tier() else { return Err(CodecError::Metric { needed: false }) };
        sized(Input::Codebook, self.channels(), layout.dim)?;
        if tier == self.tier {
            return Ok(());
        }
        Err(CodecError::Shape { input: Input::Codebook, got: self.tier.book_len(), want: tier.book_len() })
    }

    /// Indices and reaches of `keys` (rows, channels), both `[group][token]`, and the scales, (groups,), of the radii.
    pub(crate) fn fit(
        &self,
        keys: &[f64],
        indices: &mut [u8],
        reach: &mut [f64],
        scale: &mut [f64],
    ) -> Result<(), CodecError> {
        let (width, tokens) = (self.tier.group(), keys.len() / self.channels());
        scale.fill(0.0);
        for (token, key) in keys.chunks_exact(self.channels()).enumerate() {
            for (group, (part, book)) in key.chunks_exact(width).zip(&self.books).enumerate() {
                let (index, product) = book.nearest(part);
                let at = group * tokens + token;
                (indices[at], reach[at]) = (index, product.max(0.0));
                scale[group] = scale[group].max(reach[at]);
            }
        }
        for (group, scale) in scale.iter_mut().enumerate() {
            *scale = up(*scale / 255.0, Fp::from(Dtype::F16));
            if !scale.is_finite() {
                let channel = group * width;
                return Err(CodecError::ScaleOverflow { input: Input::Keys, row: 0, channel, meta: Dtype::F16 });
            }
        }
        Ok(())
    }

    /// The code section of what [`Spherical::fit`] found. `errors` holds the reaches, and takes the errors of `keys` (rows, channels);
    /// `radii` is room for a block's.
    pub(crate) fn write(
        &self,
        keys: &[f64],
        indices: &[u8],
        scale: &[f64],
        radii: &mut [u8],
        errors: &mut [f64],
        section: &mut [u8],
    ) {
        let (dim, width, tokens) = (self.channels(), self.tier.group(), keys.len() / self.channels());
        let count = tokens * self.books.len();
        let (indices, radii) = (&indices[..count], &mut radii[..count]);
        let of_groups = radii.chunks_exact_mut(tokens).zip(errors.chunks_exact(tokens)).zip(scale);
        for ((radii, reach), scale) in of_groups {
            let by = divisor(*scale);
            radii.iter_mut().zip(reach).for_each(|(u, r)| *u = (r / by).round_ties_even().clamp(0.0, 255.0) as u8);
        }
        for (token, (key, errors)) in keys.chunks_exact(dim).zip(errors.chunks_exact_mut(dim)).enumerate() {
            let parts = key.chunks_exact(width).zip(errors.chunks_exact_mut(width)).zip(scale.iter().zip(&self.books));
            for (group, ((key, errors), (scale, book))) in parts.enumerate() {
                let at = group * tokens + token;
                let r = scale * f64::from(radii[at]);
                let word = book.word(indices[at]);
                errors.iter_mut().zip(key.iter().zip(word)).for_each(|(e, (k, c))| *e = k - r * c);
            }
        }
        let (of_radii, of_indices) = section.split_at_mut(count);
        of_radii.copy_from_slice(radii);
        write_planes(indices, usize::from(self.tier.bits()), of_indices);
    }

    /// At least the norm of any decoded key of a block with these scales.
    pub(crate) fn magnitude(&self, scale: &[f64]) -> f64 {
        255.0 * scale.iter().map(|s| s * s).sum::<f64>().sqrt() * (1.0 + UNIT)
    }
}
