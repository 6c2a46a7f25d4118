//! The random stream of numpy's `default_rng`, bit for bit, as far as the outlier twin needs it.
//!
//! The twin is defined by a numpy program; to make the same twin here, the same pairs must be drawn. This is
//! `SeedSequence` (one 32-bit word of entropy), `PCG64` (XSL-RR 128/64) and `Generator.choice(.., replace=False)`.

const MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;

/// `numpy.random.default_rng(seed)`.
#[derive(Debug, Clone)]
pub struct NumpyRng {
    state: u128,
    increment: u128,
    /// High half of a 64-bit output of which only the low half has been handed out.
    spare: Option<u32>,
}

/// The entropy pool of numpy's `SeedSequence`, expanded to eight words.
fn seed_words(seed: u32) -> [u32; 8] {
    const INIT_A: u32 = 0x43b0_d7e5;
    const MULT_A: u32 = 0x931e_8875;
    const INIT_B: u32 = 0x8b51_f9dd;
    const MULT_B: u32 = 0x58f3_8ded;
    const MIX_LEFT: u32 = 0xca01_f9dd;
    const MIX_RIGHT: u32 = 0x4973_f715;
    let mut constant = INIT_A;
    let mut hash = |value: u32| {
        let mut value = value ^ constant;
        constant = constant.wrapping_mul(MULT_A);
        value = value.wrapping_mul(constant);
        value ^ (value >> 16)
    };
    let mix = |x: u32, y: u32| {
        let r = x.wrapping_mul(MIX_LEFT).wrapping_sub(y.wrapping_mul(MIX_RIGHT));
        r ^ (r >> 16)
    };
    let mut pool = [seed, 0, 0, 0].map(&mut hash);
    for source in 0..4 {
        for target in 0..4 {
            if source != target {
                pool[target] = mix(pool[target], hash(pool[source]));
            }
        }
    }
    let mut constant = INIT_B;
    std::array::from_fn(|i| {
        let mut value = pool[i % 4] ^ constant;
        constant = constant.wrapping_mul(MULT_B);
        value = value.wrapping_mul(constant);
        value ^ (value >> 16)
    })
}

impl NumpyRng {
    /// The generator of `seed`.
    pub fn new(seed: u32) -> Self {
        let w = seed_words(seed).map(u128::from);
        // Words pair up little-endian to 64 bits; of a 128-bit number numpy takes the high 64 bits first.
        let wide = |i: usize| (w[i] | w[i + 1] << 32) << 64 | w[i + 2] | w[i + 3] << 32;
        let mut rng = Self { state: 0, increment: wide(4) << 1 | 1, spare: None };
        rng.step();
        rng.state = rng.state.wrapping_add(wide(0));
        rng.step();
        rng
    }

    fn step(&mut self) {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.step();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    /// The next 32 bits: low half first, then the high half of the same output.
    pub fn next_u32(&mut self) -> u32 {
        if let Some(high) = self.spare.take() {
            return high;
        }
        let x = self.next_u64();
        self.spare = Some((x >> 32) as u32);
        x as u32
    }

    /// Uniform in `0..=last` by Lemire's method, as numpy does for ranges below 32 bits. `0` draws nothing.
    fn bounded(&mut self, last: u32) -> u32 {
        if last == 0 {
            return 0;
        }
        if last == u32::MAX {
            return self.next_u32();
        }
        let range = last + 1;
        let threshold = range.wrapping_neg() % range;
        loop {
            let product = u64::from(self.next_u32()) * u64::from(range);
            if product as u32 >= threshold {
                return (product >> 32) as u32;
            }
        }
    }

    /// `choice(population, count, replace=False)` as indices, for populations up to 10000: Floyd's sampling, then a
    /// shuffle. A `count` above `population` is cut to it.
    pub fn choice(&mut self, population: u32, count: u32) -> Vec<u32> {
        let count = count.min(population);
        let mut chosen: Vec<u32> = Vec::with_capacity(count as usize);
        for last in population - count..population {
            let draw = self.bounded(last);
            chosen.push(if chosen.contains(&draw) { last } else { draw });
        }
        for i in (1..chosen.len()).rev() {
            let j = self.bounded(i as u32) as usize;
            chosen.swap(i, j);
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    include!("numpy_rng_expected.rs");

    #[test]
    fn raw_bits_are_numpys() {
        for (seed, expected) in RAW {
            let mut rng = NumpyRng::new(seed);
            assert_eq!(expected.map(|_| rng.next_u64()), expected, "seed {seed}");
        }
    }

    #[test]
    fn choices_are_numpys() {
        for (seed, population, expected) in CHOICES {
            let mut rng = NumpyRng::new(seed);
            for (i, want) in expected.iter().enumerate() {
                assert_eq!(rng.choice(population, 3), *want, "seed {seed} population {population} draw {i}");
            }
        }
    }
}
