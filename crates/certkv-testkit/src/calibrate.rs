//! Calibrations of rows that a test has, as `certkv calibrate` makes them of a model's.
use certkv_control::calibration::{Calibration, Heads, Meter, Rule, Source};
use certkv_core::{Geometry, Pairing};

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
