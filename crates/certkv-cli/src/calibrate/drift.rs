//! Logit drift: how far the model's next-token distributions move when keys are coded, the text being forced. Full blocks are coded,
//! the open one is not, as in a cache.
use super::evidence::{TOP, Way, divergence, originals, top};
use crate::model::{Llama, ModelError, Rows, flat::Flat};
use certkv_codec::CodecError;
use rayon::prelude::*;
use std::{error::Error, fmt::Write as _};

/// Drift of one way to code, over the positions of the second half.
#[derive(Debug, Clone, PartialEq)]
pub struct Drift {
    /// Name of the way.
    pub name: String,
    /// Mean `KL(dense || coded)` in nats where the keys of one layer alone are coded, by layer.
    pub layers: Vec<f64>,
    /// The same where those of all layers are.
    pub mean: f64,
    /// Its largest over positions.
    pub most: f64,
    /// Mean share of the ten likeliest tokens that stay among the ten, all layers coded.
    pub overlap: f64,
}

type Boxed = Box<dyn Error + Send + Sync>;

/// Logits of the positions of the second half, (positions, vocabulary), where the keys of `layers` are coded in blocks of `block`.
fn forced(
    model: &Llama,
    tokens: &[u32],
    block: usize,
    way: Option<(&Way<'_>, &[usize])>,
) -> Result<Vec<Vec<f64>>, Boxed> {
    let mut cache = Flat::new(model.config());
    let mut found = Vec::new();
    for (number, chunk) in tokens.chunks(block).enumerate() {
        let logits = model.forward(chunk, &mut cache, Rows::All).map_err(|e: ModelError| Box::new(e))?;
        let positions = logits.chunks_exact(model.config().vocabulary).zip(number * block..);
        let late = positions.filter(|(_, at)| 2 * at >= tokens.len());
        found.extend(late.map(|(row, _)| row.iter().map(|z| f64::from(*z)).collect::<Vec<f64>>()));
        // A block that is not full stays as it is.
        if let Some((way, layers)) = way.filter(|_| chunk.len() == block) {
            recode(&mut cache, model, way, layers, number * block)?;
        }
    }
    Ok(found)
}

fn recode(cache: &mut Flat, model: &Llama, way: &Way<'_>, layers: &[usize], from: usize) -> Result<(), CodecError> {
    let dim = model.config().head_dim;
    for &layer in layers {
        for head in 0..model.config().kv_heads {
            let keys: Vec<f64> = originals(&cache.keys(layer, head)[from * dim..]).map(f64::from).collect();
            let (decoded, _) = (way.code)(layer, head, &keys)?;
            let decoded: Vec<f32> = decoded.iter().map(|x| *x as f32).collect();
            cache.replace_keys(layer, head, from, &decoded);
        }
    }
    Ok(())
}

/// Drift of every way over a text in `tokens`, coded in blocks of `block` tokens. `done` is told of runs of the model as they end: one, and for
/// each way one more than there are layers.
///
/// # Errors
/// What the model or a codec says.
pub fn drift(
    model: &Llama,
    tokens: &[u32],
    block: usize,
    ways: &[Way<'_>],
    done: impl Fn() + Sync,
) -> Result<Vec<Drift>, Boxed> {
    let dense = forced(model, tokens, block, None)?;
    done();
    let best: Vec<Vec<usize>> = dense.iter().map(|z| top(z)).collect();
    let all: Vec<usize> = (0..model.config().layers).collect();
    let of_way = |way: &Way<'_>| -> Result<Drift, Boxed> {
        let run = |layers: &[usize]| {
            let coded = forced(model, tokens, block, Some((way, layers)))?;
            done();
            let moved: Vec<f64> = dense.iter().zip(&coded).map(|(a, b)| divergence(a, b)).collect();
            Ok::<_, Boxed>((moved, coded))
        };
        let mean = |moved: &[f64]| moved.iter().sum::<f64>() / moved.len().max(1) as f64;
        let layers = all.par_iter().map(|layer| Ok(mean(&run(&[*layer])?.0))).collect::<Result<_, Boxed>>()?;
        let (moved, coded) = run(&all)?;
        let kept = |(before, z): (&Vec<usize>, &Vec<f64>)| {
            let after = top(z);
            before.iter().filter(|token| after.contains(token)).count() as f64 / TOP as f64
        };
        let overlap = best.iter().zip(&coded).map(kept).sum::<f64>() / coded.len().max(1) as f64;
        let most = moved.iter().copied().fold(0.0, f64::max);
        Ok(Drift { name: way.name.clone(), layers, mean: mean(&moved), most, overlap })
    };
    ways.iter().map(of_way).collect()
}

/// Drift by layer, a row for each way.
pub fn drift_table(rows: &[Drift]) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let width = rows.iter().map(|r| r.name.len()).max().unwrap_or(0).max(22);
    let layers: Vec<String> = (0..first.layers.len()).map(|l| format!("{:>8}", format!("l{l}"))).collect();
    let mut text = format!("{:width$} {}     all    D max  top 10\n", "logit drift D, nats", layers.join(""));
    for row in rows {
        let by_layer: Vec<String> = row.layers.iter().map(|d| format!("{d:>8.4}")).collect();
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{:width$} {} {:>7.4} {:>8.3} {:>7.3}",
            row.name,
            by_layer.join(""),
            row.mean,
            row.most,
            row.overlap
        );
    }
    text
}
