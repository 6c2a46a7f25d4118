//! `certkv calibrate --spherical`: codebooks of a model's keys, and what they are worth beside others.
use super::calibrate::{Options, input, row, show, text};
use crate::{
    calibrate::{self, BLOCK, Coding, Drift, Pair, Reading, Way},
    error::CliError,
    model::Llama,
    output::{print, write_bytes},
    progress::Bar,
};
use certkv_codec::{spherical::Tier, turboquant::Radius};
use certkv_control::{
    Calibration,
    calibration::{Heads, Meter, Rule, Source},
    spherical::{Codebooks, Gather, Objective, Training},
};
use certkv_core::hash::hash64;
use serde_json::{Value, json};
use std::{
    io::Write,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

/// Tokens of the held-out text, or what was read if that is less.
const HELD: usize = Reading::TOKENS;

fn training(o: &Options, objective: Objective) -> Training {
    let plain = Training::new(o.common.seed.unwrap_or(1));
    Training { objective, rounds: o.rounds.unwrap_or(plain.rounds), ..plain }
}

/// What the model shows of the text that is read.
struct Read {
    heads: Heads,
    gather: Gather,
    source: Source,
    /// Bytes of the text that were read.
    bytes: usize,
}

fn read(o: &Options, folder: &Path, model: &Llama, path: &Path, beside: Option<&mut Meter>) -> Result<Read, CliError> {
    let heads = calibrate::heads(model.config(), o.pairing);
    let found = text(path, o.skip)?;
    let sequences = o.sequences(model, &found)?;
    let mut gather = Gather::new(calibrate::key_heads(&heads)).map_err(input)?;
    let mut bar = o.common.progress().bar("keys", sequences.iter().map(|s| s.tokens.len() as u64).sum());
    let done = |tokens| bar.advance(tokens as u64);
    match beside {
        None => calibrate::watch(model, &sequences, &mut gather, done)?,
        Some(meter) => calibrate::watch(model, &sequences, &mut Pair(&mut gather, meter), done)?,
    }
    bar.finish();
    let (text, tokens) = (calibrate::text_digest(sequences.iter().map(|s| s.text)), gather.tokens());
    let bytes = sequences.iter().map(|s| s.text.len()).sum();
    let source = Source { model: calibrate::model_digest(folder)?, text, tokens };
    Ok(Read { heads, gather, source, bytes })
}

impl Read {
    fn train(&self, o: &Options, tier: Tier, objective: Objective) -> Result<Codebooks, CliError> {
        let (keys, training) = (calibrate::key_heads(&self.heads), training(o, objective));
        let label = format!("{tier} by {objective}");
        let bar: Mutex<Bar> = o.common.progress().bar(&label, (keys.layers * keys.kv_heads) as u64).into();
        let step = || bar.lock().unwrap_or_else(PoisonError::into_inner).advance(1);
        let books = calibrate::train(&self.gather, &keys, tier, &training, step).map_err(input)?;
        bar.into_inner().unwrap_or_else(PoisonError::into_inner).finish();
        Codebooks::new(keys, self.source, tier, training, books).map_err(input)
    }
}

/// Trains on the text that is named, and writes the file.
pub(super) fn calibrate(o: &Options, folder: &Path, tier: Tier, out: &mut dyn Write) -> Result<(), CliError> {
    let (Some(path), Some(to)) = (&o.text, &o.out) else {
        return Err(CliError::Usage("calibrate: --text FILE and --out FILE are needed".into()));
    };
    let model = Llama::load(folder)?;
    let found = read(o, folder, &model, path, None)?.train(o, tier, o.objective.unwrap_or(Objective::Energy))?;
    write_bytes(to, &found.to_bytes())?;
    if o.common.json { show(out, &value(&found)) } else { print(out, &calibrate::codebook_summary(&found)) }
}

fn value(c: &Codebooks) -> Value {
    let heads = c.heads();
    let losses = |layer: usize| {
        (0..heads.kv_heads).filter_map(|head| Some(c.head(layer, head)?.loss.clone())).collect::<Vec<_>>()
    };
    json!({
        "tier": c.tier().name(), "tokens": c.source().tokens, "objective": c.training().objective.name(),
        "losses": (0..heads.layers).map(losses).collect::<Vec<_>>()
    })
}

/// Measures trained and random directions of `tiers` on held-out text, beside the narrowest rotated codes.
pub(super) fn evidence(o: &Options, folder: &Path, tiers: &[Tier], out: &mut dyn Write) -> Result<(), CliError> {
    let path = o.text_path()?;
    let model = Llama::load(folder)?;
    let mut meter = Meter::new(calibrate::heads(model.config(), o.pairing)).map_err(input)?;
    let found = read(o, folder, &model, &path, Some(&mut meter))?;
    let tokens = found.source.tokens as usize;
    let held = o.held_out(&model, &path, found.bytes, tokens.min(HELD))?;
    let rows = o.capture(&model, found.heads, &held)?;

    let mut ways = rotated(&found, meter)?;
    for &tier in tiers {
        let (dim, seed) = (found.heads.head_dim, training(o, Objective::Energy).seed);
        let random: Words = Box::new(move |layer: usize, head: usize| {
            calibrate::random_words(tier, dim, hash64(&[seed, layer as u64, head as u64]))
        });
        let way = |name: &str, radius, words: Words| {
            calibrate::spherical_way(format!("spherical {tier} {name}"), tier, radius, BLOCK, words)
        };
        ways.push(way("random", Radius::LeastSquares, random));
        for objective in Objective::ALL.into_iter().filter(|x| o.objective.is_none_or(|only| only == *x)) {
            let trained = Arc::new(found.train(o, tier, objective)?);
            let words = |books: Arc<Codebooks>| -> Words {
                Box::new(move |layer, head| books.head(layer, head).map_or_else(Vec::new, |head| head.words.clone()))
            };
            if objective == Objective::Cosine {
                ways.push(way("cosine, norm", Radius::Norm, words(trained.clone())));
            }
            ways.push(way(objective.name(), Radius::LeastSquares, words(trained)));
        }
    }
    let mut bar = o.common.progress().bar("logits", (found.heads.layers * found.heads.kv_heads) as u64);
    let measured = calibrate::measure(&rows, &ways, || bar.advance(1)).map_err(input)?;
    bar.finish();
    let drifts = if o.drift { drift(o, &model, &held, &ways)? } else { Vec::new() };
    if o.common.json {
        let drifts: Vec<Value> = drifts.iter().map(drift_row).collect();
        let rows: Vec<Value> = measured.iter().map(row).collect();
        return show(out, &json!({"tokens": tokens, "rows": rows, "drift": drifts}));
    }
    let said = format!("spherical keys in blocks of {BLOCK}, {tokens} tokens read, {} held out\n", held.len());
    print(out, &(said + &calibrate::evidence_table(&measured) + &calibrate::drift_table(&drifts)))
}

fn drift(o: &Options, model: &Llama, held: &[u32], ways: &[Way<'_>]) -> Result<Vec<Drift>, CliError> {
    let runs = 1 + ways.len() * (model.config().layers + 1);
    let bar: Mutex<Bar> = o.common.progress().bar("drift", runs as u64).into();
    let step = || bar.lock().unwrap_or_else(PoisonError::into_inner).advance(1);
    let found = calibrate::drift(model, held, BLOCK, ways, step).map_err(CliError::Input)?;
    bar.into_inner().unwrap_or_else(PoisonError::into_inner).finish();
    Ok(found)
}

fn drift_row(d: &Drift) -> Value {
    json!({"coding": d.name, "layers": d.layers, "mean": d.mean, "most": d.most, "overlap": d.overlap})
}

/// Directions by layer and key head.
type Words = Box<dyn Fn(usize, usize) -> Vec<f32> + Sync>;

/// One bit of a channel, as it is and in the best metric, and a quarter more of Block-GTQ: nothing rotated takes fewer bytes.
fn rotated(found: &Read, meter: Meter) -> Result<Vec<Way<'static>>, CliError> {
    let (seen, _) = meter.finish().map_err(input)?;
    let pairs = found.heads.pairs();
    let one = Rule { least: 1, most: 1, ..Rule::published(pairs) };
    let metric = Rule { centred: true, balanced: true, ..one };
    let mixed = Rule { least: 1, most: 2, ..Rule::new(5 * pairs / 4) };
    let calibration = Calibration::choose(found.heads, found.source, one, seen).map_err(input)?;
    let codings = [one, metric, mixed].map(|rule| Coding { rule, radius: Radius::LeastSquares });
    let mut ways = calibrate::ways(&calibration, &codings).map_err(input)?;
    for (way, coding) in ways.iter_mut().zip(codings) {
        way.name += &format!(", {} bits", coding.rule.budget as f64 / pairs as f64);
    }
    Ok(ways)
}
