//! Widths of the pairs of Block-GTQ keys, drawn: tiles that move bits to each other, pairs in any order.
use certkv_codec::KeyGroups;
use certkv_core::tiles::gtq_tile;
use certkv_core::{GroupCode, KeyFormat, Pairing, RecordLayout};
use certkv_testkit::generate::Rng;

/// How unlike widths are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// All that may be, as tests want it.
    Any,
    /// As of models: of the heads of the bundled one, at 3 bits, 13, 19, 34, 24, 8 and 1% of the pairs have 1 to 6, which is a deviation of 1.1 bits.
    Usual,
}

/// Groups of a head; none for other formats.
pub fn groups(layout: &RecordLayout, seed: u64, spread: Spread) -> Option<KeyGroups> {
    let KeyFormat::Gtq { code: GroupCode::Widths { halves } } = layout.format.key else { return None };
    let (tile, dim, mut r) = (gtq_tile(layout.tokens()), layout.dim, Rng::new(seed ^ 0x617d));
    let mut bits = vec![halves / 2; dim / tile];
    let more = usize::from(halves % 2) * bits.len() / 2;
    bits[..more].iter_mut().for_each(|b| *b += 1);
    let sum = |bits: &[u8]| bits.iter().map(|b| i32::from(*b)).sum::<i32>();
    let wanted = sum(&bits);
    if spread == Spread::Usual {
        bits.iter_mut().for_each(|b| *b = (f64::from(*b) + 1.1 * r.normal()).round().clamp(1.0, 6.0) as u8);
    }
    while sum(&bits) != wanted {
        let at = r.below(bits.len());
        bits[at] = if sum(&bits) < wanted { (bits[at] + 1).min(6) } else { (bits[at] - 1).max(1) };
    }
    for _ in 0..if spread == Spread::Any { 4 * bits.len() } else { 0 } {
        let (from, to) = (r.below(bits.len()), r.below(bits.len()));
        if from != to && bits[from] > 1 && bits[to] < 6 {
            (bits[from], bits[to]) = (bits[from] - 1, bits[to] + 1);
        }
    }
    let mut order: Vec<usize> = (0..dim / 2).collect();
    (0..order.len()).for_each(|i| order.swap(i, r.below(dim / 2)));
    let mut widths = vec![0; dim / 2];
    order.into_iter().enumerate().for_each(|(i, pair)| widths[pair] = bits[i / (tile / 2)]);
    let (pairing, rotary) = [(Pairing::Half, dim), (Pairing::Interleaved, dim), (Pairing::Half, dim / 2)][r.below(3)];
    Some(KeyGroups::new(&widths, pairing, rotary).unwrap())
}
