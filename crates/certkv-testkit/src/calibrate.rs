//! Calibrations of rows that a test has, as `certkv calibrate` makes them of a model's.
use certkv_control::calibration::{Calibration, Heads, Meter, Rule, Source};
use certkv_control::spherical::{Codebooks, Gather, HeadBooks, KeyHeads, Training};
use certkv_core::{Geometry, Pairing, Tier, hash::hash64};

/// A calibration of `geometry`, every layer of it, from keys `[token][kv_heads][dim]` and queries `[token][q_heads][dim]` of some
/// tokens, one at least, all finite. Rows are seen as often as it takes. `model` becomes the digest of the model.
pub fn calibration(geometry: &Geometry, keys: &[f32], queries: &[f32], model: u8) -> Calibration {
    turned(geometry, (geometry.head_dim, Pairing::Half), keys, queries, model)
}

/// The same of a model whose positions turn the first `rotary` channels, paired so.
pub fn turned(
    geometry: &Geometry,
    (rotary, pairing): (usize, Pairing),
    keys: &[f32],
    queries: &[f32],
    model: u8,
) -> Calibration {
    let Geometry { layers, q_heads, kv_heads, head_dim, .. } = *geometry;
    let heads = Heads { layers, q_heads, kv_heads, head_dim, rotary, pairing };
    let mut meter = Meter::new(heads).expect("heads of a geometry");
    let (of_key, of_query) = (kv_heads * head_dim, q_heads * head_dim);
    let tokens = (keys.len() / of_key).max(Meter::LEAST_TOKENS as usize);
    let cycle =
        |rows: &[f32], width: usize| -> Vec<f32> { rows.iter().copied().cycle().take(tokens * width).collect() };
    let (keys, queries) = (cycle(keys, of_key), cycle(queries, of_query));
    (0..layers).for_each(|layer| meter.add(layer, &queries, &keys).expect("finite rows"));
    let (seen, tokens) = meter.finish().expect("tokens enough");
    let source = Source { model: [model; 32], text: [0; 32], tokens };
    Calibration::choose(heads, source, Rule::new(4 * heads.pairs()), seen).expect("a rule that fits")
}

/// Codebooks of `geometry`, every layer of it, trained for a few rounds on keys `[token][kv_heads][dim]`, one at least, all finite. Groups that
/// are 0 too often have directions of no meaning. `model` becomes the digest of the model.
pub fn codebooks(geometry: &Geometry, tier: Tier, keys: &[f32], model: u8) -> Codebooks {
    let Geometry { layers, kv_heads, head_dim, .. } = *geometry;
    let heads = KeyHeads { layers, kv_heads, head_dim };
    let mut gather = Gather::new(heads).expect("heads of a geometry");
    let (width, training) = (kv_heads * head_dim, Training { rounds: 4, ..Training::new(7) });
    let least = keys.len().max(tier.words() * width);
    let keys: Vec<f32> = keys.iter().copied().cycle().take(least / width * width).collect();
    gather.add(0, &keys).expect("finite rows");
    let found: Vec<HeadBooks> = (0..kv_heads)
        .map(|head| gather.train_head(0, head, tier, &training).unwrap_or_else(|_| scattered(tier, head_dim)))
        .collect();
    let books = (0..layers).flat_map(|_| found.iter().cloned()).collect();
    let source = Source { model: [model; 32], text: [0; 32], tokens: (keys.len() / width) as u64 };
    Codebooks::new(heads, source, tier, training, books).expect("directions of these heads")
}

/// Unit directions of a head that nothing was trained for.
fn scattered(tier: Tier, head_dim: usize) -> HeadBooks {
    let number = |i: usize| (hash64(&[31, i as u64]) % 2001) as f32 / 1000.0 - 1.0;
    let mut words: Vec<f32> = (0..head_dim * tier.words()).map(number).collect();
    for word in words.chunks_exact_mut(tier.group()) {
        let length = word.iter().map(|x| x * x).sum::<f32>().sqrt();
        word.iter_mut().for_each(|x| *x /= length);
    }
    HeadBooks { words, loss: vec![1.0; head_dim / tier.group()] }
}
