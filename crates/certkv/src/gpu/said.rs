//! What a step has left on the device of the blocks of a query head, as a cache on the host would have it: 4 bytes a block, and the head's certificate.
use crate::levels::terms::Seen;
use certkv_kernel::cuda::args::{Certificate, MassWord};

/// What a step said of the blocks of one query head, as a cache on the host has it.
#[derive(Debug)]
pub(super) struct Said {
    mass: Vec<f32>,
    /// [`Seen::terms`].
    terms: Vec<[f32; 4]>,
    radius: f32,
    norm: f32,
}

impl Said {
    /// From the words of the blocks that have any; the others share what mass is left.
    pub(super) fn new(certificate: &Certificate, words: impl Iterator<Item = MassWord>, blocks: usize) -> Self {
        let of = Shares::of(f64::from(certificate.lse) / core::f64::consts::LN_2);
        let (mut mass, mut terms) = (Vec::with_capacity(blocks), Vec::with_capacity(blocks));
        let mut rest = 1.0;
        for word in words {
            let share = of.share(word);
            rest -= share;
            mass.push(share as f32);
            terms.push(terms_of_word(share, word));
        }
        // Of a block without a word: it may be one token's mass, and its bounds are those of the others.
        let rest = rest.max(0.0) as f32;
        mass.resize(blocks, rest);
        terms.resize(blocks, [rest, f32::NAN, f32::NAN, 0.0]);
        Self { mass, terms, radius: certificate.radius, norm: certificate.norm }
    }

    pub(super) fn is_whole(&self) -> bool {
        self.radius.is_finite() && self.norm.is_finite() && self.mass.iter().all(|mass| mass.is_finite())
    }

    pub(super) fn seen(&self) -> Seen<'_> {
        let (radius, norm) = (f64::from(self.radius), f64::from(self.norm));
        Seen { mass: &self.mass, terms: &self.terms, radius, norm, reach: &[] }
    }
}

/// `p_b`, and a `Delta_b` and a `Lambda_b` that make `g_b` (5.9) what the word says it is: it does not say which of the two did.
fn terms_of_word(mass: f64, word: MassWord) -> [f32; 4] {
    let (Some(share), Some(evenness)) = (word.log2_share(), word.log2_evenness()) else {
        return [0.0, f32::NAN, f32::NAN, 0.0];
    };
    let (evenness, delta) = (f64::from(evenness).exp2(), f64::from(share).exp2().ln_1p());
    [mass * evenness, delta, delta / evenness, 0.0].map(|x| x as f32)
}

/// Masses as parts of a sum: powers of two by their fractions, which are 32 to an octave in a word, as a call looks at every block and query head.
pub(super) struct Shares {
    fractions: [f64; 32],
    /// Whole octaves of the sum.
    octaves: i32,
}

impl Shares {
    /// Of a sum of `2^total`.
    pub(super) fn of(total: f64) -> Self {
        let octaves = total.floor();
        let fraction = |i: usize| (i as f64 / 32.0 - (total - octaves)).exp2();
        Self { fractions: core::array::from_fn(fraction), octaves: octaves as i32 }
    }

    pub(super) fn share(&self, word: MassWord) -> f64 {
        let Some([octave, fraction]) = word.octaves() else { return 0.0 };
        let exponent = octave.saturating_sub(self.octaves).clamp(-1022, 1023);
        self.fractions[fraction as usize] * f64::from_bits(((exponent + 1023) as u64) << 52)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use certkv_bound::terms::key_terms;

    #[test]
    fn shares_are_powers_of_two() {
        for total in [-3.7, 0.0, 5.25, 90.123, -200.9] {
            let of = Shares::of(total);
            for log2 in (0..2000).map(|i| total - 30.0 + f64::from(i) / 50.0) {
                let word = MassWord((((log2 + 512.0) * 32.0) as u32) << 17 | 77);
                let want = (f64::from(word.log2_mass().unwrap()) - total).exp2();
                assert!((of.share(word) / want - 1.0).abs() < 1e-12, "{total} {log2}");
            }
            assert_eq!(of.share(MassWord(0)), 0.0);
        }
        for none in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(Shares::of(none).share(MassWord(1 << 20)).is_nan(), "no sum, no share");
        }
    }

    #[test]
    fn terms_are_those_that_the_words_say() {
        let (total, q) = (7.25f64, 3usize);
        let certificate = Certificate {
            lse: (total * core::f64::consts::LN_2) as f32,
            norm: 2.0,
            radius: 3.0,
            ..Certificate::default()
        };
        // Masses of an eighth and a quarter of the sum; a key term of a half and of four times the mass; weights of one token, and of 16 alike.
        let word = |mass: f64, share: f64, even: f64| {
            MassWord(
                (((mass + 512.0) * 32.0) as u32) << 17 | (((share + 32.0) * 64.0) as u32) << 5 | (-8.0 * even) as u32,
            )
        };
        let words = [word(total - 3.0, -1.0, 0.0), word(total - 2.0, 2.0, -2.0), MassWord(0)];
        let said = Said::new(&certificate, words.into_iter(), q + 1);
        assert!(said.is_whole());
        let seen = said.seen();
        assert_eq!((seen.radius, seen.norm, seen.reach.len()), (3.0, 2.0, 0));
        for (got, want) in seen.mass.iter().zip([0.125, 0.25, 0.0, 0.625]) {
            assert!((got - want).abs() < 1e-6, "{got} {want}");
        }
        for (block, share) in [(0, 0.5), (1, 4.0)] {
            let [root, delta, lambda, _] = seen.terms[block].map(f64::from);
            let mass = f64::from(seen.mass[block]);
            assert!((root / mass - [1.0, 0.25][block]).abs() < 1e-6);
            let (g, h) = key_terms(mass, root, delta, lambda);
            assert!((g / (share * mass) - 1.0).abs() < 1e-5 && h <= g, "{g}");
        }
        assert!(seen.terms[2][1].is_nan() && seen.terms[3][0] == seen.mass[3] && seen.terms[3][2].is_nan());
        let none = Certificate { lse: f32::NAN, ..certificate };
        assert!(!Said::new(&none, words.into_iter(), q).is_whole());
    }
}
