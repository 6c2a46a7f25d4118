//! How keys and values are coded: the names of formats, and their limits.
//!
//! A format is written `KEY-VALUE-bBLOCK`, for example `k8-v4g32-b32`, or `KEY-VALUE-bBLOCK-rK.V` with residuals:
//! - keys: `f16`, `bf16`, `k8` (8 bits per channel and block, f16 scales; 2 to 8 bits, or `k0`, the mean key of a block and how far the others lie from
//!   it; `k8f32`, `k8bf16` for other scale types),
//!   `t4`, `t8` .. (symmetric per token and head, f16 scales; `t4g32` with one scale per 32 channels), `tq4` (TurboQuant:
//!   rotated, 1 to 6 bits, one f16 radius per token), `ctq4` (the same, centred and balanced by a calibration), `gtq3` or
//!   `gtq2.5` (Block-GTQ: 3 or 2.5 bits per channel in the mean, widths of 1 to 6 bits by a calibration), `s1`, `s2`, `s3`
//!   (spherical: of each 16 or 32 channels a direction of a trained codebook and an 8-bit radius, tiers b1, b2 and b3), `p8`,
//!   `p4g32` (symmetric, one f16 scale per block and head, or 32 channels of it; 2 to 8 bits), `e4m3`, `e5m2g64` (8-bit floating
//!   point, scales likewise);
//! - values: `f16`, `bf16`, `v4g32` (4 bits, one f16 scale and offset per token and 32 channels; 2 to 8 bits), `c4` (4 bits, one
//!   f16 scale and offset per channel and block; 2 to 8 bits, or `c0`, the mean value), `tq4`, and those with one scale per block, as keys have them;
//! - block: 16, 32 or 64 tokens;
//! - residuals, beside `kN` keys and `vNgM` or `cN` values: `r5.4` for 5 bits beside each key code and 4 beside each value code, math.md (2.23).
use crate::tiles::{HalfBits, gtq_tile, widths};
use crate::{Dtype, PageCode, Tier};
use core::{fmt, str::FromStr};

/// How the keys of a block are coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyFormat {
    /// The originals themselves, half precision: no error.
    F16,
    /// The originals themselves, bfloat16: no error.
    Bf16,
    /// Affine codes, math.md (2.1)-(2.3): `bits` per element, one scale and one offset per channel and block, both of type `meta`: K8, and
    /// `k2` to `k7` with f16 scales; `k0`, no codes, offsets that are the block's mean, math.md (2.9c).
    Channel {
        /// Bits of one code: 2 to 8, or 0.
        bits: u8,
        /// Type of scales and offsets.
        meta: Dtype,
    },
    /// Symmetric (tread) codes, math.md (2.7): `bits` per element, one f16 scale per token and `group` channels.
    /// `group = 0` means the whole head.
    Token {
        /// Bits of one code: 2 to 8.
        bits: u8,
        /// Channels that share a scale; 0 for all of the head.
        group: u16,
    },
    /// TurboQuant, math.md (2.14)-(2.17b): codes of the rotated key, one f16 radius per token.
    Turbo {
        /// Bits of one code: 1 to [`TURBO_BITS`].
        bits: u8,
        /// Keys are coded around the centre and in the balanced metric of a calibration, math.md (2.19a): `ctq4`.
        calibrated: bool,
    },
    /// Groups of channels whose codes a calibration gives for each head: Block-GTQ, after which they are named, or directions.
    Gtq {
        /// What the calibration gives.
        code: GroupCode,
    },
    /// One f16 scale per block and `group` channels, math.md (2.9a). `group = 0` means the whole head.
    Page {
        /// What is multiplied by the scale.
        code: PageCode,
        /// Channels that share a scale; 0 for all of the head.
        group: u16,
    },
}

