//! Sides with one f16 scale per block and group of channels, math.md (2.9a): the guide's formats in records. The codes are those of
//! [`crate::token_sym`] and [`crate::fp8`] with shared scales, whose row functions this module calls.
use crate::error::{CodecError, Input};
use crate::fp8::{self, Fp8};
use crate::token_sym::{self, largest_row};
use certkv_core::{
    Dtype, PageCode,
    round::{F16, up},
};

/// Magnitudes that scales are made of where they do not come from the block itself: of every [`FixedScales::PIECE`] channels of a head the
/// largest that its scale should reach. What a block has beyond them saturates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FixedScales<'a> {
    /// Of the keys, (dim / 16,).
    pub keys: &'a [f32],
    /// Of the values, (dim / 16,).
    pub values: &'a [f32],
}

impl FixedScales<'_> {
    /// Channels that share a magnitude.
    pub const PIECE: usize = 16;
}

/// What decides the codes of a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) code: PageCode,
    /// Channels that share a scale.
    pub(crate) group: usize,
}

/// Largest value that a code stands for, in units of its scale.
pub(crate) fn reach(code: PageCode) -> f64 {
    match kind(code) {
        Ok(kind) => kind.format().max,
        Err(bits) => f64::from(1u16 << (bits - 1)) - 1.0,
    }
}

/// The type of floating-point codes, or the bits of others.
pub(crate) fn kind(code: PageCode) -> Result<Fp8, u8> {
    match code {
        PageCode::E4m3 => Ok(Fp8::E4m3),
        PageCode::E5m2 => Ok(Fp8::E5m2),
        PageCode::Int(bits) => Err(bits),
    }
}

impl Spec {
    /// Scales of a block from its largest magnitudes, or from `fixed` ones by piece, (dim / group,).
    ///
    /// # Errors
    /// [`CodecError::ScaleOverflow`] if one does not fit, which takes originals or magnitudes beyond f16.
    pub(crate) fn scales(
        &self,
        side: &[f64],
        dim: usize,
        fixed: Option<&[f32]>,
        input: Input,
        scale: &mut [f64],
    ) -> Result<(), CodecError> {
        scale.fill(0.0);
        if let Some(fixed) = fixed {
            for (s, pieces) in scale.iter_mut().zip(fixed.chunks(self.group / FixedScales::PIECE)) {
                *s = pieces.iter().fold(0.0, |most, x| f64::max(most, f64::from(*x)));
            }
        } else {
            // A head has 16 groups at most.
            let mut row_scale = [0.0f64; 16];
            for row in side.chunks_exact(dim) {
                largest_row(row, self.group, &mut row_scale);
                scale.iter_mut().zip(&row_scale).for_each(|(s, x)| *s = if *x > *s { *x } else { *s });
            }
        }
        let reach = reach(self.code);
        for (g, s) in scale.iter_mut().enumerate() {
            *s = up(*s / reach, F16);
            if !s.is_finite() {
                return Err(CodecError::ScaleOverflow { input, row: 0, channel: g * self.group, meta: Dtype::F16 });
            }
        }
        Ok(())
    }

    /// Codes of one row, and what they are off by; elements beyond the last level saturate, and are counted.
    pub(crate) fn code_row(&self, row: &[f64], scale: &[f64], codes: &mut [u8], errors: &mut [f64]) -> usize {
        match kind(self.code) {
            Ok(kind) => fp8::code_row(row, self.group, kind, scale, codes, errors),
            Err(bits) => token_sym::code_row(row, self.group, bits, scale, codes, errors),
        }
        let reach = reach(self.code) + if self.code.is_float() { 0.0 } else { 0.5 };
        let beyond = |(part, s): (&[f64], &f64)| part.iter().filter(|x| x.abs() > reach * s).count();
        row.chunks_exact(self.group).zip(scale).map(beyond).sum()
    }

