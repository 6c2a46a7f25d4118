//! What a pair of channels counts for when bits are given out, math.md 9.1: scores, the balance scale, the objective of groups.
use crate::ControlError;
use crate::error::{finite, length};
use core::{fmt, str::FromStr};

/// How the energies of a pair, `A = mean ||q||^2` over tokens and the query heads served and `K = mean ||k||^2`, become its
/// score, math.md (9.1). All but the last are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Score {
    /// `(A + K)/2`, the published default.
    Average,
    /// `max(A, K)`.
    Larger,
    /// `sqrt(A K)`, published as the product.
    Geometric,
    /// `K`.
    Keys,
    /// `A`.
    Queries,
    /// `A K`, with which the objective is the squared error of logits.
    Logit2,
}

/// Every score.
pub const SCORES: [Score; 6] =
    [Score::Average, Score::Larger, Score::Geometric, Score::Keys, Score::Queries, Score::Logit2];

impl Score {
    /// The score of a pair with energies `a` of queries and `k` of keys.
    pub fn of(self, a: f64, k: f64) -> f64 {
        match self {
            Self::Average => 0.5 * (a + k),
            Self::Larger => a.max(k),
            // The root of a product that could overflow or vanish.
            Self::Geometric => a.sqrt() * k.sqrt(),
            Self::Keys => k,
            Self::Queries => a,
            Self::Logit2 => a * k,
        }
    }

    /// The name that options and errors use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Average => "avg",
            Self::Larger => "max",
            Self::Geometric => "geo",
            Self::Keys => "keys",
            Self::Queries => "queries",
            Self::Logit2 => "logit2",
        }
    }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownScore;

impl fmt::Display for UnknownScore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("scores are")?;
        SCORES.iter().enumerate().try_for_each(|(i, s)| write!(f, "{} `{s}`", if i > 0 { "," } else { "" }))
    }
}
impl std::error::Error for UnknownScore {}

impl FromStr for Score {
    type Err = UnknownScore;

    fn from_str(name: &str) -> Result<Self, UnknownScore> {
        SCORES.into_iter().find(|s| s.name() == name).ok_or(UnknownScore)
    }
}

/// Energies of the pairs of a head.
#[derive(Debug, Clone, Copy)]
pub struct Energies<'a> {
    /// `A` by pair.
    pub queries: &'a [f64],
    /// `K` by pair, around the centre if keys are coded so.
    pub keys: &'a [f64],
}

