//! `certkv calibrate --scales`: magnitudes of a model's keys and values, from which formats with one scale per block can take it.
use super::calibrate::{Options, input, show, text};
use crate::{
    calibrate::{self, Rows},
    error::CliError,
    model::{AttentionError, Llama},
    output::{print, write_bytes},
};
use certkv_control::calibration::Source;
use certkv_control::scales::{ScaleHeads, ScaleMeter, Scales};
use serde_json::json;
use std::{io::Write, path::Path};

impl Rows for ScaleMeter {
    fn see(&mut self, layer: usize, _: &[f32], k: &[f32], v: &[f32]) -> Result<(), AttentionError> {
        let width = self.heads().kv_heads * self.heads().head_dim;
        let mut rows = k.chunks_exact(width).zip(v.chunks_exact(width));
        rows.try_for_each(|(k, v)| self.row(layer, k, v)).map_err(|e| AttentionError::Cache(Box::new(e)))
    }
}

/// Reads the text that is named, and writes the file.
pub(super) fn calibrate(o: &Options, folder: &Path, percentile: f64, out: &mut dyn Write) -> Result<(), CliError> {
    let (Some(path), Some(to)) = (&o.text, &o.out) else {
        return Err(CliError::Usage("calibrate: --text FILE and --out FILE are needed".into()));
    };
    let model = Llama::load(folder)?;
    let found = text(path, o.skip)?;
    let sequences = o.sequences(&model, &found)?;
    let text = calibrate::text_digest(sequences.iter().map(|s| s.text));
    let source = Source { model: calibrate::model_digest(folder)?, text, tokens: 0 };
    let c = model.config();
    let heads = ScaleHeads { layers: c.layers, kv_heads: c.kv_heads, head_dim: c.head_dim };
    let mut meter = ScaleMeter::new(heads, source).map_err(input)?;
    let mut bar = o.common.progress().bar("keys and values", sequences.iter().map(|s| s.tokens.len() as u64).sum());
    calibrate::watch(&model, &sequences, &mut meter, |tokens| bar.advance(tokens as u64))?;
    bar.finish();
    let scales = Scales::choose(&meter, percentile).map_err(input)?;
    write_bytes(to, &scales.to_bytes())?;
    say(o.common.json, &scales, out)
}

/// The largest magnitude of every head: a file says them by piece.
fn say(as_json: bool, scales: &Scales, out: &mut dyn Write) -> Result<(), CliError> {
    let heads = scales.heads();
    let most = |side: &[f32]| side.iter().fold(0.0f32, |m, x| m.max(*x));
    let all = (0..heads.layers).flat_map(|layer| (0..heads.kv_heads).map(move |head| (layer, head)));
    let rows = all.filter_map(|(layer, head)| scales.head(layer, head).map(|(k, v)| (layer, head, most(k), most(v))));
    if as_json {
        let row = |(layer, head, keys, values)| json!({"layer": layer, "head": head, "keys": keys, "values": values});
        let value = json!({
            "tokens": scales.source().tokens, "percentile": scales.percentile(), "heads": rows.map(row).collect::<Vec<_>>()
        });
        return show(out, &value);
    }
    let mut said = format!(
        "{} tokens; {}% of the elements\nlayer head     keys   values\n",
        scales.source().tokens,
        scales.percentile()
    );
    for (layer, head, keys, values) in rows {
        said += &format!("{layer:>5} {head:>4} {keys:>8.3} {values:>8.3}\n");
    }
    print(out, &said)
}
