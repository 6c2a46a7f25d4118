//! Fragment order of Block-GTQ keys, whose channels have unlike widths.
//!
//! Places of a head, in the order of (2.18), lie in *tiles* of [`gtq_tile`] of one width, and the codes of a tile lie together, tile behind tile. A tile is
//! units of 512 codes: 32 tokens x 16 places, or of blocks of 16 tokens those x 32 places. A lane has 16 codes of a unit, as two operands of an m16n8k16 product: of
//! the first and of the other 16 tokens, or places. Four neighbouring places of a token are a lane's.
//!
//! Planes are those of other levels.
use super::{Cut, Place, RecordSize};
use crate::layout::{self, key_index};
use crate::{RecordLayout, tiles::gtq_tile};

/// Neighbouring places of one width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// How many, a multiple of the tile.
    pub channels: usize,
    /// Bits of a code, 1 to 6.
    pub bits: usize,
}

/// Where the code of (`token`, `place`) lies in its tile, blocks being of `tokens` tokens.
pub const fn grouped_place(token: usize, place: usize, tokens: usize) -> Place {
    let (unit, operand) = if tokens < 32 { (0, place % 32 / 16) } else { (token / 32, token % 32 / 16) };
    let (w, half) = (place % 4, token % 16 / 8);
    Place { unit, lane: token % 8 * 4 + place % 16 / 4, pair: operand * 4 + w / 2 * 2 + half, el: w % 2 }
}

#[derive(Clone, Copy)]
enum Towards {
    Fragment,
    Line,
}

/// As [`super::to_fragment`] for keys of unlike widths, (`runs`: of all places, in their order). Keys that do not fit the layout's section are dropped.
///
/// # Errors
/// [`RecordSize`] if `record` or `out` has not `layout.bytes` bytes.
pub fn to_fragment_in(layout: &RecordLayout, runs: &[Run], record: &[u8], out: &mut [u8]) -> Result<(), RecordSize> {
    super::to_fragment(layout, record, out)?;
    convert_keys(layout, runs, (record, out), Towards::Fragment);
    Ok(())
}

/// The inverse of [`to_fragment_in`].
///
/// # Errors
/// As [`to_fragment_in`].
pub fn from_fragment_in(layout: &RecordLayout, runs: &[Run], record: &[u8], out: &mut [u8]) -> Result<(), RecordSize> {
    super::from_fragment(layout, record, out)?;
    convert_keys(layout, runs, (record, out), Towards::Line);
    Ok(())
}

fn convert_keys(layout: &RecordLayout, runs: &[Run], (record, out): (&[u8], &mut [u8]), to: Towards) {
    let section = layout.key_codes.clone();
    let (Some(from), Some(into)) = (record.get(section.clone()), out.get_mut(section)) else { return };
    into.fill(0);
    let (tokens, tile) = (layout.tokens(), gtq_tile(layout.tokens()));
    let mut at = 0;
    for run in runs {
        let (n, bytes) = (run.channels, tokens * run.channels * run.bits / 8);
        let (Some(from), Some(into)) = (from.get(at..at + bytes), into.get_mut(at..at + bytes)) else { return };
        let of_tile = tokens * tile * run.bits / 8;
        let position = Cut::Levels.position(run.bits);
        for (token, place) in (0..tokens).flat_map(|token| (0..n).map(move |place| (token, place))) {
            let line = key_index(token, place, n);
            let own = place / tile * of_tile..(place / tile + 1) * of_tile;
            let fragment = grouped_place(token, place, tokens);
            let parts =
                Cut::Levels.planes(run.bits, tokens * tile).map(|plane| (plane, position(plane.width, fragment)));
            match to {
                Towards::Fragment => {
                    let code = u16::from(layout::read_code(from, run.bits, tokens * n, line));
                    let Some(own) = into.get_mut(own) else { continue };
                    for (plane, (byte, shift)) in parts {
                        let part = code >> plane.shift & ((1 << plane.width) - 1);
                        if let Some(slot) = own.get_mut(plane.offset + byte) {
                            *slot |= (part << shift) as u8;
                        }
                    }
                }
                Towards::Line => {
                    let own = from.get(own).unwrap_or_default();
                    let code = parts.fold(0u16, |code, (plane, (byte, shift))| {
                        let raw = u16::from(own.get(plane.offset + byte).copied().unwrap_or(0));
                        code | (raw >> shift & ((1 << plane.width) - 1)) << plane.shift
                    });
                    layout::write_code(into, run.bits, tokens * n, line, code as u8);
                }
            }
        }
        at += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Geometry, hash::splitmix64};

    #[test]
    fn keys_of_every_width_come_back_and_lie_where_lanes_want_them() {
        for (text, dim, bits) in [
            ("gtq3-v4g32-b64", 128, &[(32, 1), (48, 3), (48, 4)][..]),
            ("gtq3-v4g32-b32", 96, &[(16, 1), (16, 2), (32, 3), (16, 4), (16, 5)][..]),
            ("gtq3.5-v4g32-b64", 96, &[(16, 1), (16, 2), (16, 3), (16, 4), (16, 5), (16, 6)][..]),
            ("gtq4-v4g32-b16", 128, &[(32, 1), (32, 4), (32, 5), (32, 6)][..]),
        ] {
            let geometry = Geometry::new(1, 1, 1, dim).unwrap();
            let l = RecordLayout::new(&geometry, text.parse().unwrap()).unwrap();
            let runs: Vec<Run> = bits.iter().map(|(channels, bits)| Run { channels: *channels, bits: *bits }).collect();
            let bytes: usize = runs.iter().map(|run| l.tokens() * run.channels * run.bits / 8).sum();
            assert!(bytes <= l.key_codes.len(), "{text}");
            let mut record: Vec<u8> = (0..l.bytes).map(|i| splitmix64(i as u64) as u8).collect();
            record[l.key_codes.start + bytes..l.key_codes.end].fill(0);
            let (mut fragment, mut back) = (vec![0; l.bytes], vec![0; l.bytes]);
            to_fragment_in(&l, &runs, &record, &mut fragment).unwrap();
            from_fragment_in(&l, &runs, &fragment, &mut back).unwrap();
            assert_eq!((record == back, record == fragment), (true, false), "{text}");
            // Codes are a permutation of those of the line order: as many bits are set.
            let ones = |record: &[u8]| record[l.key_codes.clone()].iter().map(|b| b.count_ones()).sum::<u32>();
            assert_eq!(ones(&record), ones(&fragment));
            assert!(to_fragment_in(&l, &runs, &record[1..], &mut fragment).is_err());
        }
    }

    #[test]
    fn every_code_of_a_tile_has_a_place_of_its_own() {
        for (tokens, places) in [(16, 32), (32, 16), (64, 16)] {
            let mut seen = vec![false; tokens * places];
            for (t, p) in (0..tokens).flat_map(|t| (0..places).map(move |p| (t, p))) {
                let place = grouped_place(t, p, tokens);
                let at = ((place.unit * 32 + place.lane) * 8 + place.pair) * 2 + place.el;
                assert!(!core::mem::replace(&mut seen[at], true));
            }
        }
    }
}
