//! The yardstick of every speed figure: how fast this machine reads memory, right now.
use std::time::Instant;

/// Reads `bytes` once (64-bit loads, several independent sums) and returns a value that depends on every byte, so that
/// nothing is optimised away.
pub fn read_all(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 16];
    let (words, rest) = bytes.as_chunks::<8>();
    let (chunks, single) = words.as_chunks::<16>();
    for chunk in chunks {
        for i in 0..16 {
            sums[i] = sums[i].wrapping_add(u64::from_le_bytes(chunk[i]));
        }
    }
    for word in single {
        sums[0] = sums[0].wrapping_add(u64::from_le_bytes(*word));
    }
    sums.iter().fold(rest.iter().map(|&b| u64::from(b)).sum(), |a, &b| a.wrapping_add(b))
}

/// Bytes per second of a plain read of `bytes` by one thread: the best of `runs`. Use a slice much larger than the last
/// cache, and run it beside the measurement it is compared with.
pub fn bandwidth(bytes: &[u8], runs: usize) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..runs.max(1) {
        let start = Instant::now();
        core::hint::black_box(read_all(core::hint::black_box(bytes)));
        best = best.min(start.elapsed().as_secs_f64());
    }
    bytes.len() as f64 / best
}

#[cfg(test)]
mod tests {
    #[test]
    fn reads_every_byte() {
        let mut bytes = vec![0u8; 1000];
        let zero = super::read_all(&bytes);
        for i in [0, 127, 128, 999] {
            bytes[i] = 1;
            assert_ne!(super::read_all(&bytes), zero, "{i}");
            bytes[i] = 0;
        }
        assert!(super::bandwidth(&bytes, 3) > 0.0);
    }
}
