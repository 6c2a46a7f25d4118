//! Tolerances of query heads. Of every third case each has its own, no two alike; others have one for all.
use certkv_kernel::cuda::args::Certificate;

/// A share of the output's norm and a length, of query head `head` of a sequence.
pub fn limit(seed: u64, relative: f32, head: usize) -> [f32; 2] {
    match (seed % 3, head % 2) {
        (1 | 2, _) => [relative, 0.0],
        (_, 0) => [relative * (1.0 + head as f32 / 8.0), 0.0],
        (_, _) => [relative * 0.25, 0.001 * head as f32],
    }
}

/// What a launch is told of `heads` query heads; nothing where one limit is for all.
pub fn words(seed: u64, relative: f32, heads: usize) -> Option<Vec<u32>> {
    let all = (0..heads).flat_map(|h| limit(seed, relative, h)).map(f32::to_bits).collect();
    seed.is_multiple_of(3).then_some(all)
}

/// Whether a certificate names the tolerance of its head.
pub fn is_named(c: &Certificate, [relative, absolute]: [f32; 2]) -> bool {
    let want = (relative * c.norm * 0.9999).max(absolute);
    (c.tolerance - want).abs() <= 1e-5 * want
}
