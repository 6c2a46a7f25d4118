//! What calibrated keys are coded in, math.md (2.19a): around a centre, every channel times its balance scale. The codes of such
//! keys mean something only together with both. Spherical keys are coded as they are, by directions that were trained for them.
//!
//! Numbers are borrowed from whoever keeps the calibration; nothing here is ever copied per block.
use crate::error::{CodecError, Input, sized};
use crate::groups::KeyGroups;
use crate::spherical::Spherical;
use certkv_core::{KeyFormat, RecordLayout};

/// Centre and balance scale of the keys of one head, and their groups where they have several; or their directions, and then neither.
#[derive(Debug, Clone, Copy)]
pub struct KeyMetric<'a> {
    centre: &'a [f32],
    balance: &'a [f32],
    groups: Option<&'a KeyGroups>,
    books: Option<&'a Spherical>,
}

impl KeyMetric<'_> {
    /// Of keys that are coded as they are.
    pub const PLAIN: Self = Self { centre: &[], balance: &[], groups: None, books: None };
}

impl<'a> KeyMetric<'a> {
    /// Both by channel, (dim,).
    ///
    /// # Errors
    /// [`CodecError::Shape`] for two lengths, [`CodecError::NonFinite`] for a centre, [`CodecError::NotPositive`] for a scale that
    /// is 0, negative, not finite, or has no reciprocal.
    pub fn new(centre: &'a [f32], balance: &'a [f32]) -> Result<Self, CodecError> {
        sized(Input::Balance, balance.len(), centre.len())?;
        if let Some(channel) = centre.iter().position(|c| !c.is_finite()) {
            return Err(CodecError::NonFinite { input: Input::KeyCentre, row: 0, channel });
        }
        match balance.iter().position(|s| !(*s > 0.0 && s.is_finite() && s.recip().is_finite())) {
            Some(channel) => Err(CodecError::NotPositive { input: Input::Balance, channel }),
            None => Ok(Self { centre, balance, groups: None, books: None }),
        }
    }

    /// The same for keys of unlike widths (2.19c).
    ///
    /// # Errors
    /// [`CodecError::Shape`] for groups of another head.
    pub fn grouped(self, groups: &'a KeyGroups) -> Result<Self, CodecError> {
        sized(Input::Schedule, groups.channels(), self.dim())?;
        Ok(Self { groups: Some(groups), ..self })
    }

    /// For spherical keys: nothing is taken off them, and no channel has a scale.
    pub const fn directions(books: &'a Spherical) -> Self {
        Self { centre: &[], balance: &[], groups: None, books: Some(books) }
    }

    /// Directions of spherical keys.
    pub const fn books(&self) -> Option<&'a Spherical> {
        self.books
    }

    /// Groups of keys of unlike widths.
    pub const fn groups(&self) -> Option<&'a KeyGroups> {
        self.groups
    }

    /// Refuses records of other heads, and groups or directions where codes have none or the other way round.
    ///
    /// # Errors
    /// [`CodecError::Shape`], [`CodecError::Metric`].
    pub fn check(&self, layout: &RecordLayout) -> Result<(), CodecError> {
        if let Some(books) = self.books {
            return books.check(layout);
        }
        sized(Input::KeyCentre, self.dim(), layout.dim)?;
        match (layout.format.key, self.groups) {
            (KeyFormat::Gtq { .. }, None) => Err(CodecError::Metric { needed: true }),
            (_, Some(groups)) => groups.check(layout),
            (_, None) => Ok(()),
        }
    }

    /// Channels.
    pub fn dim(&self) -> usize {
        self.books.map_or(self.centre.len(), Spherical::channels)
    }

    /// Centre by channel; empty beside directions.
    pub const fn centre(&self) -> &'a [f32] {
        self.centre
    }

    /// Balance scale by channel; empty beside directions.
    pub const fn balance(&self) -> &'a [f32] {
        self.balance
    }

    /// A key becomes `(k - c) S`, rounded twice.
    pub fn fold(&self, key: &mut [f64]) {
        for ((k, c), s) in key.iter_mut().zip(self.centre).zip(self.balance) {
            *k = (*k - f64::from(*c)) * f64::from(*s);
        }
    }

    /// What [`KeyMetric::fold`] made of a key becomes the key again: `x / S + c`.
    pub fn unfold(&self, key: &mut [f64]) {
        for ((k, c), s) in key.iter_mut().zip(self.centre).zip(self.balance) {
            *k = *k / f64::from(*s) + f64::from(*c);
        }
    }

    /// A query becomes `q / S`: its product with a folded key is that with the key, less [`KeyMetric::shift`].
    pub fn fold_query(&self, q: &mut [f64]) {
        q.iter_mut().zip(self.balance).for_each(|(q, s)| *q /= f64::from(*s));
    }

    /// `||q / S||`, what bounds of folded keys are multiplied by, (4.5) and (2.19b): of spherical keys the query's own norm.
    pub fn reach(&self, q: &[f32]) -> f64 {
        let scale = |channel: usize| self.balance.get(channel).map_or(1.0, |s| f64::from(*s));
        q.iter().enumerate().map(|(channel, q)| (f64::from(*q) / scale(channel)).powi(2)).sum::<f64>().sqrt()
    }

    /// `q.c`, what is added to every product of codes.
    pub fn shift(&self, q: &[f64]) -> f64 {
        q.iter().zip(self.centre).map(|(q, c)| q * f64::from(*c)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_those_of_the_keys() {
        let (centre, balance) = ([1.5, -0.25, 0.0, 3.0], [0.5, 4.0, 1.0, 0.125]);
        let metric = KeyMetric::new(&centre, &balance).unwrap();
        let (key, q) = ([2.0, 1.0, -1.0, 0.5], [1.0, -2.0, 0.5, 4.0]);
        let (mut folded, mut query) = (key, q);
        metric.fold(&mut folded);
        metric.fold_query(&mut query);
        assert_eq!(folded, [0.25, 5.0, -1.0, -0.3125]);
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        assert_eq!(dot(&folded, &query) + metric.shift(&q), dot(&key, &q));
        metric.unfold(&mut folded);
        assert_eq!((folded, metric.dim()), (key, 4));
    }

    #[test]
    fn refuses_what_is_no_metric() {
        let fine = [1.0f32, 2.0];
        assert!(matches!(
            KeyMetric::new(&fine, &[1.0]),
            Err(CodecError::Shape { input: Input::Balance, got: 1, want: 2 })
        ));
        for bad in [f32::NAN, f32::INFINITY] {
            let refused = KeyMetric::new(&[0.0, bad], &fine).err();
            assert_eq!(refused, Some(CodecError::NonFinite { input: Input::KeyCentre, row: 0, channel: 1 }));
        }
        for bad in [0.0, -1.0, f32::NAN, f32::INFINITY, f32::from_bits(1)] {
            let refused = KeyMetric::new(&fine, &[1.0, bad]).err();
            assert_eq!(refused, Some(CodecError::NotPositive { input: Input::Balance, channel: 1 }));
        }
    }
}
