//! How far two calibrations are from each other, as the source paper measures it (its equations 5 to 7).
use super::{Calibration, CalibrationError};

/// Bits from which on a pair counts as protected.
const HIGH: u8 = 4;

/// Counts and sums over pairs; of a layer, or joined over several.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Distance {
    /// Pairs compared.
    pub pairs: u64,
    /// Pairs of another width.
    pub changed: u64,
    /// Pairs with at least four bits in both.
    pub high_in_both: u64,
    /// Pairs with at least four bits in either.
    pub high_in_either: u64,
    /// `sum s 4^-b`, scores and bits of the reference.
    pub reference: f64,
    /// The same with the bits of the other.
    pub other: f64,
}

impl Distance {
    /// Share of the pairs whose width changed.
    pub fn hamming(&self) -> f64 {
        if self.pairs == 0 { 0.0 } else { self.changed as f64 / self.pairs as f64 }
    }

    /// HB@4: pairs with at least four bits, those in both over those in either. 1 if there are none.
    pub fn high_bits(&self) -> f64 {
        if self.high_in_either == 0 { 1.0 } else { self.high_in_both as f64 / self.high_in_either as f64 }
    }

    /// What the objective of the reference loses under the other's bits, relative. Below 0 only if those are more.
    pub fn regret(&self) -> f64 {
        if self.other == self.reference { 0.0 } else { (self.other - self.reference) / self.reference }
    }

    /// Both together.
    pub fn join(self, more: Self) -> Self {
        Self {
            pairs: self.pairs + more.pairs,
            changed: self.changed + more.changed,
            high_in_both: self.high_in_both + more.high_in_both,
            high_in_either: self.high_in_either + more.high_in_either,
            reference: self.reference + more.reference,
            other: self.other + more.other,
        }
    }
}

impl Calibration {
    /// How far this calibration is from `reference`, layer by layer. Models may differ, their heads may not.
    ///
    /// # Errors
    /// [`CalibrationError::OtherHeads`] naming the first difference.
    pub fn distances(&self, reference: &Self) -> Result<Vec<Distance>, CalibrationError> {
        self.check_for(reference.heads(), &self.source.model)?;
        let heads = self.heads.kv_heads;
        let of_head = |at: usize| -> Result<Distance, CalibrationError> {
            let (mine, theirs) = (&self.schemes[at].bits, &reference.schemes[at].bits);
            let mut sum = Distance::default();
            for ((b, r), s) in mine.iter().zip(theirs).zip(reference.scores(at)?) {
                sum.pairs += 1;
                sum.changed += u64::from(b != r);
                sum.high_in_both += u64::from(*b.min(r) >= HIGH);
                sum.high_in_either += u64::from(*b.max(r) >= HIGH);
                sum.reference += s * 4f64.powi(-i32::from(*r));
                sum.other += s * 4f64.powi(-i32::from(*b));
            }
            Ok(sum)
        };
        (0..self.heads.layers)
            .map(|layer| {
                (layer * heads..(layer + 1) * heads).try_fold(Distance::default(), |sum, at| Ok(sum.join(of_head(at)?)))
            })
            .collect()
    }
}
