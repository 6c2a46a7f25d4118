//! Element types of inputs, originals and metadata.
use core::fmt;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};

/// Element type of a key, value, query, output or scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dtype {
    /// IEEE half precision: 11 bits of precision, largest value 65504.
    F16,
    /// bfloat16: 8 bits of precision, exponent range of `f32`.
    Bf16,
    /// IEEE single precision.
    F32,
}

impl Dtype {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::F32 => 4,
        }
    }

    /// True for the two types an original may be stored in (Tier-2 keeps 16-bit originals).
    pub const fn is_sixteen_bit(self) -> bool {
        !matches!(self, Dtype::F32)
    }

    /// Value of a 16-bit pattern of this type. `F32` has no 16-bit pattern and gives NaN, which every reader refuses.
    #[inline]
    pub fn decode16(self, bits: u16) -> f32 {
        match self {
            Dtype::F16 => f16::from_bits(bits).to_f32(),
            Dtype::Bf16 => bf16::from_bits(bits).to_f32(),
            Dtype::F32 => f32::NAN,
        }
    }

    /// The 16-bit pattern nearest to `x` (ties to even). `F32` rounds to half precision, as a caller that stores
    /// single precision inputs in a half precision cache wants.
    #[inline]
    pub fn encode16(self, x: f32) -> u16 {
        match self {
            Dtype::F16 | Dtype::F32 => f16::from_f32(x).to_bits(),
            Dtype::Bf16 => bf16::from_f32(x).to_bits(),
        }
    }

    /// [`Dtype::encode16`] of every number, in place of what `to` held: several at a time where the machine can, which one by one is left to chance.
    pub fn encode16_all(self, from: &[f32], to: &mut Vec<u16>) {
        // What is longer than before is written, not cleared and written.
        to.resize(from.len(), 0);
        match self {
            Dtype::F16 | Dtype::F32 => to.reinterpret_cast_mut::<f16>().convert_from_f32_slice(from),
            Dtype::Bf16 => to.reinterpret_cast_mut::<bf16>().convert_from_f32_slice(from),
        }
    }

    /// Place of the first 16-bit pattern that is NaN or infinite in this type.
    pub fn nonfinite16_at(self, bits: &[u16]) -> Option<usize> {
        first(bits, |bits| self.is_nonfinite16(*bits))
    }

    /// True if the 16-bit pattern is NaN or infinite in this type (math.md (0.4): refused before anything is written).
    #[inline]
    pub fn is_nonfinite16(self, bits: u16) -> bool {
        match self {
            Dtype::F16 => bits & 0x7c00 == 0x7c00,
            Dtype::Bf16 => bits & 0x7f80 == 0x7f80,
            Dtype::F32 => true,
        }
    }
}

/// Place of the first number that is NaN or infinite.
pub fn nonfinite_at(numbers: &[f32]) -> Option<usize> {
    first(numbers, |x| !x.is_finite())
}

/// Place of the first item that is bad. Most often there is none, which chunks without an early end say faster.
fn first<T>(items: &[T], bad: impl Fn(&T) -> bool) -> Option<usize> {
    const AT_ONCE: usize = 256;
    let any = |chunk: &[T]| chunk.iter().fold(false, |any, item| any | bad(item));
    let from = AT_ONCE * items.chunks(AT_ONCE).position(any)?;
    items[from..].iter().position(bad).map(|at| from + at)
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
            Dtype::F32 => "f32",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_at_once_are_what_each_is() {
        let numbers: Vec<f32> = (0..70_000u32).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b9))).collect();
        for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F32] {
            let mut all = vec![7; 3];
            for count in [0, 1, 7, 8, 9, 1000, numbers.len()] {
                dtype.encode16_all(&numbers[..count], &mut all);
                assert_eq!(all.len(), count);
                for (x, bits) in numbers.iter().zip(&all) {
                    let one = dtype.encode16(*x);
                    // Of what is no number any may come.
                    assert!(
                        one == *bits || x.is_nan() && dtype.decode16(*bits).is_nan() || dtype == Dtype::F32,
                        "{x:e}"
                    );
                }
            }
            let first = all.iter().position(|bits| dtype.is_nonfinite16(*bits));
            assert!(first.is_some());
            assert_eq!(dtype.nonfinite16_at(&all), first);
        }
        let mut bits = vec![0x3c00u16; 1000];
        assert_eq!(Dtype::F16.nonfinite16_at(&bits), None);
        for at in [999, 512, 511, 256, 255, 0] {
            bits[at] = 0x7c00;
            assert_eq!(Dtype::F16.nonfinite16_at(&bits), Some(at));
        }
        assert_eq!(nonfinite_at(&[1.0, f32::MAX, -0.0]), None);
        assert_eq!(nonfinite_at(&[1.0, f32::NEG_INFINITY, f32::NAN]), Some(1));
    }
}
