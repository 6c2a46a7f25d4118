//! All codecs on the same text: what is stored and read of a token, with and without a certificate, and how far outputs are off.
use super::{
    Setup, Use,
    data::{Axis, Cell, Chart, Figure, Line, Point, Section, Series, Show, Table, median_and_high},
};
use crate::{
    demo::defaults,
    engine::{Calibrations, CpuEngine},
    error::CliError,
    eval::{self, Mode, ModeOutcome, Models, Outcome, Plan, Policy, Work, score::Judging},
};
use certkv_core::Format;

/// One format for each point that is asked about.
pub(super) const FORMATS: [&str; 34] = [
    defaults::FORMAT,
    "k8-v6g64-b64",
    "k8-v8g64-b64",
    "k8-c4-b64",
    "k4-v4g64-b64",
    "k4-v4g64-b64-r4.4",
    "k3-v3g64-b64",
    "k2-v2g64-b64",
    "t8-v8g64-b64",
    "t6-v6g64-b64",
    "t4-v4g64-b64",
    "t3-v3g64-b64",
    "t2-v2g64-b64",
    "p8-p8-b64",
    "p4g32-p4g32-b64",
    "e4m3-e4m3-b64",
    "e5m2-e5m2-b64",
    "tq6-tq6-b64",
    "tq4-tq4-b64",
    "tq3-tq3-b64",
    "tq3-tq2-b64",
    "tq2-tq2-b64",
    "ctq4-tq4-b64",
    "ctq3-tq3-b64",
    "ctq3-tq2-b64",
    "ctq2-tq2-b64",
    "gtq4-tq4-b64",
    "gtq3-tq3-b64",
    "gtq3-tq2-b64",
    "gtq2-tq2-b64",
    "s1-v4g64-b64",
    "s2-tq3-b64",
    "s3-tq3-b64",
    "k0-c0-b64",
];

/// What every mode did with every window: one outcome for each window, so that intervals are over windows.
pub(super) struct Runs {
    pub(super) windows: Vec<Outcome>,
}

/// Runs every format over every window, from its codes alone and certified at the default tolerance.
pub(super) fn run(setup: &Setup) -> Result<Runs, CliError> {
    let mut modes = vec![Mode::dense(false)];
    for name in FORMATS {
        let format: Format = name.parse()?;
        modes.push(Mode::of(Policy::Packed, format, false));
        modes.push(Mode::of(Policy::Certified { tolerance: defaults::TOLERANCE }, format, false));
    }
    let calibrations = setup.calibrations()?;
    let mut bar = setup.progress.bar("codecs", 2 * setup.sizes.windows as u64);
    let mut windows = Vec::new();
    for (_, window) in setup.windows(Use::Codecs)? {
        let work = Work { prompts: Vec::new(), windows: vec![window] };
        windows.push(evaluate(setup, &calibrations, modes.clone(), work)?);
        bar.advance(1);
    }
    bar.finish();
    Ok(Runs { windows })
}

/// One evaluation of the model, calibrated.
pub(super) fn evaluate(
    setup: &Setup,
    calibrations: &Calibrations,
    modes: Vec<Mode>,
    work: Work,
) -> Result<Outcome, CliError> {
    let mut engine = CpuEngine::new(setup.threads).side_by_side().calibrated(calibrations.clone());
    let plan = Plan {
        modes,
        base: work,
        twin: Work::default(),
        judging: Judging::TeacherForcing,
        witness_every: setup.sizes.witness,
        side_by_side: true,
    };
    let models = Models { base: &setup.model, twin: None };
    Ok(eval::run(&plan, models, &mut engine, &crate::progress::Progress::new(true))?)
}

impl Runs {
    /// What a mode did, window by window, each beside dense.
    fn of(&self, format: &str, certified: bool) -> Vec<(&ModeOutcome, &ModeOutcome)> {
        let mine = |m: &&ModeOutcome| {
            let policy = match m.mode.policy {
                Policy::Packed => !certified,
                Policy::Certified { .. } => certified,
                _ => false,
            };
            policy && m.mode.format.to_string() == format
        };
        let pair = |o| Some((Outcome::baseline(o, &Mode::dense(false))?, o.modes.iter().find(mine)?));
        self.windows.iter().filter_map(pair).collect()
    }

    /// Change of bits per byte of a format without a certificate, by window.
    pub(super) fn change(&self, format: &str, certified: bool) -> Vec<f64> {
        let per_byte = |m: &ModeOutcome| m.bits_per_byte(None).unwrap_or(f64::NAN);
        self.of(format, certified).iter().map(|(dense, m)| per_byte(m) - per_byte(dense)).collect()
    }

    /// Stored bytes of a token of one KV head and layer.
    pub(super) fn stored(&self, setup: &Setup, format: &str) -> f64 {
        let heads = (setup.heads.layers * setup.heads.kv_heads) as f64;
        self.of(format, false).first().map_or(f64::NAN, |(_, m)| m.footprint.per_token() / heads)
    }

    /// Bits per byte of dense attention, by window.
    pub(super) fn dense(&self) -> Vec<f64> {
        let dense = |o: &Outcome| o.baseline(&Mode::dense(false))?.bits_per_byte(None);
        self.windows.iter().filter_map(dense).collect()
    }

