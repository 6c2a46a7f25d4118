//! What every codec refuses.
use certkv_core::{Dtype, Geometry, RecordLayout};
use core::fmt;

/// The argument that an error is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// Keys of the block.
    Keys,
    /// Values of the block.
    Values,
    /// Value centre of the head.
    Centre,
    /// Query.
    Query,
    /// Attention weights.
    Weights,
    /// A calibrated scale, or the steps of the code that is refined.
    Scale,
    /// Decoded block that accompanies the originals.
    Decoded,
    /// Codes to be packed or unpacked.
    Codes,
    /// Bytes of a record.
    Record,
    /// Where the result goes.
    Output,
    /// Tokens, channels, groups or bits asked for.
    Parameters,
    /// Bits of the pairs of a head.
    Schedule,
    /// Balance scale of the channels of a head.
    Balance,
    /// Key centre of the head.
    KeyCentre,
    /// Directions of the groups of a head.
    Codebook,
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Keys => "keys",
            Self::Values => "values",
            Self::Centre => "centre",
            Self::Query => "query",
            Self::Weights => "weights",
            Self::Scale => "scale",
            Self::Decoded => "decoded block",
            Self::Codes => "codes",
            Self::Record => "record",
            Self::Output => "output",
            Self::Parameters => "parameters",
            Self::Schedule => "schedule",
            Self::Balance => "balance scale",
            Self::KeyCentre => "key centre",
            Self::Codebook => "codebook",
        })
    }
}

/// Why a block was not coded. Nothing has been written when an encoder returns one of these, math.md (0.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodecError {
    /// NaN or an infinity in the input.
    NonFinite {
        /// Which argument.
        input: Input,
        /// Token of the block.
        row: usize,
        /// Channel of the head.
        channel: usize,
    },
    /// A scale or offset is not finite in its metadata type: the caller keeps the block uncompressed.
    ScaleOverflow {
        /// Keys or values.
        input: Input,
        /// Token whose scale it is; 0 for scales per block.
        row: usize,
        /// First channel that shares the scale.
        channel: usize,
        /// Metadata type.
        meta: Dtype,
    },
    /// An argument has the wrong size, or a parameter lies outside its range.
    Shape {
        /// Which argument.
        input: Input,
        /// What was given.
        got: usize,
        /// What was needed: a length, or a divisor of the length, or the largest parameter allowed.
        want: usize,
    },
    /// A pair of channels has a width that no codebook has.
    Width {
        /// The pair.
        pair: usize,
        /// Its bits.
        bits: u8,
        /// Most bits that there are.
        most: u8,
    },
    /// A balance scale is zero, negative, NaN or infinite.
    NotPositive {
        /// Which argument.
        input: Input,
        /// Channel of the head.
        channel: usize,
    },
    /// A direction of a codebook is not finite, or not of length 1.
    NotUnit {
        /// Group of channels whose codebook it is.
        group: usize,
        /// Its place there.
        word: usize,
    },
    /// The format is calibrated and there is no metric to code keys in, or the other way round.
    Metric {
        /// One is needed.
        needed: bool,
    },
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NonFinite { input, row, channel } => {
                write!(f, "{input}: not finite at token {row}, channel {channel}")
            }
            Self::ScaleOverflow { input, row, channel, meta } => {
                write!(f, "{input}: the scale or offset at token {row}, channel {channel} does not fit {meta}")
            }
            Self::Shape { input, got, want } => write!(f, "{input}: size {got} does not fit {want}"),
            Self::Width { pair, bits, most } => {
                write!(f, "schedule: pair {pair} has {bits} bits; 1 to {most} are coded")
            }
            Self::NotPositive { input, channel } => write!(f, "{input}: not positive and finite at channel {channel}"),
            Self::NotUnit { group, word } => {
                write!(f, "codebook: direction {word} of group {group} is not of length 1")
            }
            Self::Metric { needed: true } => f.write_str("metric: none given for keys that are coded in one"),
            Self::Metric { needed: false } => f.write_str("metric: given for keys that are coded as they are"),
        }
    }
}
impl std::error::Error for CodecError {}

/// Refuses a size other than the one needed.
pub(crate) fn sized(input: Input, got: usize, want: usize) -> Result<(), CodecError> {
    if got == want { Ok(()) } else { Err(CodecError::Shape { input, got, want }) }
}

/// Rows of a row-major block of `dim` channels with at least one token.
pub(crate) fn rows(input: Input, len: usize, dim: usize) -> Result<usize, CodecError> {
    if dim == 0 || len == 0 || !len.is_multiple_of(dim) {
        return Err(CodecError::Shape { input, got: len, want: dim });
    }
    Ok(len / dim)
}

/// Refuses groups that do not tile the head.
pub(crate) fn grouped(dim: usize, group: usize) -> Result<usize, CodecError> {
    if group == 0 || !dim.is_multiple_of(group) {
        return Err(CodecError::Shape { input: Input::Parameters, got: group, want: dim });
    }
    Ok(dim / group)
}

/// Refuses a layout put together by hand whose sections are not those of its format.
pub(crate) fn consistent(layout: &RecordLayout) -> Result<(), CodecError> {
    let (head_dim, store) = (layout.dim, layout.store);
    let geometry = Geometry { layers: 1, q_heads: 1, kv_heads: 1, head_dim, store, scale: 1.0 };
    let tiles = head_dim > 0 && head_dim.is_multiple_of(16);
    match RecordLayout::new(&geometry, layout.format) {
        Ok(l) if l == *layout && tiles => Ok(()),
        Ok(l) => Err(CodecError::Shape { input: Input::Parameters, got: layout.bytes, want: l.bytes }),
        Err(_) => Err(CodecError::Shape { input: Input::Parameters, got: layout.bytes, want: 0 }),
    }
}

/// Refuses code widths outside `2..=8`.
pub(crate) fn width(bits: u8) -> Result<u8, CodecError> {
    if (2..=8).contains(&bits) {
        Ok(bits)
    } else {
        Err(CodecError::Shape { input: Input::Parameters, got: bits as usize, want: 8 })
    }
}

/// Refuses NaN and infinities, math.md (0.4).
pub(crate) fn finite(input: Input, x: &[f64], dim: usize) -> Result<(), CodecError> {
    match x.iter().position(|v| !v.is_finite()) {
        None => Ok(()),
        Some(i) => Err(CodecError::NonFinite { input, row: i / dim, channel: i % dim }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_was_wrong() {
        let e = finite(Input::Keys, &[0.0, 1.0, f64::NAN, 2.0], 2);
        assert_eq!(e, Err(CodecError::NonFinite { input: Input::Keys, row: 1, channel: 0 }));
        assert_eq!(e.unwrap_err().to_string(), "keys: not finite at token 1, channel 0");
        assert!(rows(Input::Values, 0, 4).is_err() && rows(Input::Values, 6, 4).is_err());
        assert!(width(1).is_err() && width(9).is_err() && width(2).is_ok());
        assert!(grouped(64, 0).is_err() && grouped(64, 24).is_err());
    }
}