/// Codes of groups of channels that a calibration gives for each head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GroupCode {
    /// Block-GTQ, math.md (2.19c): pairs of channels of unlike width, chosen by a calibration for each head and centred and
    /// balanced by it; pairs of one width are a TurboQuant vector with an f16 radius per token: `gtq3`, `gtq2.5`.
    Widths {
        /// Half bits per channel, in the mean of a head: 2 to twice [`TURBO_BITS`].
        halves: u8,
    },
    /// Spherical keys, math.md (2.20)-(2.21): of each group the index of a direction in a codebook that was trained for it, and an
    /// 8-bit radius with one f16 scale per block and group: `s1`, `s2`, `s3`.
    Directions(Tier),
}

/// How the values of a block are coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ValueFormat {
    /// The originals themselves, half precision: no error.
    F16,
    /// The originals themselves, bfloat16: no error.
    Bf16,
    /// Affine codes, math.md (2.4)-(2.6): `bits` per element, one f16 scale and offset per token and `group` channels.
    Affine {
        /// Bits of one code: 2 to 8.
        bits: u8,
        /// Channels that share a scale and an offset.
        group: u16,
    },
    /// Affine codes, math.md (2.9b): `bits` per element, one f16 scale and offset per channel and block; `c0` as `k0`, math.md (2.9c).
    Channel {
        /// Bits of one code: 2 to 8, or 0.
        bits: u8,
    },
    /// TurboQuant, math.md (2.14)-(2.17b): codes of the rotated value, one f16 radius per token.
    Turbo {
        /// Bits of one code: 1 to [`TURBO_BITS`].
        bits: u8,
    },
    /// One f16 scale per block and `group` channels, math.md (2.9a). `group = 0` means the whole head.
    Page {
        /// What is multiplied by the scale.
        code: PageCode,
        /// Channels that share a scale; 0 for all of the head.
        group: u16,
    },
}

/// Most bits of a TurboQuant code in a record: its levels are bytes, and more of them would fall together.
pub const TURBO_BITS: u8 = 6;

/// Bits of the residuals stored beside the codes of a *refinable* format, math.md (2.23): planes that are read only where
/// the weights of a block ask for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Refine {
    /// Residual bits per key element: 1 to 8, or 0 for none on both sides.
    pub key: u8,
    /// Residual bits per value element: 1 to 8, or 0 for none on both sides.
    pub value: u8,
}

impl Refine {
    /// No residuals: the record holds codes only.
    pub const NONE: Refine = Refine { key: 0, value: 0 };

    /// `2^-bits`: what residuals of so many bits leave of a step.
    pub fn finer(bits: u8) -> f32 {
        1.0 / f32::from(1u16 << bits)
    }

    /// True if neither side has residuals.
    pub const fn is_none(self) -> bool {
        self.key == 0 && self.value == 0
    }
}

/// How a block is stored: key format, value format, tokens per block and residuals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Format {
    /// Key side.
    pub key: KeyFormat,
    /// Value side.
    pub value: ValueFormat,
    /// Tokens per block: 16, 32 or 64.
    pub block: usize,
    /// Residuals beside the codes of both sides; [`Refine::NONE`] for none.
    pub refine: Refine,
}