    fn summary(&self, setup: &Setup, format: &str, certified: bool) -> Summary {
        let runs = self.of(format, certified);
        let all = |f: fn(&ModeOutcome) -> &Vec<f64>| runs.iter().flat_map(move |(_, m)| f(m).iter().copied());
        let errors: Vec<f64> = runs.iter().map(|(_, m)| super::data::mean(&m.gathered.true_error)).collect();
        let (mut read, mut dense, mut moved, mut rungs, mut violations) = (0, 0, 0, [0u64; 2], 0);
        for (_, m) in &runs {
            let g = &m.gathered;
            read += g.read.iter().sum::<u64>();
            moved += g.read[1] + g.read[2];
            dense += g.read_dense;
            rungs = [rungs[0] + g.rungs[0], rungs[1] + g.rungs.iter().sum::<u64>()];
            violations += g.violations;
        }
        let row = (setup.heads.head_dim * 4) as f64;
        let share = |x: u64| row * x as f64 / dense.max(1) as f64;
        Summary {
            read: share(read),
            moved: share(moved),
            change: Figure::mean(&self.change(format, certified), setup.seed),
            error: Figure::mean(&errors, setup.seed),
            tightness: median_and_high(all(|m| &m.gathered.tightness)),
            checked: all(|m| &m.gathered.tightness).count(),
            repaired: 1.0 - rungs[0] as f64 / rungs[1].max(1) as f64,
            violations,
        }
    }
}

/// One format in one of its two ways.
struct Summary {
    /// Bytes read of a token, one KV head and layer.
    read: f64,
    /// Of them originals.
    moved: f64,
    change: Figure,
    error: Figure,
    tightness: [f64; 2],
    checked: usize,
    repaired: f64,
    violations: u64,
}

pub(super) fn section(setup: &Setup, runs: &Runs) -> Result<Section, CliError> {
    let bytes = Show::Fixed(1);
    let common = [
        ("stored", bytes),
        ("read a step", bytes),
        ("bits/byte against dense", Show::Fixed(4)),
        ("error of outputs, mean", Show::Percent(2)),
        ("bound / error, median", Show::Fixed(1)),
        ("95%", Show::Fixed(1)),
        ("checked", Show::Count),
        ("beyond the bound", Show::Count),
    ];
    let mut packed = Table::new("From codes alone: the bound is computed and not acted upon", &common);
    let mut columns = common.to_vec();
    columns.splice(2..2, [("of it originals", bytes), ("head-steps repaired", Show::Percent(0))]);
    let percent = 100.0 * defaults::TOLERANCE;
    let mut certified = Table::new(&format!("Certified at {percent}%, what the ladder moves counted"), &columns);
    let series = |name: String| Series { name, line: Line::Frontier, points: Vec::new() };
    let names = || [series("codes alone".into()), series(format!("certified at {percent}%"))].to_vec();
    let (mut errors, mut changes) = (names(), names());
    let mut violations = 0;
    for name in FORMATS {
        let stored = runs.stored(setup, name);
        for (i, table) in [&mut packed, &mut certified].into_iter().enumerate() {
            let s = runs.summary(setup, name, i == 1);
            violations += s.violations;
            let mut cells = vec![
                Cell::plain(stored),
                Cell::plain(s.read),
                s.change.into(),
                s.error.into(),
                Cell::plain(s.tightness[0]),
                Cell::plain(s.tightness[1]),
                Cell::plain(s.checked as f64),
                Cell::plain(s.violations as f64),
            ];
            if i == 1 {
                cells.splice(2..2, [Cell::plain(s.moved), Cell::plain(s.repaired)]);
            }
            table.row(name, cells);
            let point = |y| Point { name: name.into(), x: s.read, y };
            errors[i].points.push(point(s.error));
            changes[i].points.push(point(s.change));
        }
    }
    if violations > 0 {
        return Err(CliError::Check(format!("{violations} outputs were farther from the truth than their bound")));
    }
    let x = || Axis::log("bytes read of a token, KV head and layer", Show::Count);
    let charts = vec![
        Chart {
            title: "Error of outputs".into(),
            x: x(),
            y: Axis::log("mean of ||error|| / ||output||", Show::Percent(1)),
            series: errors,
        },
        Chart {
            title: "Bits per byte against dense".into(),
            x: x(),
            y: Axis::linear("bits per byte, change", Show::Fixed(3)),
            series: changes,
        },
    ];
    let dense = Figure::mean(&runs.dense(), setup.seed);
    let (low, high) = dense.interval.map_or((dense.value, dense.value), |[low, high]| (low, high));
    Ok(Section {
        id: "codecs".into(),
        title: "All codecs, with and without a certificate".into(),
        text: format!(
            "Bytes are those of a token, one KV head and one layer; dense half precision has {}. {} windows of {} bytes, the last {} predicted byte by byte; \
             dense needs {:.4} bits for each ({low:.4} to {high:.4}). Intervals are 95%, of means over windows, windows being resampled. Every {}th step all outputs \
             were recomputed in double precision: errors, and bounds over errors, are of these.",
            4 * setup.heads.head_dim,
            runs.windows.len(),
            setup.sizes.length,
            setup.sizes.scored,
            dense.value,
            setup.sizes.witness,
        ),
        charts,
        tables: vec![packed, certified],
        notes: vec![
            "Lines join formats that no other beats on both axes; these are named.".into(),
            "Spherical keys (s1 to s3) are a format like others here, under the certificate; what they are worth without one is below. k0-c0 drops every full block \
             and keeps its means; in k4-v4g64-b64-r4.4 the second half of the bits is read where a block asks for it."
                .into(),
            "Bytes stored count everything in device memory, the open block, promoted originals and tables included: a short window has more of these a token than a long one.".into(),
        ],
    })
}
