//! What kernels have to know of keys of unlike widths, math.md (2.19c): of every KV head of a layer one table, the twin of `kernels/grouped.cuh`.
//!
//! Widths, and with them sizes of groups, rotations and levels, are a head's own, and variants are made of formats: so all of it is data. A table
//! begins as that of other keys of a calibration does, with centre and balance scale, the latter with the weights of (2.19d).
use certkv_codec::turboquant::magnitudes;
use certkv_codec::{KeyGroups, KeyMetric};
use certkv_core::{GroupCode, KeyFormat, RecordLayout, TURBO_BITS};

/// Widths that a head can have.
const MOST: usize = TURBO_BITS as usize;
/// Channels that a word describes.
const TILE: usize = 16;
/// Words that describe a tile.
const TILE_WORDS: usize = 4;
/// Words of a width's magnitudes of levels, a byte each, and thresholds between them, a double each.
const LEVELS: usize = 8;
const THRESHOLDS: usize = 31;

/// Half bits of a channel in the mean; 0 for other keys.
pub(super) const fn halves(layout: &RecordLayout) -> usize {
    match layout.format.key {
        KeyFormat::Gtq { code: GroupCode::Widths { halves } } => halves as usize,
        _ => 0,
    }
}

/// Where the words of tiles begin, which are read four at a time: channels, places of the second round, signs of both.
const fn at_tiles(dim: usize) -> usize {
    2 * dim + 2 * (dim / 4) + (2 * (dim / 32)).next_multiple_of(TILE_WORDS)
}

/// Words of tiles and levels: `KEPT` of kernels/grouped.cuh.
const fn kept_words(dim: usize) -> usize {
    dim / TILE * TILE_WORDS + MOST * LEVELS
}

/// Words of a head's table: `WORDS` there.
pub(super) const fn table_words(dim: usize) -> usize {
    at_tiles(dim) + kept_words(dim) + MOST * 2 * THRESHOLDS
}

/// Bytes of it that a CTA of the decode kernel keeps: centre and scale, and all but the thresholds.
pub(super) const fn copied_bytes(dim: usize) -> usize {
    4 * (table_words(dim) - MOST * 2 * THRESHOLDS)
}

/// Bytes of it that a CTA of the extend kernel keeps.
pub(super) const fn kept_bytes(dim: usize) -> usize {
    4 * kept_words(dim)
}