/// Why a format was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormatError {
    /// The text is not of the form `KEY-VALUE-bBLOCK` or `KEY-VALUE-bBLOCK-rK.V`; carries the part that was not understood.
    Syntax(String),
    /// Bits per code outside 2 to 8, and not the 0 of `k0` and `c0`.
    Bits(u8),
    /// Bits per TurboQuant code outside 1 to [`TURBO_BITS`].
    TurboBits(u8),
    /// Bits per Block-GTQ channel in the mean, as half bits: not from 1 to [`TURBO_BITS`], or no whole number in all for the tiles of a
    /// head.
    GtqBits {
        /// Half bits per channel.
        halves: u8,
        /// Tiles of one width that a head has.
        tiles: usize,
    },
    /// The group does not divide the head, or is not a multiple of 16 channels.
    Group {
        /// Channels per scale.
        group: usize,
        /// Channels per head.
        head_dim: usize,
    },
    /// Tokens per block is not 16, 32 or 64.
    Block(usize),
    /// Originals of one 16-bit type cannot be stored as the other: `side` is stored as `format`, the cache as `store`.
    Store {
        /// Type named by the format.
        format: Dtype,
        /// Type of the cache's originals.
        store: Dtype,
    },
    /// Residual bits other than 1 to 8 on a side, or residuals of a side whose code is not affine with a step per element.
    Refine {
        /// Residual bits asked for.
        refine: Refine,
        /// Key side they refine.
        key: KeyFormat,
        /// Value side they refine.
        value: ValueFormat,
    },
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(s) => write!(f, "format: `{s}` is not understood; write for example `k8-v4g32-b32`"),
            Self::Bits(b) => write!(f, "format: {b} bits per code; must be 2 to 8, or 0 by channel"),
            Self::TurboBits(b) => write!(f, "format: {b} bits per TurboQuant code; must be 1 to {TURBO_BITS}"),
            Self::GtqBits { halves, tiles } => write!(
                f,
                "format: {} bits per channel of gtq keys; must be 1 to {TURBO_BITS} in halves, and a whole number of bits for the \
                 {tiles} tiles of a head together",
                HalfBits(*halves)
            ),
            Self::Group { group, head_dim } => {
                write!(
                    f,
                    "format: group of {group} channels must be a multiple of 16 that divides head_dim = {head_dim}"
                )
            }
            Self::Block(b) => write!(f, "format: block of {b} tokens; must be 16, 32 or 64"),
            Self::Store { format, store } => write!(f, "format: {format} side in a cache of {store} originals"),
            Self::Refine { refine, key, value } => write!(
                f,
                "format: residuals {refine} beside {key}-{value}; must be 1 to 8 bits on both sides, with keys in steps per \
                 channel (k2 to k8) and affine values (v2 to v8, c2 to c8)"
            ),
        }
    }
}
impl std::error::Error for FormatError {}

impl KeyFormat {
    /// Bits of one code; 16 for the uncoded types, the mean rounded up for codes of unlike widths, those of an index for directions.
    pub const fn bits(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 16,
            Self::Channel { bits, .. } | Self::Token { bits, .. } | Self::Turbo { bits, .. } => bits as usize,
            Self::Page { code, .. } => code.bits() as usize,
            Self::Gtq { code: GroupCode::Widths { halves } } => halves.div_ceil(2) as usize,
            Self::Gtq { code: GroupCode::Directions(tier) } => tier.bits() as usize,
        }
    }

    /// Bytes of `count` codes, a multiple of 16 and of whole heads.
    pub const fn code_bytes(self, count: usize) -> usize {
        match self {
            Self::Gtq { code: GroupCode::Widths { halves } } => count * halves as usize / 16,
            // A radius is a byte.
            Self::Gtq { code: GroupCode::Directions(tier) } => count / tier.group() * (8 + tier.bits() as usize) / 8,
            _ => count * self.bits() / 8,
        }
    }

    /// Scales of one token in a head of `head_dim` channels and blocks of `block` tokens, of formats that have scales per token. Of
    /// Block-GTQ, radii of as many widths as a head can have at once.
    pub const fn scales(self, head_dim: usize, block: usize) -> usize {
        match self {
            Self::Gtq { code: GroupCode::Widths { halves } } => widths(halves as usize, head_dim / gtq_tile(block)),
            _ => head_dim / self.group(head_dim),
        }
    }

    /// The codes of a side with one scale per block.
    pub const fn page(self) -> Option<PageCode> {
        if let Self::Page { code, .. } = self { Some(code) } else { None }
    }

    /// Sizes of groups and codebooks, of spherical keys.
    pub const fn tier(self) -> Option<Tier> {
        if let Self::Gtq { code: GroupCode::Directions(tier) } = self { Some(tier) } else { None }
    }

    /// True if decoding gives the originals back.
    pub const fn is_exact(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16)
    }

    /// True if all tokens of a block have one key: its mean, math.md (2.9c).
    pub const fn is_mean(self) -> bool {
        matches!(self, Self::Channel { bits: 0, .. })
    }

    /// True if codes mean something only together with a calibration.
    pub const fn is_calibrated(self) -> bool {
        matches!(self, Self::Turbo { calibrated: true, .. } | Self::Gtq { .. })
    }

    /// True if what is coded are keys without a calibration's centres, by its balance scales (math.md (2.19a)): in a metric that is not that of others.
    pub const fn is_folded(self) -> bool {
        self.is_calibrated() && self.tier().is_none()
    }

    /// True for TurboQuant vectors, one or several to a head.
    pub const fn is_rotated(self) -> bool {
        matches!(self, Self::Turbo { .. } | Self::Gtq { code: GroupCode::Widths { .. } })
    }

    /// Channels that share a scale in a head of `head_dim` channels (1 for a scale per channel).
    pub const fn group(self, head_dim: usize) -> usize {
        match self {
            Self::Token { group: 0, .. } | Self::Page { group: 0, .. } => head_dim,
            Self::Gtq { code: GroupCode::Directions(tier) } => tier.group(),
            Self::Turbo { .. } | Self::Gtq { .. } | Self::F16 | Self::Bf16 => head_dim,
            Self::Token { group, .. } | Self::Page { group, .. } => group as usize,
            Self::Channel { .. } => 1,
        }
    }
}

