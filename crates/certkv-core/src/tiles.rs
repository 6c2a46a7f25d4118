//! What Block-GTQ formats share, math.md (2.19c): tiles of channels that have one width, and how many widths there can be.
use crate::{FormatError, TURBO_BITS};
use core::{fmt, str::FromStr};

/// Channels, at least, that have one width in Block-GTQ keys of blocks of `block` tokens, and whose number a group of one width is a
/// multiple of: the codes of a tile in one bit plane are whole lines of 64 bytes.
pub const fn gtq_tile(block: usize) -> usize {
    if block < 32 { 32 } else { 16 }
}

/// How many different widths from 1 to [`TURBO_BITS`] `tiles` tiles can have whose mean is `halves` half bits: `k` of them take
/// `k (k - 1)/2` bits more than `k` times the least, and as many less than `k` times the most.
pub(crate) const fn widths(halves: usize, tiles: usize) -> usize {
    let bits = halves * tiles / 2;
    let (above, below) = (bits.saturating_sub(tiles), (TURBO_BITS as usize * tiles).saturating_sub(bits));
    let room = if above < below { above } else { below };
    let mut k = 1;
    while k < TURBO_BITS as usize && k < tiles && k * (k + 1) / 2 <= room {
        k += 1;
    }
    k
}

/// Half bits as a number of bits: 5 is `2.5`.
pub(crate) struct HalfBits(pub(crate) u8);

impl fmt::Display for HalfBits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0 / 2)?;
        if self.0.is_multiple_of(2) { Ok(()) } else { f.write_str(".5") }
    }
}

impl FromStr for HalfBits {
    type Err = FormatError;
    fn from_str(s: &str) -> Result<Self, FormatError> {
        let (bits, half) = s.strip_suffix(".5").map_or((s, 0), |bits| (bits, 1));
        let halves = bits
            .parse::<u8>()
            .map_err(|_| FormatError::Syntax(s.to_owned()))?
            .checked_mul(2)
            .and_then(|halves| halves.checked_add(half));
        halves.map(Self).ok_or_else(|| FormatError::Syntax(s.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GroupCode, KeyFormat};

    #[test]
    fn there_are_as_many_radii_as_widths_that_a_head_can_have() {
        // All multisets of widths, by what they sum to.
        fn most(tiles: usize, bits: usize, from: usize) -> Option<usize> {
            if tiles == 0 {
                return (bits == 0).then_some(0);
            }
            (from..=usize::from(TURBO_BITS).min(bits))
                .flat_map(|b| (1..=tiles).map(move |n| (b, n)))
                .filter(|(b, n)| b * n <= bits)
                .filter_map(|(b, n)| most(tiles - n, bits - b * n, b + 1))
                .max()
                .map(|found| found + 1)
        }
        for (dim, block) in [(64, 16), (64, 32), (96, 64), (128, 64), (256, 16), (256, 64)] {
            let tiles = dim / gtq_tile(block);
            for halves in (2..=2 * TURBO_BITS).filter(|h| (usize::from(*h) * tiles).is_multiple_of(2)) {
                let found = KeyFormat::Gtq { code: GroupCode::Widths { halves } }.scales(dim, block);
                assert_eq!(Some(found), most(tiles, usize::from(halves) * tiles / 2, 1), "{dim} {block} {halves}");
            }
        }
    }
}
