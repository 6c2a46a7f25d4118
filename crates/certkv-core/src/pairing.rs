//! Which channels of a head a rotary position turns together, math.md (2.18).
use core::{fmt, str::FromStr};

/// How the rotary channels of a head are paired. Channels behind them, which no position turns, are paired with their
/// neighbour in either layout: a pair is then only a unit of allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pairing {
    /// Channel `i` with `i + r/2`, `r` rotary channels: the Hugging Face layout of Llama.
    Half,
    /// Channel `2i` with `2i + 1`: the layout of the rotary paper, and of models exported from it.
    Interleaved,
}

impl Pairing {
    /// The two channels of `pair` in a head of which the first `rotary` channels (an even number) are turned.
    pub const fn channels(self, rotary: usize, pair: usize) -> [usize; 2] {
        match self {
            Self::Half if pair < rotary / 2 => [pair, pair + rotary / 2],
            _ => [2 * pair, 2 * pair + 1],
        }
    }

    /// The name that options and errors use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Half => "half",
            Self::Interleaved => "inter",
        }
    }
}

impl fmt::Display for Pairing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no pairing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownPairing;

impl fmt::Display for UnknownPairing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("pairings are `half` and `inter`")
    }
}
impl std::error::Error for UnknownPairing {}

impl FromStr for Pairing {
    type Err = UnknownPairing;

    fn from_str(name: &str) -> Result<Self, UnknownPairing> {
        [Self::Half, Self::Interleaved].into_iter().find(|p| p.name() == name).ok_or(UnknownPairing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_channel_is_in_one_pair() {
        for pairing in [Pairing::Half, Pairing::Interleaved] {
            for (dim, rotary) in [(2, 2), (64, 64), (128, 64), (128, 128), (10, 0), (96, 2), (256, 128)] {
                let mut seen: Vec<usize> = (0..dim / 2).flat_map(|pair| pairing.channels(rotary, pair)).collect();
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..dim), "{pairing} {dim} {rotary}");
            }
            assert_eq!(pairing.name().parse(), Ok(pairing));
        }
        assert_eq!(Pairing::Half.channels(8, 1), [1, 5]);
        assert_eq!(Pairing::Half.channels(8, 5), [10, 11]);
        assert_eq!(Pairing::Interleaved.channels(8, 1), [2, 3]);
        assert_eq!("thirds".parse::<Pairing>(), Err(UnknownPairing));
    }
}
