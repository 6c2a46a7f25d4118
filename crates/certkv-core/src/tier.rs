//! Sizes of the tiers of spherical keys, math.md 2.9.
use core::{fmt, str::FromStr};

/// How fine directions are. Radii have 8 bits in every tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tier {
    /// 16 channels and 64 directions a group: 14 bytes of a key of 128 channels.
    B1,
    /// 16 channels and 16 directions: 12 bytes.
    B2,
    /// 32 channels and 8 directions: 6 bytes (44 bits).
    B3,
}

impl Tier {
    /// Every tier, the finest first.
    pub const ALL: [Self; 3] = [Self::B1, Self::B2, Self::B3];

    /// Channels of a group.
    pub const fn group(self) -> usize {
        match self {
            Self::B1 | Self::B2 => 16,
            Self::B3 => 32,
        }
    }

    /// Bits of an index.
    pub const fn bits(self) -> u8 {
        match self {
            Self::B1 => 6,
            Self::B2 => 4,
            Self::B3 => 3,
        }
    }

    /// Directions of a codebook.
    pub const fn words(self) -> usize {
        1 << self.bits()
    }

    /// Numbers of the codebook of one group.
    pub const fn book_len(self) -> usize {
        self.words() * self.group()
    }

    /// The name that options, files and errors use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::B1 => "b1",
            Self::B2 => "b2",
            Self::B3 => "b3",
        }
    }

    /// What keys coded so are called in the name of a format.
    pub const fn key_name(self) -> &'static str {
        match self {
            Self::B1 => "s1",
            Self::B2 => "s2",
            Self::B3 => "s3",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownTier;

impl fmt::Display for UnknownTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tiers are `b1`, `b2` and `b3`")
    }
}
impl std::error::Error for UnknownTier {}

impl FromStr for Tier {
    type Err = UnknownTier;

    fn from_str(name: &str) -> Result<Self, UnknownTier> {
        Self::ALL.into_iter().find(|tier| tier.name() == name).ok_or(UnknownTier)
    }
}
