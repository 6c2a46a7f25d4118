//! Codes of sides with one scale per block, and their names.
use crate::format::{FormatError, number};
use core::fmt;

/// Codes of sides with one scale per block, math.md (2.9a).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PageCode {
    /// Symmetric (tread) codes of 2 to 8 bits, math.md (2.7).
    Int(u8),
    /// Floating point with 4 exponent and 3 fraction bits, largest value 448, math.md (2.9).
    E4m3,
    /// Floating point with 5 exponent and 2 fraction bits, largest value 57344, math.md (2.9).
    E5m2,
}

impl PageCode {
    /// Bits of one code.
    pub const fn bits(self) -> u8 {
        match self {
            Self::Int(bits) => bits,
            Self::E4m3 | Self::E5m2 => 8,
        }
    }

    /// True for floating-point codes.
    pub const fn is_float(self) -> bool {
        !matches!(self, Self::Int(_))
    }

    /// Code and group of `e4m3`, `e5m2g64`, `p4g32`; `None` for another name.
    pub(crate) fn parse(s: &str) -> Option<Result<(Self, u16), FormatError>> {
        let code = match s.as_bytes() {
            [b'e', b'4', b'm', b'3', ..] => Self::E4m3,
            [b'e', b'5', b'm', b'2', ..] => Self::E5m2,
            [b'p', bits @ b'0'..=b'9', ..] => Self::Int(bits - b'0'),
            _ => return None,
        };
        let rest = &s[if code.is_float() { 4 } else { 2 }..];
        let group = match rest.strip_prefix('g') {
            Some(group) => number(group),
            None if rest.is_empty() => Ok(0),
            None => Err(FormatError::Syntax(s.to_owned())),
        };
        Some(group.map(|group| (code, group)))
    }

    /// The inverse of [`PageCode::parse`].
    pub(crate) fn write(self, group: u16, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if group == 0 { write!(f, "{self}") } else { write!(f, "{self}g{group}") }
    }
}

impl fmt::Display for PageCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(bits) => write!(f, "p{bits}"),
            Self::E4m3 => f.write_str("e4m3"),
            Self::E5m2 => f.write_str("e5m2"),
        }
    }
}
