//! Keeps keys while a model reads a text, for training.
use super::{HeadBooks, KeyHeads, Trained, Training, train};
use crate::calibration::CalibrationError;
use crate::error::ControlError;
use certkv_codec::spherical::Tier;

/// The keys of a text, by layer and key head: four bytes a channel.
#[derive(Debug, Clone)]
pub struct Gather {
    heads: KeyHeads,
    /// Row-major (tokens, head_dim), one for each layer and head.
    keys: Vec<Vec<f32>>,
}

impl Gather {
    /// Nothing seen yet.
    ///
    /// # Errors
    /// [`CalibrationError::Field`] for heads that cannot be.
    pub fn new(heads: KeyHeads) -> Result<Self, CalibrationError> {
        heads.check(1)?;
        Ok(Self { heads, keys: vec![Vec::new(); heads.layers * heads.kv_heads] })
    }

    /// Adds keys of a layer, token-major (tokens, kv_heads * head_dim), as attention sees them: after RoPE.
    ///
    /// # Errors
    /// [`CalibrationError::Rows`] for a layer or a length that does not fit, [`CalibrationError::Number`] for a value that is not
    /// finite; nothing was added then.
    pub fn add(&mut self, layer: usize, k: &[f32]) -> Result<(), CalibrationError> {
        let KeyHeads { layers, kv_heads, head_dim } = self.heads;
        let width = kv_heads * head_dim;
        if !k.len().is_multiple_of(width) {
            return Err(CalibrationError::Rows { what: "keys", got: k.len(), want: k.len() / width * width });
        }
        if layer >= layers {
            return Err(CalibrationError::Rows { what: "layer", got: layer, want: layers - 1 });
        }
        if let Some(i) = k.iter().position(|x| !x.is_finite()) {
            return Err(CalibrationError::Number { layer, head: i % width / head_dim, what: "keys", index: i / width });
        }
        for row in k.chunks_exact(width) {
            let heads = self.keys[layer * kv_heads..].iter_mut();
            heads.zip(row.chunks_exact(head_dim)).for_each(|(keys, row)| keys.extend_from_slice(row));
        }
        Ok(())
    }

    /// Tokens that every layer has seen.
    pub fn tokens(&self) -> u64 {
        self.keys.iter().map(|keys| (keys.len() / self.heads.head_dim) as u64).min().unwrap_or(0)
    }

    /// Trains the codebooks of one key head: a function of the keys and the seed. Heads may be trained side by side.
    ///
    /// # Errors
    /// [`CalibrationError::Directions`] if a group has too few keys that are not zero; [`CalibrationError::Rows`] for a layer or head
    /// that there is not; [`CalibrationError::Field`] if the channels of a head are no whole number of the tier's groups.
    pub fn train_head(
        &self,
        layer: usize,
        head: usize,
        tier: Tier,
        training: &Training,
    ) -> Result<HeadBooks, CalibrationError> {
        self.heads.check(tier.group())?;
        let KeyHeads { layers, kv_heads, head_dim } = self.heads;
        if layer >= layers || head >= kv_heads {
            return Err(CalibrationError::Rows { what: "head", got: head, want: kv_heads - 1 });
        }
        let (width, count) = (tier.group(), tier.words());
        let keys = &self.keys[layer * kv_heads + head];
        let mut books = HeadBooks { words: Vec::new(), loss: Vec::new() };
        for group in 0..head_dim / width {
            let of_group = |key: &[f32]| key[group * width..(group + 1) * width].to_vec();
            let groups: Vec<f32> = keys.chunks_exact(head_dim).flat_map(of_group).collect();
            let Trained { words, loss, .. } = train(&groups, width, count, training).map_err(|e| match e {
                ControlError::Length { got: have, need, .. } => {
                    CalibrationError::Directions { layer, head, group, have, need }
                }
                other => other.into(),
            })?;
            books.words.extend(words);
            books.loss.push(loss.last().copied().unwrap_or(0.0));
        }
        Ok(books)
    }
}
