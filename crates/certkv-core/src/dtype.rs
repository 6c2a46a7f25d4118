//! Element types of inputs, originals and metadata.
use core::fmt;

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
            Dtype::F16 => half::f16::from_bits(bits).to_f32(),
            Dtype::Bf16 => half::bf16::from_bits(bits).to_f32(),
            Dtype::F32 => f32::NAN,
        }
    }

    /// The 16-bit pattern nearest to `x` (ties to even). `F32` rounds to half precision, as a caller that stores
    /// single precision inputs in a half precision cache wants.
    #[inline]
    pub fn encode16(self, x: f32) -> u16 {
        match self {
            Dtype::F16 | Dtype::F32 => half::f16::from_f32(x).to_bits(),
            Dtype::Bf16 => half::bf16::from_f32(x).to_bits(),
        }
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

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
            Dtype::F32 => "f32",
        })
    }
}