impl ValueFormat {
    /// Bits of one code; 16 for the uncoded types.
    pub const fn bits(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 16,
            Self::Affine { bits, .. } | Self::Channel { bits } | Self::Turbo { bits } => bits as usize,
            Self::Page { code, .. } => code.bits() as usize,
        }
    }

    /// The codes of a side with one scale per block.
    pub const fn page(self) -> Option<PageCode> {
        if let Self::Page { code, .. } = self { Some(code) } else { None }
    }

    /// True if decoding gives the originals back.
    pub const fn is_exact(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16)
    }

    /// Channels that share a scale in a head of `head_dim` channels (1 for a scale per channel).
    pub const fn group(self, head_dim: usize) -> usize {
        match self {
            Self::Affine { group, .. } => group as usize,
            Self::Channel { .. } => 1,
            Self::Page { group, .. } if group != 0 => group as usize,
            _ => head_dim,
        }
    }
}

impl Format {
    /// Dense half precision in blocks of 32: the baseline format.
    pub const DENSE_F16: Format =
        Format { key: KeyFormat::F16, value: ValueFormat::F16, block: 32, refine: Refine::NONE };

    /// True if a side has TurboQuant vectors.
    pub const fn is_rotated(self) -> bool {
        self.key.is_rotated() || matches!(self.value, ValueFormat::Turbo { .. })
    }

