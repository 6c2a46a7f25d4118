//! GPU architectures.
use super::variant::VariantError;
use core::fmt;

/// GPU architectures that machine code is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arch {
    /// A100.
    Sm80,
    /// A10, A40, RTX 30.
    Sm86,
    /// L4, L40, RTX 40.
    Sm89,
    /// H100, H200.
    Sm90a,
    /// B200.
    Sm100a,
    /// RTX 50, RTX PRO Blackwell.
    Sm120a,
}

impl Arch {
    /// All of them, oldest first.
    pub const ALL: [Self; 6] = [Self::Sm80, Self::Sm86, Self::Sm89, Self::Sm90a, Self::Sm100a, Self::Sm120a];

    /// The architecture whose code runs on a GPU of this compute capability. Code of the generations up to 8.9 runs on
    /// later members of its own; that of the later ones (`a`) on exactly one.
    ///
    /// # Errors
    /// [`VariantError::Capability`].
    pub const fn of(capability: (u32, u32)) -> Result<Self, VariantError> {
        Ok(match capability {
            (8, 0..=5) => Self::Sm80,
            (8, 6..=8) => Self::Sm86,
            (8, 9) => Self::Sm89,
            (9, 0) => Self::Sm90a,
            (10, 0) => Self::Sm100a,
            (12, 0) => Self::Sm120a,
            _ => return Err(VariantError::Capability(capability)),
        })
    }

    /// The name as in `sm_NAME`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sm80 => "80",
            Self::Sm86 => "86",
            Self::Sm89 => "89",
            Self::Sm90a => "90a",
            Self::Sm100a => "100a",
            Self::Sm120a => "120a",
        }
    }

    /// Bytes of shared memory that a kernel may ask for: what one block can opt in to, less the 1 KiB that the system
    /// keeps of it where every byte is given to one block.
    pub const fn shared_limit(self) -> usize {
        const KIB: usize = 1024;
        match self {
            Self::Sm80 => 162 * KIB,
            Self::Sm86 | Self::Sm89 | Self::Sm120a => 98 * KIB,
            Self::Sm90a | Self::Sm100a => 226 * KIB,
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
