//! FP8 codes with one scale per token (or block) and group of channels, math.md (2.9).
use crate::error::{CodecError, Input, finite, grouped, rows, sized};
use crate::logit;
use crate::numeric::divisor;
use crate::token_sym::{Sharing, largest_row};
use certkv_core::{
    Dtype,
    round::{E4M3, E5M2, Fp, exp2i, nearest, up},
};

/// An 8-bit floating-point type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fp8 {
    /// 4 exponent bits, largest value 448: the default for keys and values.
    E4m3,
    /// 5 exponent bits, largest value 57344.
    E5m2,
}

impl Fp8 {
    /// Precision and range.
    pub const fn format(self) -> Fp {
        match self {
            Self::E4m3 => E4M3,
            Self::E5m2 => E5M2,
        }
    }

    /// Value of a code byte; NaN for the codes of NaN and infinities, which are never written.
    pub fn value(self, code: u8) -> f64 {
        let fp = self.format();
        let fraction_bits = fp.precision - 1;
        let (exponent, fraction) = (i32::from(code & 0x7f) >> fraction_bits, code & ((1 << fraction_bits) - 1));
        let reserved = match self {
            Self::E4m3 => code & 0x7f == 0x7f,
            Self::E5m2 => exponent == 31,
        };
        if reserved {
            return f64::NAN;
        }
        let fraction = f64::from(fraction);
        let magnitude = match exponent {
            0 => fraction * exp2i(fp.emin - fraction_bits),
            e => (1.0 + fraction * exp2i(-fraction_bits)) * exp2i(e - 1 + fp.emin),
        };
        if code & 0x80 == 0 { magnitude } else { -magnitude }
    }

    /// Code byte of the nearest value; saturates, NaN gives 0, and zero is positive.
    pub fn code(self, x: f64) -> u8 {
        let fp = self.format();
        let fraction_bits = fp.precision - 1;
        let rounded = nearest(x, fp);
        let magnitude = rounded.abs();
        let bits = if magnitude >= exp2i(fp.emin) {
            let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023) - fp.emin + 1;
            let fraction = (magnitude.to_bits() >> (52 - fraction_bits)) as i32 & ((1 << fraction_bits) - 1);
            (exponent << fraction_bits | fraction) as u8
        } else {
            // Subnormal: a multiple of the least value. `as` turns NaN into 0.
            (magnitude / exp2i(fp.emin - fraction_bits)) as u8
        };
        if rounded < 0.0 { bits | 0x80 } else { bits }
    }
}

/// A coded block of `rows` tokens and `dim` channels.
#[derive(Debug, Clone, PartialEq)]
pub struct Fp8Block {
    /// Channels.
    pub dim: usize,
    /// Channels that share a scale.
    pub group: usize,
    /// Type of the codes.
    pub kind: Fp8,
    /// Code bytes, row-major (rows, dim).
    pub codes: Vec<u8>,
    /// Scales: (rows, dim / group), or (dim / group,) if the block shares them.
    pub scale: Vec<f64>,
}

/// Codes `keys` (rows, dim) with scales of type `meta`.
///
/// # Errors
/// [`CodecError::Shape`], [`CodecError::NonFinite`], or [`CodecError::ScaleOverflow`].
pub fn encode(
    keys: &[f64],
    dim: usize,
    group: usize,
    kind: Fp8,
    sharing: Sharing,
    meta: Dtype,
) -> Result<Fp8Block, CodecError> {
    let n = rows(Input::Keys, keys.len(), dim)?;
    let groups = grouped(dim, group)?;
    finite(Input::Keys, keys, dim)?;
    let mut scale = vec![0.0f64; n * groups];
    for (key, scale) in keys.chunks_exact(dim).zip(scale.chunks_exact_mut(groups)) {
        largest_row(key, group, scale);
    }
    if sharing == Sharing::Block {
        let mut shared = vec![0.0f64; groups];
        for row in scale.chunks_exact(groups) {
            shared.iter_mut().zip(row).for_each(|(s, x)| *s = s.max(*x));
        }
        scale = shared;
    }
    for (i, s) in scale.iter_mut().enumerate() {
        *s = up(*s / kind.format().max, Fp::from(meta));
        if !s.is_finite() {
            let (row, channel) = (i / groups, i % groups * group);
            return Err(CodecError::ScaleOverflow { input: Input::Keys, row, channel, meta });
        }
    }
    let mut codes = Vec::with_capacity(keys.len());
    for (part, s) in keys.chunks_exact(group).zip(scale.iter().cycle()) {
        // A scale of 0 belongs to a group of zeros.
        codes.extend(part.iter().map(|k| kind.code(k / divisor(*s))));
    }
    Ok(Fp8Block { dim, group, kind, codes, scale })
}

