//! Groups of channels with codes of their own width, math.md (2.19c): where in a record they lie, and where they are once unpacked.
use crate::line::Codes;
use crate::query::{GROUPS, Levels};
use certkv_codec::KeyGroups;
use certkv_core::TURBO_BITS;

/// Where the unpacked codes of a group of channels are, and which these are.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    /// Quads of channels, counted in the head.
    pub(crate) quads: core::ops::Range<usize>,
    /// Line of quad 0 of token tile 0, if the group had one.
    pub(crate) first: usize,
    /// Lines from a tile of tokens to the next.
    pub(crate) stride: usize,
}

impl Run {
    /// The line of one quad and tile.
    #[inline(always)]
    pub(crate) fn line(&self, tile: usize, quad: usize) -> usize {
        self.first + tile * self.stride + quad
    }
}

/// The groups of a head's keys that have widths of their own.
#[derive(Debug, Clone)]
pub(crate) struct Parts {
    /// How many there are.
    pub(crate) count: usize,
    /// They, widths ascending.
    pub(crate) each: [Part; TURBO_BITS as usize],
}

/// One group.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) quads: core::ops::Range<usize>,
    pub(crate) bits: usize,
    /// Bytes of the key codes that are its own.
    pub(crate) codes: core::ops::Range<usize>,
    /// As [`KeyCodes::levels`].
    pub(crate) levels: Levels,
}

impl Parts {
    pub(crate) fn new() -> Self {
        Self {
            count: 0,
            each: [const { Part { quads: 0..0, bits: 1, codes: 0..0, levels: [0; 64] } }; TURBO_BITS as usize],
        }
    }

    /// Takes the groups of a head.
    pub(crate) fn set(&mut self, groups: &KeyGroups, tokens: usize) {
        self.count = groups.parts().len().min(self.each.len());
        for (to, from) in self.each.iter_mut().zip(groups.parts()) {
            (to.quads, to.bits) = (from.places.start / 4..from.places.end / 4, usize::from(from.bits));
            (to.codes, to.levels) = (from.codes(tokens), from.levels);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Part> {
        self.each.iter().take(self.count)
    }

    /// Sums of digits by tile of 16 channels become those by group.
    pub(crate) fn gather(&self, sums: &mut [i32; GROUPS]) {
        let tiles = core::mem::replace(sums, [0; GROUPS]);
        for (sum, part) in sums.iter_mut().zip(self.iter()) {
            *sum = tiles[part.quads.start / 4..part.quads.end / 4].iter().sum();
        }
    }

    /// Unpacks all codes of a block of `tokens` tokens by `unpack(section, bits, codes, levels, lines)`.
    #[inline(always)]
    pub(crate) fn unpack(
        &self,
        section: &[u8],
        tokens: usize,
        scratch: &mut [Codes],
        unpack: impl Fn(&[u8], usize, usize, Option<&Levels>, &mut [Codes]),
    ) {
        for part in self.iter() {
            let lines = tokens / 16 * part.quads.start..tokens / 16 * part.quads.end;
            unpack(&section[part.codes.clone()], part.bits, 64 * lines.len(), Some(&part.levels), &mut scratch[lines]);
        }
    }
}
