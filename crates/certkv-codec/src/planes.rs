//! From codes by token to the code section of a record: kernel order, then bit planes.
//!
//! The orders are those of `certkv_core::layout`; these loops move whole rows and whole segments, where
//! `certkv_core::layout::write_code` places one code.
use certkv_core::layout::planes;

/// Places the key codes of one token, (dim,), into `staged`, all codes of the block in key order.
pub(crate) fn place_key_row(codes: &[u8], token: usize, staged: &mut [u8]) {
    let dim = codes.len();
    let tile = staged.chunks_exact_mut(16 * dim).nth(token / 16).unwrap_or_default();
    let at = token % 16 * 4;
    for (line, quad) in tile.as_chunks_mut::<64>().0.iter_mut().zip(codes.as_chunks::<4>().0) {
        line[at..at + 4].copy_from_slice(quad);
    }
}

/// Interleaves the value codes of four tokens, (4, dim), into their run of `4 dim` codes in value order.
pub(crate) fn place_value_quad(codes: &[u8], dim: usize, run: &mut [u8]) {
    let (a, rest) = codes.split_at(dim);
    let (b, rest) = rest.split_at(dim);
    let (c, d) = rest.split_at(dim);
    for (slot, (((a, b), c), d)) in run.as_chunks_mut::<4>().0.iter_mut().zip(a.iter().zip(b).zip(c).zip(d)) {
        *slot = [*a, *b, *c, *d];
    }
}

/// Writes staged codes of `bits` bits as bit planes; overwrites the whole section.
pub(crate) fn write_planes(staged: &[u8], bits: usize, section: &mut [u8]) {
    for p in planes(bits, staged.len()) {
        let Some(plane) = section.get_mut(p.offset..p.offset + p.bytes) else { continue };
        if p.width == 8 {
            plane.copy_from_slice(staged);
            continue;
        }
        let mask = (1u8 << p.width) - 1;
        for (j, segment) in staged.chunks_exact(p.bytes).enumerate() {
            if j == 0 {
                plane.iter_mut().zip(segment).for_each(|(byte, code)| *byte = (code >> p.shift) & mask);
            } else {
                let up = p.width * j;
                plane.iter_mut().zip(segment).for_each(|(byte, code)| *byte |= ((code >> p.shift) & mask) << up);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use certkv_core::{
        hash::splitmix64,
        layout::{key_index, value_index, write_code},
    };

    #[test]
    fn rows_and_segments_land_where_single_codes_do() {
        for (tokens, dim) in [(16, 64), (32, 96), (64, 128)] {
            for bits in 2..=8usize {
                let count = tokens * dim;
                let codes: Vec<u8> = (0..count).map(|i| (splitmix64(i as u64) & ((1 << bits) - 1)) as u8).collect();
                let (mut keys, mut values) = (vec![0; count], vec![0; count]);
                for (token, row) in codes.chunks_exact(dim).enumerate() {
                    place_key_row(row, token, &mut keys);
                }
                for (quad, run) in codes.chunks_exact(4 * dim).zip(values.chunks_exact_mut(4 * dim)) {
                    place_value_quad(quad, dim, run);
                }
                for (staged, index) in [(keys, key_index as fn(usize, usize, usize) -> usize), (values, value_index)] {
                    let mut got = vec![0xff; count * bits / 8];
                    write_planes(&staged, bits, &mut got);
                    let mut want = vec![0; got.len()];
                    for (i, code) in codes.iter().enumerate() {
                        write_code(&mut want, bits, count, index(i / dim, i % dim, dim), *code);
                    }
                    assert_eq!(got, want, "{tokens} x {dim}, {bits} bits");
                }
            }
        }
    }
}
