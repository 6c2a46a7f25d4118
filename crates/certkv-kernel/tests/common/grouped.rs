//! Block-GTQ keys written and read by the reference codec, apart from what the library does.
use super::{Rng, get, put};
use certkv_codec::KeyGroups;
use certkv_codec::gtq::{self, BlockGtq, Levels, Part, Scheme};
use certkv_codec::rotation;
use certkv_core::hash::splitmix64;
use certkv_core::layout::{key_index, read_code, write_code};
use certkv_core::tiles::gtq_tile;
use certkv_core::{Dtype, GroupCode, KeyFormat, RecordLayout};

/// Widths of the pairs of Block-GTQ keys, drawn as tiles that move bits to each other.
pub fn widths(l: &RecordLayout, seed: u64) -> Option<Vec<u8>> {
    let KeyFormat::Gtq { code: GroupCode::Widths { halves } } = l.format.key else { return None };
    let (tile, mut rng) = (gtq_tile(l.tokens()), Rng(splitmix64(seed ^ 31)));
    let mut bits = vec![halves / 2; l.dim / tile];
    let more = usize::from(halves % 2) * bits.len() / 2;
    bits[..more].iter_mut().for_each(|b| *b += 1);
    for _ in 0..4 * bits.len() {
        let (from, to) = (rng.below(bits.len()), rng.below(bits.len()));
        if from != to && bits[from] > 1 && bits[to] < 6 {
            (bits[from], bits[to]) = (bits[from] - 1, bits[to] + 1);
        }
    }
    // Pairs in any order.
    let mut order: Vec<usize> = (0..l.dim / 2).collect();
    (0..order.len()).for_each(|i| order.swap(i, rng.below(l.dim / 2)));
    let mut widths = vec![0; l.dim / 2];
    order.into_iter().enumerate().for_each(|(i, pair)| widths[pair] = bits[i / (tile / 2)]);
    Some(widths)
}

/// The reference codec of such keys, which takes them in their metric.
fn reference(groups: &KeyGroups) -> BlockGtq {
    let pairs = groups.channels() / 2;
    let mut bits = vec![0; pairs];
    for group in groups.groups() {
        group.channels().iter().filter(|c| **c < pairs).for_each(|c| bits[*c] = group.bits());
    }
    BlockGtq::new(&Scheme { levels: Levels::Bytes, ..Scheme::new(&bits, rotation::SEED) }).unwrap()
}

/// Codes and radii of such keys, as the bytes of a record have them.
fn parts(l: &RecordLayout, codec: &BlockGtq, record: &[u8]) -> Vec<Part> {
    let (n, codes, mut at) = (l.tokens(), &record[l.key_codes.clone()], 0);
    let part = |(g, group): (usize, &gtq::Group)| {
        let (channels, bits) = (group.channels().len(), usize::from(group.bits()));
        let section = &codes[at..at + n * channels * bits / 8];
        at += section.len();
        let code = |i: usize| read_code(section, bits, n * channels, key_index(i / channels, i % channels, channels));
        let radius = |t: usize| get(&record[l.key_scales.clone()], Dtype::F16, g * n + t);
        Part { codes: (0..n * channels).map(code).collect(), radius: (0..n).map(radius).collect() }
    };
    codec.groups().iter().enumerate().map(part).collect()
}

/// Writes keys, in their metric, as codes and radii.
pub fn write(groups: &KeyGroups, l: &RecordLayout, keys: &[Vec<f64>], record: &mut [u8]) {
    let (n, codec, mut at) = (l.tokens(), reference(groups), 0);
    let coded = gtq::encode(&codec, &keys.concat()).unwrap();
    for (g, (group, part)) in codec.groups().iter().zip(coded).enumerate() {
        let (channels, bits) = (group.channels().len(), usize::from(group.bits()));
        let section = &mut record[l.key_codes.clone()][at..at + n * channels * bits / 8];
        at += section.len();
        for (i, code) in part.codes.iter().enumerate() {
            write_code(section, bits, n * channels, key_index(i / channels, i % channels, channels), *code);
        }
        for (t, radius) in part.radius.iter().enumerate() {
            put(&mut record[l.key_scales.clone()], Dtype::F16, g * n + t, *radius);
        }
    }
}

/// Decoded keys, in their metric.
pub fn read(groups: &KeyGroups, l: &RecordLayout, record: &[u8]) -> Vec<Vec<f64>> {
    let codec = reference(groups);
    let decoded = gtq::decode(&codec, &parts(l, &codec, record)).unwrap();
    decoded.chunks_exact(l.dim).map(<[f64]>::to_vec).collect()
}
