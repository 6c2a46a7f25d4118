//! `certkv inspect WHAT`: a model folder, a format, a packed page, a file of vectors, a calibration, codebooks, or recorded curves.
use super::{args::bounded, help};
use crate::{
    calibrate,
    error::CliError,
    model::{Config, weights::Weights},
    output::print,
    report::{
        sweep::{self, Sweep},
        table::TextTable,
    },
};
use certkv::seal::{Seal, SealError};
use certkv_control::{
    Calibration, CalibrationError, calibration,
    spherical::{self, Codebooks},
};
use certkv_core::{Format, Geometry, RecordLayout};
use certkv_testkit::cgv::Vectors;
use serde_json::{Value, json};
use std::{io::Write, path::Path};

/// Shows what something holds.
///
/// # Errors
/// [`CliError::Input`] when it is none of the known things, or damaged.
pub fn run(mut parser: lexopt::Parser, out: &mut dyn Write) -> Result<(), CliError> {
    use lexopt::prelude::*;
    let (mut what, mut as_json, mut head_dim) = (None, false, 128);
    while let Some(arg) = parser.next()? {
        match arg {
            Short('h') | Long("help") => return print(out, help::INSPECT),
            Long("json") => as_json = true,
            Long("head-dim") => head_dim = bounded(&mut parser, "--head-dim", 1, 1 << 16)?,
            Value(name) if what.is_none() => what = Some(name),
            other => return Err(other.unexpected().into()),
        }
    }
    let what = what.ok_or_else(|| CliError::Usage("inspect: name a folder, a format or a file".into()))?;
    let path = Path::new(&what);
    let (text, value) = if path.is_dir() {
        model(path)?
    } else if path.is_file() && path.extension().is_some_and(|e| e == "json") {
        curves(path)?
    } else if path.is_file() {
        vectors(path)?
    } else if let Ok(format) = what.to_string_lossy().parse::<Format>() {
        layout(format, head_dim)?
    } else {
        let name = path.display();
        return Err(CliError::input(format!("inspect: `{name}` is neither a folder, nor a file, nor a format")));
    };
    if as_json {
        let text = serde_json::to_string_pretty(&value).map_err(|e| CliError::Internal(Box::new(e)))?;
        print(out, &(text + "\n"))
    } else {
        print(out, &text)
    }
}

fn model(folder: &Path) -> Result<(String, Value), CliError> {
    let c = Config::read(folder)?;
    let weights = Weights::read(folder)?;
    let mut table = TextTable::new(&["tensor", "type", "shape", "largest magnitude"]);
    let (mut parameters, mut tensors) = (0, Vec::new());
    for (name, w) in weights.iter() {
        parameters += w.data.len();
        let largest = w.data.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        table.row(vec![name.into(), w.stored.name().into(), format!("{:?}", w.shape), format!("{largest:.4}")]);
        tensors.push(json!({"name": name, "type": w.stored.name(), "shape": w.shape, "largest": largest}));
    }
    let turned = if c.rotary == c.head_dim { String::new() } else { format!(", {} of them turned", c.rotary) };
    let text = format!(
        "{} layers, hidden {}, {} query and {} key/value heads of {} channels{turned}, vocabulary {}, {} positions\n\
         {parameters} parameters; a token takes {} bytes in a half-precision cache\n\n{}",
        c.layers,
        c.hidden,
        c.heads,
        c.kv_heads,
        c.head_dim,
        c.vocabulary,
        c.positions,
        c.dense_bytes_per_token(),
        table.render()
    );
    let value = json!({
        "layers": c.layers, "hidden": c.hidden, "heads": c.heads, "kv_heads": c.kv_heads, "head_dim": c.head_dim,
        "rotary": c.rotary, "vocabulary": c.vocabulary, "positions": c.positions, "parameters": parameters,
        "dense_bytes_per_token": c.dense_bytes_per_token(), "tensors": tensors
    });
    Ok((text, value))
}

fn layout(format: Format, head_dim: usize) -> Result<(String, Value), CliError> {
    let geometry = Geometry::new(1, 1, 1, head_dim).map_err(|e| CliError::Input(Box::new(e)))?;
    let layout = RecordLayout::new(&geometry, format)?;
    let dense = 2 * 2 * head_dim;
    let mut table = TextTable::new(&["part of a record", "from", "bytes", "bytes a token"]);
    let mut parts = vec![
        ("key codes", &layout.key_codes),
        ("key scales", &layout.key_scales),
        ("value codes", &layout.value_codes),
        ("value scales", &layout.value_scales),
        ("error summary", &layout.summary),
    ];
    if !format.refine.is_none() {
        parts.extend([("key residuals", &layout.key_residuals), ("value residuals", &layout.value_residuals)]);
    }
    let per_token = |bytes: usize| bytes as f64 / layout.tokens() as f64;
    for (name, range) in &parts {
        let cells = [range.start.to_string(), range.len().to_string(), format!("{:.2}", per_token(range.len()))];
        table.row(std::iter::once((*name).to_owned()).chain(cells).collect());
    }
    let padding = layout.bytes.saturating_sub(layout.net_bytes());
    table.row(vec!["padding".into(), String::new(), padding.to_string(), format!("{:.2}", per_token(padding))]);
    let share = per_token(layout.bytes) / dense as f64;
    let text = format!(
        "{format}: {} tokens of one key/value head of {head_dim} channels in {} bytes; {:.2} bytes a token, {share:.3} of dense\n\n{}",
        layout.tokens(),
        layout.bytes,
        per_token(layout.bytes),
        table.render()
    );
    let sections: Vec<Value> =
        parts.iter().map(|(name, r)| json!({"name": name, "from": r.start, "bytes": r.len()})).collect();
    let value = json!({
        "format": format.to_string(), "head_dim": head_dim, "tokens": layout.tokens(), "bytes": layout.bytes,
        "net_bytes": layout.net_bytes(), "of_dense": share, "sections": sections
    });
    Ok((text, value))
}

