//! `certkv calibrate`: energies and Block-GTQ schemes of a model, their distances, and what they are worth. What `--spherical` asks
//! for is in `codebooks.rs`.
use super::{
    args::{Common, bounded, number},
    codebooks, help, scales,
};
use crate::{
    assets,
    calibrate::{self, Captured, Coding, Measured, Reading, Sequence},
    error::CliError,
    model::Llama,
    output::{print, write_bytes},
};
use certkv_codec::{spherical::Tier, turboquant::Radius};
use certkv_control::{
    Calibration, CalibrationError, Score,
    calibration::{Distance, Heads, Rule, Source},
    spherical::Objective,
};
use certkv_core::{GroupCode, KeyFormat, Pairing, TURBO_BITS};
use serde_json::{Value, json};
use std::{
    io::Write,
    path::{Path, PathBuf},
};

/// The options as given.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) common: Common,
    paths: Vec<PathBuf>,
    compare: bool,
    evidence: bool,
    pub(super) text: Option<PathBuf>,
    pub(super) skip: usize,
    pub(super) tokens: Option<usize>,
    pub(super) context: usize,
    budget: Option<f64>,
    rule: Rule,
    pub(super) pairing: Pairing,
    pub(super) out: Option<PathBuf>,
    held_out: Option<PathBuf>,
    held_skip: usize,
    spherical: Option<Tiers>,
    scales: Option<f64>,
    pub(super) objective: Option<Objective>,
    pub(super) rounds: Option<usize>,
    pub(super) drift: bool,
}

const MOST: usize = 1 << 30;

fn parse(mut parser: lexopt::Parser) -> Result<Option<Options>, CliError> {
    use lexopt::prelude::*;
    let mut o = Options {
        common: Common::default(),
        paths: Vec::new(),
        compare: false,
        evidence: false,
        text: None,
        skip: 0,
        tokens: None,
        context: 4096,
        budget: None,
        rule: Rule::new(0),
        pairing: Pairing::Half,
        out: None,
        held_out: None,
        held_skip: 1 << 16,
        spherical: None,
        scales: None,
        objective: None,
        rounds: None,
        drift: false,
    };
    let mut given = Vec::new();
    while let Some(arg) = parser.next()? {
        let name = match arg {
            Short('h') | Long("help") => return Ok(None),
            Value(path) => {
                o.paths.push(path.into());
                continue;
            }
            Long(name) => name.to_owned(),
            other => return Err(other.unexpected().into()),
        };
        given.push(name.clone());
        let p = &mut parser;
        match name.as_str() {
            "compare" => o.compare = true,
            "evidence" => o.evidence = true,
            "text" => o.text = Some(p.value()?.into()),
            "skip" => o.skip = bounded(p, "--skip", 0, MOST)?,
            "tokens" => o.tokens = Some(bounded(p, "--tokens", 1, MOST)?),
            "context" => o.context = bounded(p, "--context", 16, 1 << 20)?,
            "budget" => o.budget = Some(budget(p)?),
            "score" => o.rule.score = named(p, "--score")?,
            "style" => o.pairing = named(p, "--style")?,
            "centre" => o.rule.centred = yes_or_no(p, "--centre")?,
            "balance" => o.rule.balanced = yes_or_no(p, "--balance")?,
            "published" => o.rule = Rule { least: o.rule.least, most: o.rule.most, ..Rule::published(0) },
            "least" => o.rule.least = bounded(p, "--least", 1, 8)? as u8,
            "most" => o.rule.most = bounded(p, "--most", 1, 8)? as u8,
            "out" => o.out = Some(p.value()?.into()),
            "held-out" => o.held_out = Some(p.value()?.into()),
            "held-skip" => o.held_skip = bounded(p, "--held-skip", 0, MOST)?,
            "spherical" => o.spherical = Some(tiers(p)?),
            "scales" => o.scales = Some(percentile(p)?),
            "objective" => o.objective = Some(named(p, "--objective")?),
            "drift" => o.drift = true,
            "rounds" => o.rounds = Some(bounded(p, "--rounds", 0, 1 << 16)?),
            other => {
                if !["assets", "json", "threads", "quiet", "seed"].contains(&other) || !o.common.take(other, p)? {
                    return Err(CliError::Usage(format!("calibrate: there is no option --{other}")));
                }
            }
        }
    }
    // An option without effect is a misunderstanding.
    if o.scales.is_some() {
        let known = |name: &&String| OF_SCALES.contains(&name.as_str());
        return match given.iter().find(|name| !known(name)) {
            Some(name) => Err(CliError::Usage(format!("calibrate: --{name} is not for --scales"))),
            None => Ok(Some(o)),
        };
    }
    let (idle, why) = match o.spherical {
        Some(_) => (&OF_SCHEMES[..], "is not for"),
        None => (&OF_CODEBOOKS[..], "needs"),
    };
    match given.iter().find(|name| idle.contains(&name.as_str())) {
        Some(name) => Err(CliError::Usage(format!("calibrate: --{name} {why} --spherical"))),
        None => Ok(Some(o)),
    }
}

