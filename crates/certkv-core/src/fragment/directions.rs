//! Fragment order of spherical keys: which of a block's radii and indices a lane reads together.
//!
//! A lane scores the same row of every tile of 16 tokens, so of each group those of its tokens lie side by side: radii are bytes, `[group][row][tile]`,
//! and so are indices in bit planes, the widest first as everywhere, code after code from the lowest bit of a byte on. No plane is read across a byte
//! by a lane, or it is read in whole pairs of them.
use super::{RecordLayout, Towards, UNIT_TOKENS};
use crate::Tier;
use crate::layout::{self, planes};

/// Where the code of a token lies among those of its group, in codes; blocks are of `tokens` tokens.
pub const fn direction_place(token: usize, tokens: usize) -> usize {
    token % UNIT_TOKENS * (tokens / UNIT_TOKENS) + token / UNIT_TOKENS
}

/// The index at `place` of `count`.
fn read_index(section: &[u8], bits: usize, count: usize, place: usize) -> u8 {
    planes(bits, count).fold(0, |code, p| {
        let at = place * p.width;
        let byte = section.get(p.offset + at / 8).copied().unwrap_or(0);
        code | (byte >> (at % 8) & ((1 << p.width) - 1)) << p.shift
    })
}

/// Writes it into planes that were zero before.
fn write_index(section: &mut [u8], bits: usize, count: usize, place: usize, code: u8) {
    for p in planes(bits, count) {
        let at = place * p.width;
        if let Some(byte) = section.get_mut(p.offset + at / 8) {
            *byte |= (code >> p.shift & ((1 << p.width) - 1)) << (at % 8);
        }
    }
}

pub(super) fn convert(layout: &RecordLayout, tier: Tier, (record, out): (&[u8], &mut [u8]), to: Towards) {
    let section = layout.key_codes.clone();
    let (Some(from), Some(into)) = (record.get(section.clone()), out.get_mut(section)) else { return };
    let (tokens, bits) = (layout.tokens(), usize::from(tier.bits()));
    let count = tokens * (layout.dim / tier.group());
    let (Some((radii, indices)), Some((into_radii, into_indices))) =
        (from.split_at_checked(count), into.split_at_mut_checked(count))
    else {
        return;
    };
    into_indices.fill(0);
    for (group, token) in (0..count / tokens).flat_map(|group| (0..tokens).map(move |token| (group, token))) {
        let (line, fragment) = (group * tokens + token, group * tokens + direction_place(token, tokens));
        match to {
            Towards::Fragment => {
                into_radii[fragment] = radii[line];
                write_index(into_indices, bits, count, fragment, layout::read_code(indices, bits, count, line));
            }
            Towards::Line => {
                into_radii[line] = radii[fragment];
                layout::write_code(into_indices, bits, count, line, read_index(indices, bits, count, fragment));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{from_fragment, to_fragment};
    use super::*;
    use crate::{Geometry, geometry::HEAD_DIMS, hash::splitmix64};

    #[test]
    fn codes_come_back_and_lie_where_lanes_want_them() {
        let mut executed = 0;
        for (dim, tier) in HEAD_DIMS.into_iter().flat_map(|dim| Tier::ALL.map(|tier| (dim, tier))) {
            for tokens in [16, 32, 64] {
                let geometry = Geometry::new(1, 1, 1, dim).unwrap();
                let format = format!("{}-v4g32-b{tokens}", tier.key_name());
                let l = RecordLayout::new(&geometry, format.parse().unwrap()).unwrap();
                let record: Vec<u8> = (0..l.bytes).map(|i| splitmix64(i as u64 ^ 11) as u8).collect();
                let (mut fragment, mut back) = (vec![0xff; l.bytes], vec![0xff; l.bytes]);
                to_fragment(&l, &record, &mut fragment).unwrap();
                from_fragment(&l, &fragment, &mut back).unwrap();
                assert_eq!((back == record, fragment == record), (true, false), "{format} of {dim}");
                // Tokens 16 apart are neighbours.
                let (line, own) = (&record[l.key_codes.clone()], &fragment[l.key_codes.clone()]);
                let (groups, tiles, bits) = (dim / tier.group(), tokens / 16, usize::from(tier.bits()));
                let count = groups * tokens;
                for (g, t) in (0..groups).flat_map(|g| (0..tokens).map(move |t| (g, t))) {
                    let at = g * tokens + t % 16 * tiles + t / 16;
                    assert_eq!(own[at], line[g * tokens + t]);
                    let want = layout::read_code(&line[count..], bits, count, g * tokens + t);
                    assert_eq!(read_index(&own[count..], bits, count, at), want);
                }
                executed += 1;
            }
        }
        assert_eq!(executed, 4 * 3 * 3);
    }
}