    /// Checks the format against a head size and the type of the originals.
    ///
    /// # Errors
    /// [`FormatError`] says which part does not fit.
    pub fn validated(self, head_dim: usize, store: Dtype) -> Result<Self, FormatError> {
        if !matches!(self.block, 16 | 32 | 64) {
            return Err(FormatError::Block(self.block));
        }
        let group_fits = |group: usize| {
            if group == 0 || !group.is_multiple_of(16) || !head_dim.is_multiple_of(group) {
                Err(FormatError::Group { group, head_dim })
            } else {
                Ok(())
            }
        };
        let turbo_fits =
            |bits: u8| if (1..=TURBO_BITS).contains(&bits) { Ok(()) } else { Err(FormatError::TurboBits(bits)) };
        let page_fits = |code: PageCode, group: usize| match code {
            PageCode::Int(bits) if !(2..=8).contains(&bits) => Err(FormatError::Bits(bits)),
            _ => group_fits(group),
        };
        let is_store = |format: Dtype| if format == store { Ok(()) } else { Err(FormatError::Store { format, store }) };
        match self.key {
            KeyFormat::F16 => is_store(Dtype::F16)?,
            KeyFormat::Bf16 => is_store(Dtype::Bf16)?,
            KeyFormat::Channel { bits: 0, meta: Dtype::F16 } => {}
            KeyFormat::Channel { bits, .. } | KeyFormat::Token { bits, .. } if !(2..=8).contains(&bits) => {
                return Err(FormatError::Bits(bits));
            }
            KeyFormat::Channel { .. } => {}
            KeyFormat::Token { .. } => group_fits(self.key.group(head_dim))?,
            KeyFormat::Turbo { bits, .. } => turbo_fits(bits)?,
            KeyFormat::Gtq { code: GroupCode::Directions(tier) } => group_fits(tier.group())?,
            KeyFormat::Gtq { code: GroupCode::Widths { halves } } => {
                let tiles = head_dim / gtq_tile(self.block);
                let (bits, whole) = (2..=2 * TURBO_BITS, (usize::from(halves) * tiles).is_multiple_of(2));
                if !(bits.contains(&halves) && whole) {
                    return Err(FormatError::GtqBits { halves, tiles });
                }
            }
            KeyFormat::Page { code, .. } => page_fits(code, self.key.group(head_dim))?,
        }
        match self.value {
            ValueFormat::F16 => is_store(Dtype::F16)?,
            ValueFormat::Bf16 => is_store(Dtype::Bf16)?,
            ValueFormat::Channel { bits: 0 } => {}
            ValueFormat::Affine { bits, .. } | ValueFormat::Channel { bits } if !(2..=8).contains(&bits) => {
                return Err(FormatError::Bits(bits));
            }
            ValueFormat::Channel { .. } => {}
            ValueFormat::Affine { group, .. } => group_fits(group as usize)?,
            ValueFormat::Turbo { bits } => turbo_fits(bits)?,
            ValueFormat::Page { code, .. } => page_fits(code, self.value.group(head_dim))?,
        }
        let refine = self.refine;
        let affine = matches!(self.value, ValueFormat::Affine { .. } | ValueFormat::Channel { bits: 1.. });
        let fits = affine
            && matches!(self.key, KeyFormat::Channel { bits: 1.., .. })
            && [refine.key, refine.value].iter().all(|bits| (1..=8).contains(bits));
        if !(refine.is_none() || fits) {
            return Err(FormatError::Refine { refine, key: self.key, value: self.value });
        }
        Ok(self)
    }
}

impl fmt::Display for KeyFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::F16 => f.write_str("f16"),
            Self::Bf16 => f.write_str("bf16"),
            Self::Channel { bits, meta: Dtype::F16 } => write!(f, "k{bits}"),
            Self::Channel { bits, meta } => write!(f, "k{bits}{meta}"),
            Self::Token { bits, group: 0 } => write!(f, "t{bits}"),
            Self::Token { bits, group } => write!(f, "t{bits}g{group}"),
            Self::Turbo { bits, calibrated: false } => write!(f, "tq{bits}"),
            Self::Turbo { bits, calibrated: true } => write!(f, "ctq{bits}"),
            Self::Gtq { code: GroupCode::Widths { halves } } => write!(f, "gtq{}", HalfBits(halves)),
            Self::Gtq { code: GroupCode::Directions(tier) } => f.write_str(tier.key_name()),
            Self::Page { code, group } => code.write(group, f),
        }
    }
}

impl fmt::Display for ValueFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::F16 => f.write_str("f16"),
            Self::Bf16 => f.write_str("bf16"),
            Self::Affine { bits, group } => write!(f, "v{bits}g{group}"),
            Self::Channel { bits } => write!(f, "c{bits}"),
            Self::Turbo { bits } => write!(f, "tq{bits}"),
            Self::Page { code, group } => code.write(group, f),
        }
    }
}

