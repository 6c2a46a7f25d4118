//! `certkv eval`.
use super::{
    args::{Common, Exactly, bounded, calibrations, ends, scales, share, tolerance},
    demo::load_pair,
    finish::finish,
    help, sweep,
};
use crate::{
    assets,
    demo::defaults,
    engine::Calibrations,
    error::CliError,
    eval::{self, Mode, Models, Outcome, PerHead, Plan, Policy, Work, score::Judging},
    gpu::Device,
    model::{Config, Llama, ModelError},
    output::{print, write_file},
    report::{self, data::Setting},
    tasks::{Prompt, Selection, reader, text},
};
use certkv_core::{Format, Geometry};
use std::{
    io::Write,
    path::{Path, PathBuf},
};

/// The options as given.
#[derive(Debug, Default)]
struct Options {
    common: Common,
    model: Option<PathBuf>,
    tasks: Vec<PathBuf>,
    selection: Selection,
    text: Option<PathBuf>,
    context: Option<usize>,
    scored: Option<usize>,
    windows: Option<usize>,
    formats: Vec<Format>,
    tolerances: Vec<f64>,
    policies: Vec<String>,
    base: bool,
    twin: bool,
    greedy: bool,
    witness: Option<usize>,
    curves: Option<PathBuf>,
    sweep: Option<PathBuf>,
    quick: bool,
    calibrations: Vec<PathBuf>,
    scales: Option<PathBuf>,
    exactly: Exactly,
    lists: Vec<Vec<Format>>,
    per_head: bool,
    bytes: Option<f64>,
    command: String,
}

const MOST: usize = 1 << 20;

fn parse(mut parser: lexopt::Parser) -> Result<Option<Options>, CliError> {
    use lexopt::prelude::*;
    let command = words(&parser.raw_args()?);
    let mut o = Options { base: true, command, ..Options::default() };
    let mut given = Vec::new();
    while let Some(arg) = parser.next()? {
        let name = match arg {
            Short('h') => return Ok(None),
            Long(name) => name.to_owned(),
            other => return Err(other.unexpected().into()),
        };
        given.push(name.clone());
        match name.as_str() {
            "help" => return Ok(None),
            "model" => o.model = Some(parser.value()?.into()),
            "tasks" => o.tasks.push(parser.value()?.into()),
            "task" => o.selection.tasks.push(parser.value()?.string()?),
            "length" => o.selection.length = Some(bounded(&mut parser, "--length", 1, MOST)?),
            "limit" => o.selection.limit = Some(bounded(&mut parser, "--limit", 1, MOST)?),
            "text" => o.text = Some(parser.value()?.into()),
            "context" => o.context = Some(bounded(&mut parser, "--context", 16, MOST)?),
            "scored" => o.scored = Some(bounded(&mut parser, "--scored", 1, MOST)?),
            "windows" => o.windows = Some(bounded(&mut parser, "--windows", 1, MOST)?),
            "format" => match parser.value()?.string()?.split('+').map(str::parse).collect::<Result<Vec<_>, _>>()? {
                one if one.len() == 1 => o.formats.extend(one),
                list => o.lists.push(list),
            },
            "per-head" => o.per_head = true,
            "bytes" => o.bytes = Some(bounded(&mut parser, "--bytes", 1, MOST)? as f64),
            "tolerance" => o.tolerances.push(tolerance(&mut parser)?),
            "policy" => o.policies.push(parser.value()?.string()?),
            "twin" => o.twin = true,
            "twin-only" => (o.twin, o.base) = (true, false),
            "greedy" => o.greedy = true,
            "witness" => o.witness = Some(bounded(&mut parser, "--witness", 0, MOST)?),
            "curves" => o.curves = Some(parser.value()?.into()),
            "sweep" => o.sweep = Some(parser.value()?.into()),
            "quick" => o.quick = true,
            "calibration" => o.calibrations.push(parser.value()?.into()),
            "rows" => o.exactly.rows = share(&mut parser, "--rows", 0.25)?,
            "protect" => o.exactly.protection = ends(&mut parser, "--protect")?,
            "scales" => o.scales = Some(parser.value()?.into()),
            other => {
                if !o.common.take(other, &mut parser)? {
                    return Err(CliError::Usage(format!("eval: there is no option --{other}")));
                }
            }
        }
    }
    o.selection.seed = o.common.seed;
    // The evidence is what it is; an option without effect is a misunderstanding.
    let of_sweep = ["sweep", "quick", "model", "assets", "seed", "threads", "quiet", "json"];
    match given.iter().find(|name| !of_sweep.contains(&name.as_str())) {
        Some(name) if o.sweep.is_some() => return Err(CliError::Usage(format!("eval: --{name} is not for --sweep"))),
        _ if o.quick && o.sweep.is_none() => return Err(CliError::Usage("eval: --quick needs --sweep".into())),
        _ => {}
    }
    if o.curves.is_some() {
        o.curves()?;
    }
    if o.bytes.is_some() && !o.per_head {
        return Err(CliError::Usage("eval: --bytes is for --per-head".into()));
    }
    if o.per_head && (o.formats.len() < 2 || !o.base || !o.wants("certified")) {
        let why = "eval: --per-head chooses from certified modes of the model in several formats";
        return Err(CliError::Usage(why.into()));
    }
    if o.per_head && o.common.device != Device::Cpu {
        return Err(CliError::Usage("eval: --per-head: on a GPU all KV heads of a layer have one format".into()));
    }
    Ok(Some(o))
}

