//! The deterministic hash behind every pseudo-random choice, math.md (0.3).

/// One splitmix64 step. `splitmix64(0) == 0xE220A8397B1DCDAF`.
#[inline]
pub const fn splitmix64(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = x;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// `h = 0; for w: h = splitmix64(h xor w)`, math.md (0.3).
#[inline]
pub const fn hash64(words: &[u64]) -> u64 {
    let mut h = 0;
    let mut i = 0;
    while i < words.len() {
        h = splitmix64(h ^ words[i]);
        i += 1;
    }
    h
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_first_value() {
        assert_eq!(splitmix64(0), 0xE220_A839_7B1D_CDAF);
        assert_ne!(hash64(&[1, 2]), hash64(&[2, 1]));
    }
}
