//! Codebooks of spherical keys, math.md 2.9: unit directions for every group of channels of every key head, trained on the keys of a
//! text and kept in a file.
//!
//! [`Gather`] keeps the keys, [`train`] finds the directions of one group, [`Codebooks`] holds those of a model. Directions are a choice
//! and no promise: whatever they are, the errors of a block are measured when it is coded.
use crate::calibration::{CalibrationError, Source};
use certkv_codec::spherical::{Directions, Tier};

mod file;
mod gather;
mod train;

pub use file::{MAGIC, VERSION};
pub use gather::Gather;
pub use train::{Objective, Trained, Training, UnknownObjective, train};

/// The key heads of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyHeads {
    /// Layers.
    pub layers: usize,
    /// Key heads of a layer.
    pub kv_heads: usize,
    /// Channels of a head, a multiple of the tier's groups.
    pub head_dim: usize,
}

impl KeyHeads {
    fn check(&self, group: usize) -> Result<(), CalibrationError> {
        let field = |what, found: usize, fine: bool| {
            if fine { Ok(()) } else { Err(CalibrationError::Field { what, found: found as u64 }) }
        };
        field("layers", self.layers, (1..=4096).contains(&self.layers))?;
        field("kv_heads", self.kv_heads, (1..=1024).contains(&self.kv_heads))?;
        let whole = self.head_dim.is_multiple_of(group);
        field("head_dim", self.head_dim, whole && (1..=1024).contains(&self.head_dim))
    }

    fn named(&self) -> [(&'static str, usize); 3] {
        [("layers", self.layers), ("kv_heads", self.kv_heads), ("head_dim", self.head_dim)]
    }
}

/// The codebooks of one key head.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadBooks {
    /// Unit directions, (groups, words, channels of a group): what `certkv_codec::spherical::Scheme` takes.
    pub words: Vec<f32>,
    /// What each group lost of the text in the end, 0 to 2: mean `1 - cos`, or the share of the energy.
    pub loss: Vec<f64>,
}

impl HeadBooks {
    fn check(&self, heads: &KeyHeads, tier: Tier, at: usize) -> Result<(), CalibrationError> {
        let (layer, head) = (at / heads.kv_heads, at % heads.kv_heads);
        let groups = heads.head_dim / tier.group();
        for (what, got, want) in
            [("directions", self.words.len(), groups * tier.book_len()), ("losses", self.loss.len(), groups)]
        {
            if got != want {
                return Err(CalibrationError::Rows { what, got, want });
            }
        }
        let refuse = |what, index| Err(CalibrationError::Number { layer, head, what, index });
        for (index, word) in self.words.chunks_exact(tier.group()).enumerate() {
            let wide: Vec<f64> = word.iter().map(|x| f64::from(*x)).collect();
            if Directions::new(&wide, tier.group()).is_err() {
                return refuse("directions", index);
            }
        }
        match self.loss.iter().position(|loss| !(0.0..=2.0).contains(loss)) {
            Some(index) => refuse("losses", index),
            None => Ok(()),
        }
    }
}

/// Codebooks for every key head of a model, and what they were trained on.
#[derive(Debug, Clone, PartialEq)]
pub struct Codebooks {
    heads: KeyHeads,
    source: Source,
    tier: Tier,
    training: Training,
    books: Vec<HeadBooks>,
}

impl Codebooks {
    /// Puts together what was trained, (layers * kv_heads) in order of layer, then head.
    ///
    /// # Errors
    /// [`CalibrationError::Field`] for heads that cannot be, [`CalibrationError::Rows`] if something does not fit them,
    /// [`CalibrationError::Number`] for a direction that is not of length 1 or a loss that is none.
    pub fn new(
        heads: KeyHeads,
        source: Source,
        tier: Tier,
        training: Training,
        books: Vec<HeadBooks>,
    ) -> Result<Self, CalibrationError> {
        heads.check(tier.group())?;
        if u32::try_from(training.rounds).is_err() {
            return Err(CalibrationError::Field { what: "rounds", found: training.rounds as u64 });
        }
        let want = heads.layers * heads.kv_heads;
        if books.len() != want {
            return Err(CalibrationError::Rows { what: "heads trained", got: books.len(), want });
        }
        books.iter().enumerate().try_for_each(|(at, head)| head.check(&heads, tier, at))?;
        Ok(Self { heads, source, tier, training, books })
    }

    /// The key heads of the model.
    pub const fn heads(&self) -> &KeyHeads {
        &self.heads
    }

    /// What was read.
    pub const fn source(&self) -> &Source {
        &self.source
    }

    /// Sizes of groups and codebooks.
    pub const fn tier(&self) -> Tier {
        self.tier
    }

    /// How they were trained.
    pub const fn training(&self) -> &Training {
        &self.training
    }

    /// The codebooks of a key head. None past the last layer or head.
    pub fn head(&self, layer: usize, kv_head: usize) -> Option<&HeadBooks> {
        let at = layer.checked_mul(self.heads.kv_heads)?.checked_add(kv_head)?;
        if kv_head < self.heads.kv_heads { self.books.get(at) } else { None }
    }

    /// Refuses codebooks that were made for other heads or another model.
    ///
    /// # Errors
    /// [`CalibrationError::OtherHeads`] naming the first difference, or [`CalibrationError::OtherModel`].
    pub fn check_for(&self, heads: &KeyHeads, model: &[u8; 32]) -> Result<(), CalibrationError> {
        for ((what, file), (_, wanted)) in self.heads.named().into_iter().zip(heads.named()) {
            if file != wanted {
                return Err(CalibrationError::OtherHeads { what, file, wanted });
            }
        }
        if self.source.model == *model { Ok(()) } else { Err(CalibrationError::OtherModel) }
    }
}

#[cfg(test)]
mod tests;