/// The command line as a shell would take it again.
fn words(args: &lexopt::RawArgs<'_>) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+%@".contains(c);
    let quoted = args.as_slice().iter().map(|a| match a.to_string_lossy() {
        a if !a.is_empty() && a.chars().all(plain) => a.into_owned(),
        a => format!("'{}'", a.replace('\'', r"'\''")),
    });
    ["certkv".to_owned(), "eval".to_owned()].into_iter().chain(quoted).collect::<Vec<_>>().join(" ")
}

impl Options {
    /// What `--curves` runs: the sweep behind the defaults, except for what is asked for otherwise.
    fn curves(&mut self) -> Result<(), CliError> {
        if !self.base || !(self.policies.is_empty() || self.policies.iter().any(|p| p == "certified")) {
            return Err(CliError::Usage("--curves: there are curves of certified modes of the model only".into()));
        }
        if self.policies.is_empty() {
            self.policies.push("certified".into());
        }
        if self.formats.is_empty() && self.lists.is_empty() {
            let all = std::iter::once(defaults::FORMAT).chain(defaults::SWEEP_FORMATS);
            for format in all.map(str::parse) {
                let format: Format = format?;
                if !self.formats.contains(&format) {
                    self.formats.push(format);
                }
            }
        }
        if self.tolerances.is_empty() {
            self.tolerances.extend(defaults::SWEEP_TOLERANCES);
        }
        if self.tasks.is_empty() && self.text.is_none() {
            let file = assets::locate(self.common.assets.as_deref())?.join("eval/tasks_8192.jsonl.gz");
            self.tasks.push(file);
            self.text = Some("bundled".into());
            if self.selection.tasks.is_empty() {
                self.selection.tasks.extend(defaults::SWEEP_TASKS.map(str::to_owned));
            }
        }
        self.selection.limit = self.selection.limit.or(Some(1));
        self.context = self.context.or(Some(8192));
        self.scored = self.scored.or(Some(defaults::SWEEP_SCORED));
        self.windows = self.windows.or(Some(1));
        // The true error takes longer than the steps themselves, and no curve shows it.
        self.witness = self.witness.or(Some(0));
        Ok(())
    }

    /// Those for all heads, and those of lists.
    fn all_formats(&self) -> impl Iterator<Item = &Format> {
        self.formats.iter().chain(self.lists.iter().flatten())
    }

    fn wants(&self, policy: &str) -> bool {
        self.policies.iter().any(|p| p == policy) || (self.policies.is_empty() && policy != "seed000")
    }

    /// Calibrations are of one model, and there if a format needs them.
    fn check_calibration(&self) -> Result<(), CliError> {
        let format = self.all_formats().find(|format| format.key.is_calibrated());
        match (format, self.calibrations.first()) {
            (Some(format), None) => Err(CliError::Usage(format!("eval: {format} needs --calibration FILE"))),
            (None, Some(_)) => {
                Err(CliError::Usage("eval: --calibration without a format that needs it (ctq4, gtq3, s1)".into()))
            }
            (Some(format), Some(_)) if self.twin => {
                Err(CliError::Usage(format!("eval: {format} on the outlier twin, whose calibration no file holds")))
            }
            _ => Ok(()),
        }
    }

    /// Every file is there for a format, and every format has its own.
    fn check_found(&self, found: &Calibrations) -> Result<(), CliError> {
        if let Some(format) = self.all_formats().find(|format| !found.serve(format.key)) {
            return Err(CliError::Usage(match format.key.tier() {
                Some(tier) => format!("eval: {format} needs --calibration FILE with codebooks {tier}"),
                None => format!("eval: {format} needs --calibration FILE with schemes, which codebooks are not"),
            }));
        }
        let tiers = || self.all_formats().map(|format| format.key.tier());
        if let Some(books) = found.codebooks.iter().find(|books| !tiers().any(|tier| tier == Some(books.tier()))) {
            return Err(CliError::Usage(format!("eval: codebooks {} without a format that needs them", books.tier())));
        }
        let schemes = |format: &Format| format.key.is_folded();
        if found.schemes.is_some() && !self.all_formats().any(schemes) {
            return Err(CliError::Usage("eval: schemes of a calibration without a format that needs them".into()));
        }
        Ok(())
    }