impl Energies<'_> {
    fn check(&self) -> Result<(), ControlError> {
        length("keys", self.keys.len(), self.queries.len())?;
        finite("queries", self.queries)?;
        finite("keys", self.keys)
    }

    fn pairs(&self) -> impl Iterator<Item = (f64, f64)> {
        self.queries.iter().copied().zip(self.keys.iter().copied())
    }

    /// Scores by pair, (9.1).
    ///
    /// # Errors
    /// [`ControlError::Length`], or [`ControlError::Invalid`] for an energy that is negative or not finite.
    pub fn scores(&self, score: Score) -> Result<Vec<f64>, ControlError> {
        self.check()?;
        Ok(self.pairs().map(|(a, k)| score.of(a, k)).collect())
    }

    /// The balance scale `(A/K)^(1/4)` of each pair, for both of its channels; 1 where either energy is 0, (9.4).
    ///
    /// # Errors
    /// As [`Energies::scores`].
    pub fn balance(&self) -> Result<Vec<f64>, ControlError> {
        self.check()?;
        // Roots first: the quotient of two numbers that exist may not.
        let scale = |(a, k): (f64, f64)| if a > 0.0 && k > 0.0 { a.sqrt().sqrt() / k.sqrt().sqrt() } else { 1.0 };
        Ok(self.pairs().map(scale).collect())
    }

    /// `J` of (9.3): the expected squared error of a logit (without its scale) if pairs of equal `bits` are coded together in the
    /// metric of `balance` (by pair). `eta(channels, bits)` is the distortion (2.13) of the codebook.
    ///
    /// # Errors
    /// As [`Energies::scores`]; also [`ControlError::Invalid`] for a scale that is 0, negative or not finite.
    pub fn group_objective(
        &self,
        bits: &[u8],
        balance: Option<&[f64]>,
        mut eta: impl FnMut(usize, u8) -> f64,
    ) -> Result<f64, ControlError> {
        self.check()?;
        length("bits", bits.len(), self.queries.len())?;
        if let Some(scale) = balance {
            length("balance", scale.len(), self.queries.len())?;
            finite("balance", scale)?;
            if let Some(index) = scale.iter().position(|s| *s == 0.0) {
                return Err(ControlError::Invalid { what: "balance", index });
            }
        }
        let mut sum = 0.0;
        let mut widths = bits.to_vec();
        widths.sort_unstable();
        widths.dedup();
        for width in widths {
            let (mut a, mut k, mut channels) = (0.0, 0.0, 0);
            for (pair, (of_q, of_k)) in self.pairs().enumerate().filter(|(pair, _)| bits[*pair] == width) {
                let square = balance.map_or(1.0, |scale| scale[pair] * scale[pair]);
                (a, k, channels) = (a + of_q / square, k + of_k * square, channels + 2);
            }
            sum += a * k * eta(channels, width) / channels as f64;
        }
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn eta(_: usize, bits: u8) -> f64 {
        4f64.powi(-i32::from(bits))
    }

    #[test]
    fn names_and_values() {
        for score in SCORES {
            assert_eq!(score.name().parse(), Ok(score));
        }
        assert_eq!(SCORES.map(|s| s.of(9.0, 4.0)), [6.5, 9.0, 6.0, 4.0, 9.0, 36.0]);
        assert!("l1".parse::<Score>().unwrap_err().to_string().ends_with("`queries`, `logit2`"));
        let e = Energies { queries: &[16.0, 0.0, 1.0], keys: &[1.0, 4.0, 81.0] };
        let balance = e.balance().unwrap();
        assert!((balance[0] - 2.0).abs() < 1e-15 && balance[1] == 1.0 && (balance[2] - 1.0 / 3.0).abs() < 1e-15);
        assert_eq!(e.scores(Score::Logit2).unwrap(), [16.0, 0.0, 81.0]);
    }

    #[test]
    fn energies_that_are_none_are_refused() {
        for bad in [f64::NAN, -1.0, f64::INFINITY] {
            let e = Energies { queries: &[1.0, bad], keys: &[1.0, 1.0] };
            assert_eq!(e.scores(Score::Average), Err(ControlError::Invalid { what: "queries", index: 1 }));
            let e = Energies { queries: &[1.0, 1.0], keys: &[bad, 1.0] };
            assert_eq!(e.balance(), Err(ControlError::Invalid { what: "keys", index: 0 }));
        }
        let e = Energies { queries: &[1.0, 1.0], keys: &[1.0, 1.0] };
        assert!(Energies { keys: &[1.0], ..e }.balance().is_err());
        assert!(e.group_objective(&[3], None, eta).is_err());
        assert!(e.group_objective(&[3, 3], Some(&[1.0]), eta).is_err());
        for bad in [f64::NAN, -1.0, 0.0] {
            let e = e.group_objective(&[3, 3], Some(&[1.0, bad]), eta);
            assert_eq!(e, Err(ControlError::Invalid { what: "balance", index: 1 }));
        }
    }

    proptest! {
        /// (9.4) is the least of all scales, and the published forms are ordered as means are.
        #[test]
        fn no_scale_is_better_than_the_balance(
            energies in proptest::collection::vec((0.001f64..100.0, 0.001f64..100.0, 1u8..4, 0.1f64..10.0), 1..9)
        ) {
            let (a, k): (Vec<f64>, Vec<f64>) = energies.iter().map(|e| (e.0, e.1)).unzip();
            let other: Vec<f64> = energies.iter().map(|e| e.3).collect();
            let bits: Vec<u8> = energies.iter().map(|e| e.2).collect();
            let e = Energies { queries: &a, keys: &k };
            let best = e.group_objective(&bits, Some(&e.balance().unwrap()), eta).unwrap();
            for scale in [None, Some(&other[..])] {
                prop_assert!(best <= e.group_objective(&bits, scale, eta).unwrap() * (1.0 + 1e-12));
            }
            // With one width the objective is (sum sqrt(A K))^2 eta/n.
            let root: f64 = e.scores(Score::Geometric).unwrap().iter().sum();
            let one = vec![2; bits.len()];
            let joint = e.group_objective(&one, Some(&e.balance().unwrap()), eta).unwrap();
            prop_assert!((joint / (root * root * eta(0, 2) / (2.0 * bits.len() as f64)) - 1.0).abs() < 1e-12);
            for (a, k) in e.pairs() {
                prop_assert!(Score::Geometric.of(a, k) <= Score::Average.of(a, k) * (1.0 + 1e-12));
                prop_assert!(Score::Average.of(a, k) <= Score::Larger.of(a, k));
            }
        }
    }
}
