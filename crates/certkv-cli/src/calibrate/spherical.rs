//! Codebooks of spherical keys: trained while a model reads a text, and as ways to be measured.
use super::{evidence::Way, evidence::originals, watch::Rows};
use crate::model::AttentionError;
use certkv_codec::{
    CodecError,
    spherical::{self, Scheme, Spherical, Tier},
    turboquant::Radius,
};
use certkv_control::{
    CalibrationError,
    calibration::Heads,
    spherical::{Codebooks, Gather, HeadBooks, KeyHeads, Training},
};
use certkv_core::hash::hash64;
use rayon::prelude::*;
use std::fmt::Write as _;

/// The key heads of a model.
pub fn key_heads(heads: &Heads) -> KeyHeads {
    KeyHeads { layers: heads.layers, kv_heads: heads.kv_heads, head_dim: heads.head_dim }
}

impl Rows for Gather {
    fn see(&mut self, layer: usize, _: &[f32], k: &[f32], _: &[f32]) -> Result<(), AttentionError> {
        let k: Vec<f32> = originals(k).collect();
        self.add(layer, &k).map_err(|e| AttentionError::Cache(Box::new(e)))
    }
}

/// Trains every key head, side by side. `done` is told of heads as they are finished.
///
/// # Errors
/// [`CalibrationError::Directions`] if the text has too few keys.
pub fn train(
    gather: &Gather,
    heads: &KeyHeads,
    tier: Tier,
    training: &Training,
    done: impl Fn() + Sync,
) -> Result<Vec<HeadBooks>, CalibrationError> {
    let head = |at: usize| {
        let found = gather.train_head(at / heads.kv_heads, at % heads.kv_heads, tier, training);
        done();
        found
    };
    (0..heads.layers * heads.kv_heads).into_par_iter().map(head).collect()
}

/// Directions that nothing was trained for: uniform on the sphere.
pub fn random_words(tier: Tier, head_dim: usize, seed: u64) -> Vec<f32> {
    let uniform = |i: usize, draw: u64| (hash64(&[seed, i as u64, draw]) >> 11) as f64 / (1u64 << 53) as f64;
    // Box-Muller: coordinates that are normal numbers have no direction of their own.
    let normal = |i: usize| {
        let (u, v) = (1.0 - uniform(i, 0), uniform(i, 1));
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    };
    let numbers: Vec<f64> = (0..head_dim * tier.words()).map(normal).collect();
    let unit = |word: &[f64]| {
        let length = word.iter().map(|x| x * x).sum::<f64>().sqrt();
        word.iter().map(|x| (x / length) as f32).collect::<Vec<f32>>()
    };
    numbers.chunks_exact(tier.group()).flat_map(unit).collect()
}

/// The way of coding in blocks of `block` tokens with `words` by layer and key head, radii being `radius`.
pub fn spherical_way<'a>(
    name: String,
    tier: Tier,
    radius: Radius,
    block: usize,
    words: impl Fn(usize, usize) -> Vec<f32> + Sync + 'a,
) -> Way<'a> {
    let code = move |layer: usize, head: usize, keys: &[f64]| {
        let words = words(layer, head);
        let codec = Spherical::new(&Scheme { radius, ..Scheme::new(tier, &words) })?;
        let of_block = |keys: &[f64]| spherical::decode(&codec, &spherical::encode(&codec, keys)?);
        let blocks = keys.chunks(block * codec.channels()).map(of_block);
        let scales = 2.0 * codec.books().len() as f64 / block as f64;
        Ok((blocks.collect::<Result<Vec<_>, CodecError>>()?.concat(), spherical::row_bytes(&codec) as f64 + scales))
    };
    Way { name, code: Box::new(code) }
}

/// What was trained, by layer and key head.
pub fn codebook_summary(c: &Codebooks) -> String {
    let (heads, training, tier) = (c.heads(), c.training(), c.tier());
    let mut text = format!(
        "{tier}: {} directions of {} channels, {} layers, {} key heads of {} channels; {} tokens, objective `{}`, seed {}\n\
         layer head   share of each group that is lost\n",
        tier.words(),
        tier.group(),
        heads.layers,
        heads.kv_heads,
        heads.head_dim,
        c.source().tokens,
        training.objective,
        training.seed,
    );
    for layer in 0..heads.layers {
        for head in 0..heads.kv_heads {
            let Some(books) = c.head(layer, head) else { continue };
            let losses: Vec<String> = books.loss.iter().map(|loss| format!("{loss:.3}")).collect();
            // Writing to a string does not fail.
            let _ = writeln!(text, "{layer:>5} {head:>4}   {}", losses.join(" "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_directions_are_units_that_point_everywhere() {
        for tier in Tier::ALL {
            let words = random_words(tier, 128, 7);
            let codec = Spherical::new(&Scheme::new(tier, &words)).unwrap();
            assert_eq!(codec.channels(), 128);
            let mean = words.iter().map(|x| f64::from(*x)).sum::<f64>() / words.len() as f64;
            // Of 1024 or more numbers of variance 1/16 or less: six deviations.
            assert!(mean.abs() < 6.0 * 0.25 / (words.len() as f64).sqrt(), "{tier} {mean}");
            assert_ne!(words, random_words(tier, 128, 8));
        }
    }

    #[test]
    fn blocks_are_coded_apart_and_their_bytes_counted() {
        let keys: Vec<f64> =
            (0..20 * 32).map(|i| (i as f64 * 0.37).sin() * if i < 16 * 32 { 1.0 } else { 9.0 }).collect();
        let way = |block| {
            spherical_way("x".into(), Tier::B2, Radius::LeastSquares, block, |_, _| random_words(Tier::B2, 32, 1))
        };
        let (blocks, bytes) = (way(16).code)(0, 0, &keys).unwrap();
        assert_eq!(bytes, 2.0 + 1.0 + 2.0 * 2.0 / 16.0);
        // The scale of loud tokens does not reach those of another block.
        let (first, _) = (way(16).code)(0, 0, &keys[..16 * 32]).unwrap();
        let (whole, _) = (way(64).code)(0, 0, &keys).unwrap();
        assert_eq!((blocks.len(), &blocks[..16 * 32]), (keys.len(), &first[..]));
        assert_ne!(whole[..16 * 32], first[..]);
    }
}