/// Codes of one row of groups with scales that are given, and the errors `x - x^`; what lies beyond the largest value saturates.
pub(crate) fn code_row(row: &[f64], group: usize, kind: Fp8, scale: &[f64], codes: &mut [u8], errors: &mut [f64]) {
    let parts = row.chunks_exact(group).zip(codes.chunks_exact_mut(group)).zip(errors.chunks_exact_mut(group));
    for (((row, codes), errors), s) in parts.zip(scale) {
        for ((x, code), error) in row.iter().zip(codes).zip(errors) {
            // A scale of 0 means all codes 0: a fixed one may meet elements that are not 0.
            *code = if *s > 0.0 { kind.code(x / s) } else { 0 };
            *error = x - kind.value(*code) * s;
        }
    }
}

impl Fp8Block {
    /// The decoded keys, row-major (rows, dim).
    pub fn decode(&self) -> Vec<f64> {
        let groups = self.codes.chunks_exact(self.group).zip(self.scale.iter().cycle());
        groups.flat_map(|(codes, s)| codes.iter().map(move |c| self.kind.value(*c) * s)).collect()
    }
}

/// Logits from codes: `s sum_G scale_tG sum_{c in G} value(code_tc) q_c`, (rows,).
///
/// # Errors
/// [`CodecError::Shape`] if `q` has not `dim` entries.
pub fn score(block: &Fp8Block, q: &[f64], scale: f64) -> Result<Vec<f64>, CodecError> {
    sized(Input::Query, q.len(), block.dim)?;
    let part = |codes: &[u8], q: &[f64]| codes.iter().zip(q).map(|(c, q)| block.kind.value(*c) * q).sum::<f64>();
    let steps = block.scale.chunks_exact(block.dim / block.group).cycle();
    let row = |(codes, steps): (&[u8], &[f64])| {
        let parts = codes.chunks_exact(block.group).zip(q.chunks_exact(block.group)).zip(steps);
        scale * parts.map(|((codes, q), s)| s * part(codes, q)).sum::<f64>()
    };
    Ok(block.codes.chunks_exact(block.dim).zip(steps).map(row).collect())
}

/// Bound of `|x - x^|` for one element: `max(2^-p |x|, s 2^(emin-p))`, math.md (2.9).
pub fn element_error(x: f64, scale: f64, kind: Fp8) -> f64 {
    let fp = kind.format();
    (x.abs() * exp2i(-fp.precision)).max(scale * exp2i(fp.emin - fp.precision))
}

/// `Delta` of a block from its measured group errors, math.md (4.4).
pub fn delta(q: &[f64], group_errors: &[f64], group: usize, scale: f64) -> f64 {
    logit::delta_groups(q, group_errors, group, scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_the_code_of_its_value() {
        for kind in [Fp8::E4m3, Fp8::E5m2] {
            let mut seen = 0;
            for code in 0..=255u8 {
                let v = kind.value(code);
                if !v.is_nan() && code != 0x80 {
                    assert_eq!(kind.code(v), code, "{kind:?} {code:#x}");
                    seen += 1;
                }
            }
            assert_eq!(seen, if kind == Fp8::E4m3 { 253 } else { 247 });
            assert_eq!(kind.value(kind.code(1e9)), kind.format().max);
            assert_eq!((kind.code(f64::NAN), kind.code(-0.0)), (0, 0));
        }
    }
}
