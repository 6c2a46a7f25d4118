//! Why there is no calibration, or not this one.
use crate::ControlError;
use core::fmt;

/// Why a calibration was not made, not read or not used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CalibrationError {
    /// The file does not begin as calibrations do.
    Magic,
    /// The file is of another version.
    Version {
        /// The version that it names.
        found: u32,
        /// The version that is read.
        known: u32,
    },
    /// The file is shorter than its own header says.
    Truncated {
        /// Bytes there are.
        have: usize,
        /// Bytes there should be.
        need: usize,
    },
    /// The file is longer than its own header says.
    Trailing {
        /// Bytes too many.
        bytes: usize,
    },
    /// The file was changed after it was written.
    Checksum,
    /// A field of the header has a value that no calibration has.
    Field {
        /// Its name.
        what: &'static str,
        /// The value.
        found: u64,
    },
    /// A number of a head is NaN or out of its range.
    Number {
        /// Layer.
        layer: usize,
        /// Key head of the layer.
        head: usize,
        /// Which numbers.
        what: &'static str,
        /// Position of the first that is wrong.
        index: usize,
    },
    /// The calibration is of a model with other heads.
    OtherHeads {
        /// The first difference.
        what: &'static str,
        /// What the calibration has.
        file: usize,
        /// What was asked for.
        wanted: usize,
    },
    /// The calibration is of a model with the same heads and other weights.
    OtherModel,
    /// Something has the wrong length.
    Rows {
        /// What.
        what: &'static str,
        /// Its length.
        got: usize,
        /// The length needed.
        want: usize,
    },
    /// The text is too short.
    Tokens {
        /// Tokens that it has.
        have: u64,
        /// Tokens needed.
        need: u64,
    },
    /// A group of channels has fewer directions than its codebook.
    Directions {
        /// Layer.
        layer: usize,
        /// Key head of the layer.
        head: usize,
        /// Group of channels of the head.
        group: usize,
        /// Keys whose group is not zero.
        have: usize,
        /// Directions of the codebook.
        need: usize,
    },
    /// The schemes could not be chosen.
    Rule(ControlError),
}

impl fmt::Display for CalibrationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("calibration: ")?;
        match *self {
            Self::Magic => f.write_str("the file is none"),
            Self::Version { found, known } => write!(f, "the file has version {found}; {known} is read"),
            Self::Truncated { have, need } => write!(f, "the file has {have} bytes of {need}"),
            Self::Trailing { bytes } => write!(f, "the file has {bytes} bytes too many"),
            Self::Checksum => f.write_str("the file was changed or damaged after it was written"),
            Self::Field { what, found } => write!(f, "{what} cannot be {found}"),
            Self::Number { layer, head, what, index } => {
                write!(f, "layer {layer}, key head {head}: {what}[{index}] is no number that it may be")
            }
            Self::OtherHeads { what, file, wanted } => write!(f, "made for {what} {file}, not {wanted}"),
            Self::OtherModel => f.write_str("made for a model with other weights or another configuration"),
            Self::Rows { what, got, want } => write!(f, "{what}: {got}, where {want} are needed"),
            Self::Tokens { have, need } => write!(f, "the text has {have} tokens; at least {need} are needed"),
            Self::Directions { layer, head, group, have, need } => write!(
                f,
                "layer {layer}, key head {head}, group {group}: {have} keys that are not zero; {need} directions need as many"
            ),
            Self::Rule(e) => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for CalibrationError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Rule(e) => Some(e),
            _ => None,
        }
    }
}

impl From<ControlError> for CalibrationError {
    fn from(e: ControlError) -> Self {
        Self::Rule(e)
    }
}