    /// Fixed scales are of one model, and there if a format takes them.
    fn check_scales(&self) -> Result<(), CliError> {
        let taken = self.all_formats().any(|f| f.key.page().is_some() || f.value.page().is_some());
        match &self.scales {
            Some(_) if !taken => {
                Err(CliError::Usage("eval: --scales without a format that takes them (p8, e4m3)".into()))
            }
            Some(_) if self.twin => {
                Err(CliError::Usage("eval: --scales on the outlier twin, whose scales no file holds".into()))
            }
            _ => Ok(()),
        }
    }

    fn check_policies(&self) -> Result<(), CliError> {
        let known = ["dense", "packed", "certified", "seed000"];
        match self.policies.iter().find(|p| !known.contains(&p.as_str())) {
            Some(bad) => Err(CliError::Usage(format!("--policy: `{bad}` is none of {}", known.join(", ")))),
            None => Ok(()),
        }
    }

    /// Every policy with every format and tolerance, dense first, for heads of `head_dim` channels.
    fn modes(&self, head_dim: usize) -> Result<Vec<Mode>, CliError> {
        let mut modes = Vec::new();
        for twin in [false, true] {
            if !(if twin { self.twin } else { self.base }) {
                continue;
            }
            modes.push(Mode::dense(twin));
            let default = if twin { defaults::TWIN_FORMAT } else { certkv::default_format(head_dim) };
            let mut formats: Vec<Vec<Format>> = self.formats.iter().map(|format| vec![*format]).collect();
            formats.extend(self.lists.iter().cloned());
            if formats.is_empty() {
                formats.push(vec![default.parse()?]);
            }
            let default = [defaults::TOLERANCE];
            let tolerances = if self.tolerances.is_empty() { &default[..] } else { &self.tolerances };
            for formats in formats {
                let mode = |policy| match formats[..] {
                    [one] => Mode::of(policy, one, twin),
                    _ => Mode::of(policy, formats[0], twin).with_heads(formats.clone()),
                };
                if self.wants("packed") {
                    modes.push(mode(Policy::Packed));
                }
                for &tolerance in tolerances.iter().filter(|_| self.wants("certified")) {
                    modes.push(mode(Policy::Certified { tolerance }));
                }
                if self.wants("seed000") {
                    modes.push(mode(Policy::Seed000));
                }
            }
        }
        Ok(modes)
    }

    /// A format for every KV head at every tolerance.
    fn choose(&self, outcome: &Outcome, model: &Config) -> Result<Vec<(f64, PerHead)>, CliError> {
        let Config { layers, heads, kv_heads, head_dim, .. } = *model;
        let geometry = Geometry::new(layers, heads, kv_heads, head_dim).map_err(CliError::refused)?;
        let default = [defaults::TOLERANCE];
        let tolerances = if self.tolerances.is_empty() { &default[..] } else { &self.tolerances };
        let mut chosen = Vec::new();
        for &tolerance in tolerances {
            let bytes = self.bytes.unwrap_or(f64::INFINITY);
            let found = PerHead::choose(outcome, &geometry, tolerance, bytes).map_err(CliError::refused)?;
            chosen.extend(found.map(|found| (tolerance, found)));
        }
        Ok(chosen)
    }

    fn work(&self, assets: Option<&Path>) -> Result<Work, CliError> {
        let bundled = |name: &str| -> Result<PathBuf, CliError> { Ok(assets::locate(assets)?.join("eval").join(name)) };
        let mut files = self.tasks.clone();
        files.retain(|f| f != Path::new("none"));
        if self.tasks.is_empty() && self.text.is_none() {
            files.push(bundled("tasks_4096.jsonl.gz")?);
        }
        let mut work = Work::default();
        for file in &files {
            work.prompts.extend(self.selection.apply(reader::read(file)?)?);
        }
        if let Some(path) = &self.text {
            let cut = text::Cut {
                length: self.context.unwrap_or(4096),
                scored: self.scored,
                limit: self.windows.unwrap_or(2),
            };
            work.windows = if path == Path::new("bundled") {
                text::windows(&bundled("text.bin")?, &defaults::TEXT_PARTS, cut)?
            } else {
                text::windows(path, &["text"], cut)?
            };
        }
        if work.prompts.is_empty() && work.windows.is_empty() {
            return Err(CliError::Usage("eval: neither prompts nor text to run".into()));
        }
        Ok(work)
    }
}