/// Options of `--scales`.
const OF_SCALES: [&str; 10] =
    ["scales", "text", "skip", "tokens", "context", "out", "assets", "json", "threads", "quiet"];

/// Options of Block-GTQ's schemes, and of spherical codebooks.
const OF_SCHEMES: [&str; 9] =
    ["compare", "budget", "score", "style", "centre", "balance", "published", "least", "most"];
const OF_CODEBOOKS: [&str; 4] = ["objective", "rounds", "seed", "drift"];

/// What `--spherical` names.
#[derive(Debug, Clone, Copy)]
enum Tiers {
    One(Tier),
    All,
}

fn tiers(parser: &mut lexopt::Parser) -> Result<Tiers, CliError> {
    use lexopt::ValueExt;
    let name = parser.value()?.string()?;
    if name == "all" {
        return Ok(Tiers::All);
    }
    name.parse()
        .map(Tiers::One)
        .map_err(|e| CliError::Usage(format!("--spherical: `{name}`: {e}, and `all` with --evidence")))
}

fn budget(parser: &mut lexopt::Parser) -> Result<f64, CliError> {
    let bits: f64 = number(parser, "--budget")?;
    if (1.0..=8.0).contains(&bits) { Ok(bits) } else { Err(CliError::Usage(format!("--budget: {bits} is not 1 to 8"))) }
}

fn percentile(parser: &mut lexopt::Parser) -> Result<f64, CliError> {
    let share: f64 = number(parser, "--scales")?;
    if share > 0.0 && share <= 100.0 {
        Ok(share)
    } else {
        Err(CliError::Usage(format!("--scales: {share} is no percentile above 0 and up to 100")))
    }
}

fn named<T: std::str::FromStr<Err: std::fmt::Display>>(p: &mut lexopt::Parser, option: &str) -> Result<T, CliError> {
    use lexopt::ValueExt;
    let name = p.value()?.string()?;
    name.parse().map_err(|e| CliError::Usage(format!("{option}: `{name}`: {e}")))
}

fn yes_or_no(parser: &mut lexopt::Parser, option: &str) -> Result<bool, CliError> {
    use lexopt::ValueExt;
    match parser.value()?.string()?.as_str() {
        "yes" => Ok(true),
        "no" => Ok(false),
        other => Err(CliError::Usage(format!("{option}: `{other}` is neither `yes` nor `no`"))),
    }
}

/// Calibrates, compares or measures.
///
/// # Errors
/// [`CliError`] for bad options, a model, text or calibration that is refused.
pub fn run(parser: lexopt::Parser, out: &mut dyn Write) -> Result<(), CliError> {
    let Some(o) = parse(parser)? else { return print(out, help::CALIBRATE) };
    o.common.start_threads();
    match (o.compare, o.evidence, o.paths.as_slice()) {
        (true, false, [a, b]) => compare(&o, a, b, out),
        (true, ..) => Err(CliError::Usage("calibrate: --compare takes two calibrations and nothing else".into())),
        (false, true, _) if o.out.is_some() => {
            Err(CliError::Usage("calibrate: --evidence writes no calibration; leave --out away".into()))
        }
        (false, false, _) if o.drift => Err(CliError::Usage("calibrate: --drift is a part of --evidence".into())),
        (false, true, [model]) => match o.spherical {
            None => evidence(&o, model, out),
            Some(Tiers::All) => codebooks::evidence(&o, model, &Tier::ALL, out),
            Some(Tiers::One(tier)) => codebooks::evidence(&o, model, &[tier], out),
        },
        (false, false, [model]) if let Some(percentile) = o.scales => scales::calibrate(&o, model, percentile, out),
        (false, false, [model]) => match o.spherical {
            None => calibrate(&o, model, out),
            Some(Tiers::All) => Err(CliError::Usage("calibrate: a file holds one tier: b1, b2 or b3".into())),
            Some(Tiers::One(tier)) => codebooks::calibrate(&o, model, tier, out),
        },
        (false, ..) => Err(CliError::Usage("calibrate: one model folder is needed".into())),
    }
}

pub(super) fn input(e: impl std::error::Error + Send + Sync + 'static) -> CliError {
    CliError::Input(Box::new(e))
}