impl fmt::Display for Refine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}.{}", self.key, self.value)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-b{}", self.key, self.value, self.block)?;
        if self.refine.is_none() { Ok(()) } else { write!(f, "-{}", self.refine) }
    }
}

pub(crate) fn number<T: FromStr>(text: &str) -> Result<T, FormatError> {
    text.parse().map_err(|_| FormatError::Syntax(text.to_owned()))
}

impl FromStr for KeyFormat {
    type Err = FormatError;
    fn from_str(s: &str) -> Result<Self, FormatError> {
        Ok(match s {
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "k8f16" => Self::Channel { bits: 8, meta: Dtype::F16 },
            "k8f32" => Self::Channel { bits: 8, meta: Dtype::F32 },
            "k8bf16" => Self::Channel { bits: 8, meta: Dtype::Bf16 },
            _ if s.starts_with('k') => Self::Channel { bits: number(&s[1..])?, meta: Dtype::F16 },
            _ if s.starts_with("tq") => Self::Turbo { bits: number(&s[2..])?, calibrated: false },
            _ if s.starts_with("ctq") => Self::Turbo { bits: number(&s[3..])?, calibrated: true },
            _ if s.starts_with("gtq") => {
                Self::Gtq { code: GroupCode::Widths { halves: s[3..].parse::<HalfBits>()?.0 } }
            }
            _ if let Some(tier) = Tier::ALL.into_iter().find(|tier| tier.key_name() == s) => {
                Self::Gtq { code: GroupCode::Directions(tier) }
            }
            _ if let Some(page) = PageCode::parse(s) => {
                let (code, group) = page?;
                Self::Page { code, group }
            }
            _ => {
                let rest = s.strip_prefix('t').ok_or_else(|| FormatError::Syntax(s.to_owned()))?;
                match rest.split_once('g') {
                    Some((bits, group)) => Self::Token { bits: number(bits)?, group: number(group)? },
                    None => Self::Token { bits: number(rest)?, group: 0 },
                }
            }
        })
    }
}

impl FromStr for ValueFormat {
    type Err = FormatError;
    fn from_str(s: &str) -> Result<Self, FormatError> {
        Ok(match s {
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            _ if s.starts_with("tq") => Self::Turbo { bits: number(&s[2..])? },
            _ if s.starts_with('c') => Self::Channel { bits: number(&s[1..])? },
            _ if let Some(page) = PageCode::parse(s) => {
                let (code, group) = page?;
                Self::Page { code, group }
            }
            _ => {
                let split = s.strip_prefix('v').and_then(|r| r.split_once('g'));
                let (bits, group) = split.ok_or_else(|| FormatError::Syntax(s.to_owned()))?;
                Self::Affine { bits: number(bits)?, group: number(group)? }
            }
        })
    }
}

impl FromStr for Refine {
    type Err = FormatError;
    fn from_str(s: &str) -> Result<Self, FormatError> {
        let split = s.strip_prefix('r').and_then(|r| r.split_once('.'));
        let (key, value) = split.ok_or_else(|| FormatError::Syntax(s.to_owned()))?;
        Ok(Self { key: number(key)?, value: number(value)? })
    }
}

impl FromStr for Format {
    type Err = FormatError;
    fn from_str(s: &str) -> Result<Self, FormatError> {
        let mut parts = s.split('-');
        let (Some(key), Some(value), Some(block), refine, None) =
            (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(FormatError::Syntax(s.to_owned()));
        };
        let block = block.strip_prefix('b').ok_or_else(|| FormatError::Syntax(block.to_owned()))?;
        let block = number(block)?;
        if !matches!(block, 16 | 32 | 64) {
            return Err(FormatError::Block(block));
        }
        let refine = refine.map_or(Ok(Refine::NONE), str::parse)?;
        Ok(Self { key: key.parse()?, value: value.parse()?, block, refine })
    }
}

#[cfg(test)]
mod tests;