/// What was chosen for the heads, in lines.
fn said(tolerance: f64, chosen: &PerHead, read: f64) -> String {
    let PerHead { formats, stored, read: expected, single } = chosen;
    let list = formats.iter().map(Format::to_string).collect::<Vec<_>>().join("+");
    let single = single.map_or_else(String::new, |(format, read)| format!("; {format} for all heads: {read:.3}"));
    let of = format!("{read:.3} of dense read ({expected:.3} by what each head read before{single})");
    format!("By head at {}%: {of}, {stored:.0} bytes of codes a token\n  {list}\n", tolerance * 100.0)
}

/// Refuses, before hours of work, what the model cannot hold.
fn check_fit(work: &Work, model: &Llama) -> Result<(), CliError> {
    let Config { positions: limit, vocabulary, .. } = *model.config();
    let prompts = work.prompts.iter().map(|p: &Prompt| [p.prompt.as_bytes(), p.answer.as_bytes()].concat());
    for text in prompts.chain(work.windows.iter().map(|w| w.bytes.clone())) {
        let tokens = model.tokens().encode(&text)?;
        if tokens.len() > limit {
            return Err(ModelError::Positions { length: tokens.len(), limit }.into());
        }
        if let Some(&token) = tokens.iter().find(|t| **t as usize >= vocabulary) {
            return Err(ModelError::Token { token, vocabulary }.into());
        }
    }
    Ok(())
}

/// Runs an evaluation.
///
/// # Errors
/// [`CliError`] for bad options, refused files, or a certificate that did not hold.
pub fn run(parser: lexopt::Parser, out: &mut dyn Write) -> Result<(), CliError> {
    let Some(options) = parse(parser)? else { return print(out, help::EVAL) };
    let common = &options.common;
    options.check_policies()?;
    options.check_calibration()?;
    options.check_scales()?;
    let threads = common.start_threads();
    let folder = match &options.model {
        Some(folder) => folder.clone(),
        None => assets::locate(common.assets.as_deref())?.join("ref-d128"),
    };
    if let Some(page) = &options.sweep {
        return sweep::run(common, &folder, page, options.quick, options.command, out);
    }
    let found = calibrations(&options.calibrations, &folder, &Config::read(&folder)?)?;
    options.check_found(&found)?;
    let fixed = options.scales.as_ref().map(|path| scales(path, &folder)).transpose()?;
    let mut engine = common.calibrated_engine(threads, found, fixed, options.exactly)?;
    let work = options.work(common.assets.as_deref())?;
    let (base, twin) = if options.twin {
        let (base, twin) = load_pair(&folder)?;
        (base, Some(twin))
    } else {
        (Llama::load(&folder)?, None)
    };
    check_fit(&work, &base)?;
    let mut plan = Plan {
        modes: options.modes(base.config().head_dim)?,
        base: work.clone(),
        twin: work,
        judging: if options.greedy { Judging::Greedy } else { Judging::TeacherForcing },
        witness_every: options.witness.unwrap_or(8) as u64,
        side_by_side: false,
    };
    let models = Models { base: &base, twin: twin.as_ref() };
    let mut outcome = eval::run(&plan, models, engine.as_mut(), &common.progress())?;
    let chosen = if options.per_head { options.choose(&outcome, base.config())? } else { Vec::new() };
    if !chosen.is_empty() {
        let modes = chosen.iter().filter_map(|(tolerance, chosen)| chosen.mode(*tolerance)).collect();
        let then = Plan { modes, ..plan.clone() };
        let found = eval::run(&then, models, engine.as_mut(), &common.progress())?;
        plan.modes.extend(then.modes);
        outcome.modes.extend(found.modes);
        outcome.seconds += found.seconds;
    }
    let model = folder.file_name().map_or_else(|| "model".into(), |n| n.to_string_lossy().into_owned());
    let setting = Setting { model, seed: common.seed_or_default(), threads, ..Setting::default() };
    let data = report::build(&plan, &outcome, base.config(), setting);
    finish(&data, common, common.report.as_deref(), out)?;
    if !common.json {
        let found = |mode: &Mode| outcome.modes.iter().find(|m| m.mode == *mode).map(|m| m.gathered.read_share());
        for (tolerance, chosen) in &chosen {
            let read = chosen.mode(*tolerance).and_then(|mode| found(&mode)).unwrap_or(f64::NAN);
            print(out, &said(*tolerance, chosen, read))?;
        }
    }
    if let Some(path) = &options.curves {
        let sweep = report::sweep::build::sweep(&plan, &data, options.command.clone());
        let text = sweep.to_text().map_err(|e| CliError::Internal(Box::new(e)))?;
        write_file(path, &text)?;
        if !common.json {
            print(out, &format!("Curves: {}\n", path.display()))?;
        }
    }
    Ok(())
}