fn read(path: &Path) -> Result<Vec<u8>, CliError> {
    std::fs::read(path).map_err(|e| CliError::input(format!("cannot read {}: {e}", path.display())))
}

/// The text behind its first `skip` bytes; nothing of a shorter one.
pub(super) fn text(path: &Path, skip: usize) -> Result<Vec<u8>, CliError> {
    let mut text = read(path)?;
    text.drain(..skip.min(text.len()));
    Ok(text)
}

impl Options {
    fn rule(&self, heads: &Heads, bits: f64) -> Rule {
        Rule { budget: (bits * heads.pairs() as f64).round() as usize, ..self.rule }
    }
}

/// Runs the model over the text; how many bytes of it, beside.
fn observe(
    o: &Options,
    model: &Llama,
    folder: &Path,
    text: &[u8],
    bits: f64,
) -> Result<(Calibration, usize), CliError> {
    let heads = calibrate::heads(model.config(), o.pairing);
    o.rule(&heads, bits).check(&heads).map_err(input)?;
    let sequences = o.sequences(model, text)?;
    let total: usize = sequences.iter().map(|s| s.tokens.len()).sum();
    let mut bar = o.common.progress().bar("calibrate", total as u64);
    let (seen, tokens) = calibrate::observe(model, heads, &sequences, |tokens| bar.advance(tokens as u64))?;
    bar.finish();
    let digest = calibrate::text_digest(sequences.iter().map(|s| s.text));
    let source = Source { model: calibrate::model_digest(folder)?, text: digest, tokens };
    let found = Calibration::choose(heads, source, o.rule(&heads, bits), seen).map_err(input)?;
    Ok((found, sequences.iter().map(|s| s.text.len()).sum()))
}

fn calibrate(o: &Options, folder: &Path, out: &mut dyn Write) -> Result<(), CliError> {
    let (Some(path), Some(to)) = (&o.text, &o.out) else {
        return Err(CliError::Usage("calibrate: --text FILE and --out FILE are needed".into()));
    };
    let model = Llama::load(folder)?;
    let (found, _) = observe(o, &model, folder, &text(path, o.skip)?, o.budget.unwrap_or(3.0))?;
    write_bytes(to, &found.to_bytes())?;
    if o.common.json {
        return show(out, &value(&found));
    }
    print(out, &calibrate::summary(&found).map_err(input)?)
}

fn compare(o: &Options, a: &Path, b: &Path, out: &mut dyn Write) -> Result<(), CliError> {
    let load = |path: &Path| {
        let refused = |e: CalibrationError| CliError::input(format!("{}: {e}", path.display()));
        Calibration::from_bytes(&read(path)?).map_err(refused)
    };
    let (a, b) = (load(a)?, load(b)?);
    let layers = a.distances(&b).map_err(input)?;
    if o.common.json {
        let row = |d: &Distance| json!({"hamming": d.hamming(), "high_bits": d.high_bits(), "regret": d.regret()});
        return show(out, &Value::Array(layers.iter().map(row).collect()));
    }
    let same = |x: bool| if x { "the same" } else { "another" };
    let (s, t) = (a.source(), b.source());
    let said = format!(
        "{} model, {} text, {} and {} tokens\n",
        same(s.model == t.model),
        same(s.text == t.text),
        s.tokens,
        t.tokens
    );
    print(out, &(said + &calibrate::compared(&layers)))
}

impl Options {
    /// Where the text to read is: the bundled one if none is named.
    pub(super) fn text_path(&self) -> Result<PathBuf, CliError> {
        match &self.text {
            Some(path) => Ok(path.clone()),
            None => Ok(assets::locate(self.common.assets.as_deref())?.join("eval/text.bin")),
        }
    }

    /// What is read of a text, in sequences.
    pub(super) fn sequences<'a>(&self, model: &Llama, text: &'a [u8]) -> Result<Vec<Sequence<'a>>, CliError> {
        let reading = Reading { text, tokens: self.tokens, context: self.context };
        reading.spell(model.tokens())?.sequences(model.config().positions).map_err(input)
    }

    /// The held-out text in `tokens` tokens, of which none may be among the `read` bytes read of `path`.
    pub(super) fn held_out(
        &self,
        model: &Llama,
        path: &Path,
        read: usize,
        tokens: usize,
    ) -> Result<Vec<u32>, CliError> {
        let held_path = self.held_out.as_deref().unwrap_or(path);
        let held = text(held_path, self.held_skip)?;
        let (positions, tokens) = (model.config().positions, tokens.min(model.config().positions));
        let reading = Reading { text: &held, tokens: Some(tokens), context: positions };
        let held = reading.spell(model.tokens())?.sequences(positions).map_err(input)?.swap_remove(0);
        if held_path == path && self.held_skip < self.skip + read && self.skip < self.held_skip + held.text.len() {
            return Err(CliError::Usage("calibrate: --held-skip leaves text that the calibration has read".into()));
        }
        Ok(held.tokens)
    }

    /// Queries and keys of a held-out text.
    pub(super) fn capture(&self, model: &Llama, heads: Heads, held: &[u32]) -> Result<Captured, CliError> {
        let mut bar = self.common.progress().bar("held-out text", held.len() as u64);
        let rows = calibrate::capture(model, heads, held, |tokens| bar.advance(tokens as u64))?;
        bar.finish();
        Ok(rows)
    }
}