/// A head's table.
pub(super) fn table(metric: KeyMetric<'_>, groups: &KeyGroups) -> Vec<u32> {
    let dim = groups.channels();
    let mut words: Vec<u32> = metric.centre().iter().chain(metric.balance()).map(|x| x.to_bits()).collect();
    // Which channel a place has, and which place of the first round becomes it in the second.
    let (mut channels, mut second) = (vec![0u8; dim], (0..dim).map(|place| place as u8).collect::<Vec<_>>());
    let mut signs = vec![vec![0u32; dim / 32]; 2];
    let mut tiles = Vec::with_capacity(dim / TILE * TILE_WORDS);
    let (mut levels, mut thresholds) = (vec![0u8; 4 * MOST * LEVELS], vec![f64::INFINITY; MOST * THRESHOLDS]);
    let mut before = 0;
    for (g, (group, part)) in groups.groups().iter().zip(groups.parts()).enumerate() {
        let (first, n, bits) = (part.places.start, part.places.len(), usize::from(part.bits));
        for (to, channel) in channels[part.places.clone()].iter_mut().zip(group.channels()) {
            *to = *channel as u8;
        }
        for (r, (order, negative)) in part.single.rounds().enumerate().take(2) {
            for (i, (from, minus)) in order.iter().zip(&negative).enumerate() {
                let place = first + i;
                if r == 1 {
                    second[place] = (first + from) as u8;
                }
                signs[r][place / 32] |= u32::from(*minus) << (place % 32);
            }
        }
        let (found, between) = magnitudes(n, part.bits);
        // A code's lower bits choose one, so shorter tables repeat themselves.
        for (i, to) in levels[4 * LEVELS * g..4 * LEVELS * (g + 1)].iter_mut().enumerate() {
            *to = found.get(i % found.len()).map_or(0, |level| *level as u8);
        }
        thresholds[THRESHOLDS * g..].iter_mut().zip(between).for_each(|(to, x)| *to = x);
        // What negative and positive codes stand for, plus 64, or where levels begin.
        let first_levels = &levels[4 * LEVELS * g..][..4];
        let stands_for = match bits {
            ..=3 => [
                first_levels.iter().rev().fold(0, |word, level| word << 8 | u32::from(64 - level)),
                first_levels.iter().rev().fold(0, |word, level| word << 8 | u32::from(64 + level)),
            ],
            _ => [(4 * LEVELS * g) as u32, 0],
        };
        let twice = usize::from(part.single.rounds().nth(1).is_some());
        let mut start = first;
        for size in part.single.parts() {
            for tile in start / TILE..(start + size) / TILE {
                let ends = usize::from((tile + 1) * TILE == first + n);
                let log = size.ilog2() as usize;
                let word = bits | g << 4 | log << 8 | (start / TILE) << 12 | ends << 16 | twice << 17;
                tiles.extend([word as u32, before as u32, stands_for[0], stands_for[1]]);
                before += bits;
            }
            start += size;
        }
    }
    let bytes = |bytes: &[u8]| bytes.as_chunks().0.iter().map(|four| u32::from_le_bytes(*four)).collect::<Vec<_>>();
    words.extend(bytes(&channels));
    words.extend(bytes(&second));
    words.extend(signs.into_iter().flatten());
    words.resize(at_tiles(dim), 0);
    words.extend(tiles);
    words.extend(bytes(&levels));
    words.extend(thresholds.iter().flat_map(|x| [x.to_bits() as u32, (x.to_bits() >> 32) as u32]));
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use certkv_core::Pairing;

    #[test]
    fn a_table_has_the_words_that_kernels_count() {
        for (dim, bits) in [(64, &[1u8, 3, 3, 5][..]), (96, &[2, 2, 3, 4, 4, 3]), (128, &[1, 2, 3, 3, 3, 4, 6, 2])] {
            let pairs: Vec<u8> = (0..dim / 2).map(|pair| bits[pair / 8]).collect();
            let groups = KeyGroups::new(&pairs, Pairing::Half, dim).unwrap();
            let (centre, balance) = (vec![0.5; dim], vec![1.0; dim]);
            let words = table(KeyMetric::new(&centre, &balance).unwrap(), &groups);
            assert_eq!((words.len(), words.len() % 4), (table_words(dim), 0));
            let at = at_tiles(dim);
            assert_eq!(at % 4, 0);
            let tiles: Vec<[u32; TILE_WORDS]> = words[at..].as_chunks().0[..dim / TILE].to_vec();
            let mut sorted = bits.to_vec();
            sorted.sort_unstable();
            assert_eq!(tiles.iter().map(|tile| (tile[0] & 15) as u8).collect::<Vec<_>>(), sorted);
            let last = tiles[dim / TILE - 1];
            assert_eq!(last[1], bits.iter().map(|b| u32::from(*b)).sum::<u32>() - (last[0] & 15));
            let levels = &words[at + TILE_WORDS * tiles.len()..];
            for [word, _, negative, positive] in &tiles {
                let own = levels[(*word >> 4 & 15) as usize * LEVELS];
                match word & 15 {
                    ..=3 => assert_eq!((negative + own, positive - own), (0x4040_4040, 0x4040_4040)),
                    _ => assert_eq!(levels[*negative as usize / 4], own),
                }
            }
            assert_eq!(tiles.iter().filter(|tile| tile[0] >> 16 & 1 == 1).count(), groups.parts().len());
        }
    }
}