    /// `||x||` with `x_c` the largest magnitude that a code of channel `c` stands for, for (4.12).
    pub(crate) fn magnitude(&self, scale: &[f64]) -> f64 {
        // Signed codes reach one further than levels do.
        let reach = reach(self.code) + if self.code.is_float() { 0.0 } else { 1.0 };
        (scale.iter().map(|s| (reach * s).powi(2)).sum::<f64>() * self.group as f64).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token_sym::{Mode, Sharing};
    use certkv_core::hash::splitmix64;

    fn side(dim: usize, seed: u64) -> Vec<f64> {
        let x = |i: usize| (splitmix64(seed ^ i as u64) >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
        (0..16 * dim).map(|i| x(i) * f64::from(1 << (i % dim % 7))).collect()
    }

    /// Records hold what the reference codecs with shared scales do.
    #[test]
    fn codes_are_those_of_the_reference() {
        let (dim, group) = (64, 32);
        let side = side(dim, 3);
        for code in [PageCode::E4m3, PageCode::E5m2, PageCode::Int(8), PageCode::Int(4), PageCode::Int(2)] {
            let spec = Spec { code, group };
            let mut scale = [0.0; 2];
            spec.scales(&side, dim, None, Input::Keys, &mut scale).unwrap();
            let (mut codes, mut errors) = (vec![0; side.len()], vec![0.0; side.len()]);
            let rows = side.chunks_exact(dim).zip(codes.chunks_exact_mut(dim)).zip(errors.chunks_exact_mut(dim));
            let lost: usize = rows.map(|((row, codes), errors)| spec.code_row(row, &scale, codes, errors)).sum();
            let decoded = match kind(code) {
                Ok(kind) => {
                    let block = fp8::encode(&side, dim, group, kind, Sharing::Block, Dtype::F16).unwrap();
                    assert_eq!((&block.codes, block.scale.as_slice()), (&codes, scale.as_slice()), "{code}");
                    block.decode()
                }
                Err(bits) => {
                    let spec =
                        token_sym::Spec { bits, group, sharing: Sharing::Block, mode: Mode::Tread, meta: Dtype::F16 };
                    let block = token_sym::encode(&side, dim, spec).unwrap();
                    let half = 1i16 << (bits - 1);
                    assert!(block.codes.iter().zip(&codes).all(|(a, b)| i16::from(*a) + half == i16::from(*b)));
                    assert_eq!(block.scale, scale, "{code}");
                    block.decode()
                }
            };
            assert_eq!(lost, 0, "{code}");
            for ((x, y), e) in side.iter().zip(decoded).zip(&errors) {
                assert_eq!(x - y, *e, "{code}");
                let most = match kind(code) {
                    Ok(kind) => fp8::element_error(*x, scale[0].max(scale[1]), kind),
                    Err(_) => 0.5 * scale[0].max(scale[1]),
                };
                assert!(e.abs() <= most, "{code}: {e} > {most}");
            }
        }
    }

    #[test]
    fn what_a_fixed_scale_cannot_reach_is_counted() {
        let row = [1.0, -300.0, 500.0, 7.0, 7.5, 7.6, 0.0, -9.0].repeat(2);
        let (mut codes, mut errors) = ([0; 16], [0.0; 16]);
        let spec = |code| Spec { code, group: 16 };
        assert_eq!(spec(PageCode::E4m3).code_row(&row, &[1.0], &mut codes, &mut errors), 2);
        assert_eq!(errors[2], 52.0);
        // Levels end at 7, and what rounds to 7 is not lost.
        assert_eq!(spec(PageCode::Int(4)).code_row(&row, &[1.0], &mut codes, &mut errors), 8);
        assert_eq!((errors[5], errors[7]), (7.6 - 7.0, -2.0));
        // A scale of 0 reaches nothing but 0.
        assert_eq!(spec(PageCode::E5m2).code_row(&row, &[0.0], &mut codes, &mut errors), 14);
        assert_eq!(errors.as_slice(), row.as_slice());
    }

    #[test]
    fn scales_that_do_not_fit_are_refused() {
        let mut scale = [0.0];
        let spec = Spec { code: PageCode::Int(2), group: 16 };
        assert!(spec.scales(&[65504.0; 16], 16, None, Input::Values, &mut scale).is_ok());
        let refused = spec.scales(&[65505.0; 16], 16, None, Input::Values, &mut scale);
        assert!(matches!(refused, Err(CodecError::ScaleOverflow { input: Input::Values, channel: 0, .. })));
    }
}