fn evidence(o: &Options, folder: &Path, out: &mut dyn Write) -> Result<(), CliError> {
    let path = o.text_path()?;
    let model = Llama::load(folder)?;
    let (found, read) = observe(o, &model, folder, &text(&path, o.skip)?, o.budget.unwrap_or(3.0))?;
    let tokens = found.source().tokens as usize;
    let held = o.held_out(&model, &path, read, tokens)?;
    let rows = o.capture(&model, *found.heads(), &held)?;
    let (mut said, mut values) = (String::new(), Vec::new());
    for bits in o.budget.map_or(vec![2.0, 3.0], |bits| vec![bits]) {
        let measured = measure(o, &rows, &found, bits)?;
        values.push(json!({"bits": bits, "rows": measured.iter().map(row).collect::<Vec<_>>()}));
        said += &format!("{bits} bits of a channel, {tokens} tokens read, {} held out\n", held.len());
        said += &calibrate::evidence_table(&measured);
        said.push('\n');
    }
    if o.common.json { show(out, &Value::Array(values)) } else { print(out, &said) }
}

/// TurboQuant first; then the published rule, and every score in every metric.
fn measure(o: &Options, rows: &Captured, found: &Calibration, bits: f64) -> Result<Vec<Measured>, CliError> {
    let metrics = [(false, false), (true, false), (false, true), (true, true)];
    let of = |score, (centred, balanced)| Rule { score, centred, balanced, ..o.rule(found.heads(), bits) };
    let coding = |rule, radius| Coding { rule, radius };
    let mut codings = Vec::new();
    if bits.fract() == 0.0 {
        let uniform = |metric| Rule { least: bits as u8, most: bits as u8, ..of(Score::Average, metric) };
        codings.extend(metrics.map(|metric| coding(uniform(metric), Radius::LeastSquares)));
        codings.push(coding(uniform(metrics[0]), Radius::Norm));
    }
    codings.push(coding(of(Score::Average, metrics[0]), Radius::Norm));
    for metric in metrics {
        codings.extend(certkv_control::score::SCORES.map(|score| coding(of(score, metric), Radius::LeastSquares)));
    }
    let heads = found.heads();
    let mut bar = o.common.progress().bar(&format!("{bits} bits"), (heads.layers * heads.kv_heads) as u64);
    let mut ways = calibrate::ways(found, &codings).map_err(input)?;
    for key in stored(bits) {
        ways.push(calibrate::stored(found, key).map_err(input)?);
    }
    let measured = calibrate::measure(rows, &ways, || bar.advance(1)).map_err(input)?;
    bar.finish();
    Ok(measured)
}

/// Formats of caches with as many bits.
fn stored(bits: f64) -> Vec<KeyFormat> {
    let (mut keys, halves) = (Vec::new(), 2.0 * bits);
    if bits.fract() == 0.0 && (1.0..=f64::from(TURBO_BITS)).contains(&bits) {
        keys.extend([false, true].map(|calibrated| KeyFormat::Turbo { bits: bits as u8, calibrated }));
    }
    if halves.fract() == 0.0 && (1.0..=f64::from(TURBO_BITS)).contains(&bits) {
        keys.push(KeyFormat::Gtq { code: GroupCode::Widths { halves: halves as u8 } });
    }
    keys
}

pub(super) fn row(m: &Measured) -> Value {
    json!({"coding": m.name, "bytes": m.bytes, "error": m.error, "divergence": m.divergence, "overlap": m.overlap})
}

fn value(c: &Calibration) -> Value {
    let heads = c.heads();
    let bits = |layer: usize| {
        (0..heads.kv_heads).filter_map(|head| Some(c.head(layer, head)?.1.bits.clone())).collect::<Vec<_>>()
    };
    json!({"tokens": c.source().tokens, "score": c.rule().score.name(), "bits": (0..heads.layers).map(bits).collect::<Vec<_>>()})
}

pub(super) fn show(out: &mut dyn Write, value: &Value) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(value).map_err(|e| CliError::Internal(Box::new(e)))?;
    print(out, &(text + "\n"))
}