/// A packed page as the engine hands it out; its digest is checked.
fn page(bytes: &[u8]) -> Result<(String, Value), SealError> {
    let seal = Seal::read(bytes)?;
    let mut table = TextTable::new(&["packed page", ""]);
    let fields = [
        ("layer", u64::from(seal.layer)),
        ("block", u64::from(seal.block)),
        ("tokens per block", u64::from(seal.tokens)),
        ("channels per head", u64::from(seal.dim)),
        ("bytes per record", u64::from(seal.record_bytes)),
        ("bytes", bytes.len() as u64),
    ];
    for (name, number) in fields {
        table.row(vec![name.into(), number.to_string()]);
    }
    let digest = format!("{:#018x}", seal.digest);
    table.row(vec!["digest, checked".into(), digest.clone()]);
    let value = json!({
        "layer": seal.layer, "block": seal.block, "tokens": seal.tokens, "head_dim": seal.dim,
        "record_bytes": seal.record_bytes, "bytes": bytes.len(), "digest": digest
    });
    Ok((table.render(), value))
}

fn hex(digest: &[u8; 32]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a calibration chose, and the name that caches made with it go by.
fn calibrated(bytes: &[u8]) -> Result<(String, Value), CalibrationError> {
    let read = Calibration::from_bytes(bytes)?;
    let (heads, source, rule) = (read.heads(), read.source(), read.rule());
    let (name, model, text) = (hex(&certkv::calibration_digest(&read)), hex(&source.model), hex(&source.text));
    let said = format!("calibration {name}\nof model {model}\nand text {text}\n{}", calibrate::summary(&read)?);
    let value = json!({
        "digest": name, "model": model, "text": text, "tokens": source.tokens, "layers": heads.layers,
        "q_heads": heads.q_heads, "kv_heads": heads.kv_heads, "head_dim": heads.head_dim, "rotary": heads.rotary,
        "pairing": heads.pairing.to_string(), "bits": rule.budget as f64 / heads.pairs() as f64,
        "score": rule.score.name(), "centred": rule.centred, "balanced": rule.balanced
    });
    Ok((said, value))
}

fn codebooks(bytes: &[u8]) -> Result<(String, Value), CalibrationError> {
    let read = Codebooks::from_bytes(bytes)?;
    let (heads, source, training) = (read.heads(), read.source(), read.training());
    let (model, text) = (hex(&source.model), hex(&source.text));
    let said = format!("codebooks of model {model}\nand text {text}\n{}", calibrate::codebook_summary(&read));
    let value = json!({
        "tier": read.tier().to_string(), "model": model, "text": text, "tokens": source.tokens, "layers": heads.layers,
        "kv_heads": heads.kv_heads, "head_dim": heads.head_dim, "objective": training.objective.name(),
        "rounds": training.rounds, "seed": training.seed
    });
    Ok((said, value))
}

fn curves(path: &Path) -> Result<(String, Value), CliError> {
    let refuse = |e: &dyn std::error::Error| CliError::input(format!("inspect: {}: {e}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| refuse(&e))?;
    let sweep = Sweep::parse(&text).map_err(|e| refuse(&e))?;
    let value = serde_json::to_value(&sweep).map_err(|e| CliError::Internal(Box::new(e)))?;
    Ok((sweep::table::render(&sweep), value))
}

fn vectors(path: &Path) -> Result<(String, Value), CliError> {
    let refuse = |e: String| CliError::input(format!("inspect: {}: {e}", path.display()));
    let bytes = std::fs::read(path).map_err(|e| refuse(e.to_string()))?;
    if bytes.starts_with(b"CERTKVP") {
        return page(&bytes).map_err(|e| refuse(e.to_string()));
    }
    if bytes.starts_with(&calibration::MAGIC) {
        return calibrated(&bytes).map_err(|e| refuse(e.to_string()));
    }
    if bytes.starts_with(&spherical::MAGIC) {
        return codebooks(&bytes).map_err(|e| refuse(e.to_string()));
    }
    let vectors = Vectors::parse(&bytes).map_err(|e| refuse(e.to_string()))?;
    let mut table = TextTable::new(&["array", "type", "shape"]);
    let mut arrays = Vec::new();
    for (name, array) in vectors.iter() {
        let element = format!("{:?}", array.element).to_lowercase();
        table.row(vec![name.into(), element.clone(), format!("{:?}", array.shape)]);
        arrays.push(json!({"name": name, "type": element, "shape": array.shape}));
    }
    Ok((table.render(), json!({"arrays": arrays})))
}
