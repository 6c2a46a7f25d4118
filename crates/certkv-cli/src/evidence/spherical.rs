//! Spherical keys: their logits, the ablation of retention and tiers, and the witnesses of stability.
use super::{
    Setup, Use,
    data::{Axis, Cell, Chart, Figure, Line, Point, Section, Series, Show, Table, largest, mean},
    heads,
    retained::{self, Moved, RULE, Reference, TIERS, Variant, rungs},
    segments,
    tiered::Choice,
    witness,
};
use crate::{
    calibrate::{self, BLOCK, Measured, Way},
    error::CliError,
    progress::Bar,
};
use certkv_codec::spherical::{self as codec, Scheme, Spherical, Tier};
use certkv_testkit::generate::Rng;
use std::sync::{Mutex, PoisonError};

/// Bytes of a token, key head and layer, values included: where tiers alone fit, and below.
const BUDGETS: [f64; 3] = [76.0, 50.0, 25.0];
/// The budget at which witnesses are taken.
pub(super) const BUDGET: f64 = 50.0;

fn retained(budget: f64, blind: bool) -> Choice {
    Choice::Retained { budget, rule: RULE, blind, even: false }
}

/// The joint policy: all tiers and dropping.
pub(super) fn joint<'a>(ways: &'a [Way<'static>], measured: &[Measured], values: f64, budget: f64) -> Variant<'a> {
    let rungs = rungs(ways, measured, values, &[0, 1, 2], true);
    Variant { name: "joint".into(), rungs, choice: retained(budget, false) }
}

fn variants<'a>(ways: &'a [Way<'static>], measured: &[Measured], values: f64) -> Vec<Variant<'a>> {
    let rungs = |which: &[usize], drop| rungs(ways, measured, values, which, drop);
    let mut all: Vec<Variant<'a>> = [0, 1, 2, TIERS, TIERS + 1, TIERS + 2]
        .into_iter()
        .map(|i| {
            let what = if i < TIERS { "angle only: " } else { "" };
            Variant {
                name: format!("{what}{} everywhere", ways[i].name),
                rungs: rungs(&[i], false),
                choice: Choice::First,
            }
        })
        .collect();
    for budget in BUDGETS {
        let mut add = |name: &str, rungs, blind| {
            all.push(Variant { name: format!("{name}, {budget}"), rungs, choice: retained(budget, blind) });
        };
        add("joint", joint(ways, measured, values, budget).rungs, false);
        add("keep/drop only (b1)", rungs(&[0], true), false);
        add("tier only", rungs(&[0, 1, 2], false), false);
        add("decoupled: drop, then b2", rungs(&[1], true), true);
        add("decoupled: drop, then b3", rungs(&[2], true), true);
        add("RD only: TurboQuant 2, 1, drop", rungs(&[TIERS, TIERS + 1], true), false);
    }
    all
}

/// A bar that threads share.
pub(super) struct Shared(Mutex<Bar>);

impl Shared {
    pub(super) fn new(setup: &Setup, name: &str, total: usize) -> Self {
        Self(setup.progress.bar(name, total as u64).into())
    }

    pub(super) fn step(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).advance(1);
    }

    pub(super) fn finish(self) {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner).finish();
    }
}

pub(super) fn section(setup: &Setup) -> Result<Section, CliError> {
    let ways = retained::ways(setup)?;
    let values = retained::value_bytes(setup)?;
    let [length, _] = setup.sizes.spherical;
    let windows = setup.windows(Use::Spherical)?;
    // What levels cost is learned where everything is calibrated.
    let own = calibrate::capture(&setup.model, setup.heads, &setup.encode(setup.text.calibration())?, |_| ())?;
    let learned = calibrate::measure(&own, &ways, || ()).map_err(CliError::refused)?;
    let (mut held, mut references) = (Vec::new(), Vec::new());
    for (_, window) in &windows {
        let rows = calibrate::capture(&setup.model, setup.heads, &setup.encode(&window.bytes)?, |_| ())?;
        held.push(calibrate::measure(&rows, &ways, || ()).map_err(CliError::refused)?);
        references.push(Reference::new(setup, &window.bytes).map_err(CliError::Internal)?);
    }
    let variants = variants(&ways, &learned, values);
    let bar = Shared::new(setup, "retention", variants.len() * windows.len());
    let found = retained::measure(setup, &references, &variants, || bar.step())?;
    bar.finish();
    let (logits, reliable) = logits(setup, &learned, &held);
    let (ablation, frontier) = ablation(setup, &variants, &found);
    let mut tables = vec![logits, ablation, direct(&setup.gather, setup)?];
    tables.push(heads::table(setup, &references, &ways, &learned, values)?);
    tables.push(segments::table(setup, &ways, &learned, values)?);
    tables.extend(witness::tables(setup, &ways, &learned, values)?);
    Ok(Section {
        id: "spherical".into(),
        title: "Spherical keys: joint retention against its parts".into(),
        text: format!(
            "Caches hold spherical keys of one tier (s1, s2 or s3), not of several: here a model runs over single-precision rows whose full blocks of {BLOCK} tokens are coded, tiered or dropped by layer and key head, with \
             values of TurboQuant at 4 bits ({values:.0} bytes). Directions are trained on {} tokens that no window has, radii are lengths. {} windows of {length} tokens, the text forced; what is measured \
             is the second half. Bytes are those of a token, key head and layer, keys and values; budgets are of these.",
            setup.calibration.source().tokens,
            windows.len(),
        ),
        charts: vec![frontier, reliable],
        tables,
        notes: vec![
            "A0 is joint; A1 compares scores by table with decoded keys; A2 are joint, keep/drop, tier and decoupled at equal budgets, A3 tiers of all heads alike (everywhere) against joint; who has how much is the table \"A3: heads\".".into(),
            "A3: an even policy may give a head less than its share, as whole blocks go up or down; far attention is what the controller looks at, the last queries of each block.".into(),
            "A4: protected blocks go down last (9.24), and others give way to them. The passage is where the answer stands, which no server knows beforehand: it is the most that knowing segments could bring.".into(),
            "A5, the gate: the share of queries in \"heaviest block certain\" is what any gate could release, as no bound is below the true error. With directions it is near nothing, so a gate holds everything at the top tier: a policy with it is \"angle only: spherical b1 everywhere\".".into(),
            "The proxy of distortion is attention times the share of it that a tier sends elsewhere, by layer, measured where directions were trained; (9.17) with a bound is infinite or near it at these widths and would drop everything.".into(),
        ],
    })
}

fn logits(setup: &Setup, learned: &[Measured], held: &[Vec<Measured>]) -> (Table, Chart) {
    let columns = [
        ("bytes of a key", Show::Fixed(2)),
        ("logit error, nats", Show::Fixed(3)),
        ("KL of attention", Show::Fixed(3)),
        ("top 10 kept", Show::Percent(1)),
        ("attention moved", Show::Percent(1)),
        ("the same where learned", Show::Percent(1)),
        ("heaviest block certain", Show::Percent(1)),
    ];
    let mut table = Table::new("Logits and attention, all layers", &columns);
    let mut series = Vec::new();
    for (i, known) in learned.iter().enumerate() {
        let of = |f: &dyn Fn(&Measured) -> f64| -> Cell {
            Cell::mean(&held.iter().map(|w| f(&w[i])).collect::<Vec<_>>(), setup.seed)
        };
        table.row(
            known.name.clone(),
            vec![
                Cell::plain(known.bytes),
                of(&|m| mean(&m.error)),
                of(&|m| m.divergence),
                of(&|m| m.overlap),
                of(&|m| mean(&m.moved)),
                Cell::plain(mean(&known.moved)),
                of(&|m| m.certain),
            ],
        );
        let point = |layer: usize| Point {
            name: format!("{}, layer {layer}", known.name),
            x: known.moved[layer],
            y: Figure::mean(&held.iter().map(|w| w[i].moved[layer]).collect::<Vec<_>>(), setup.seed),
        };
        let points = (0..known.moved.len()).map(point).collect();
        series.push(Series { name: known.name.clone(), line: Line::All, points });
    }
    for one in &mut series {
        one.points.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    let chart = Chart {
        title: "Reliability of the proxy: attention moved, by layer".into(),
        x: Axis::linear("where it was learned", Show::Percent(0)),
        y: Axis::linear("on held-out text", Show::Percent(0)),
        series,
    };
    (table, chart)
}

fn ablation(setup: &Setup, variants: &[Variant<'_>], found: &[Option<Vec<Moved>>]) -> (Table, Chart) {
    let columns = [
        ("bytes", Show::Fixed(1)),
        ("blocks kept", Show::Percent(0)),
        ("at the first level", Show::Percent(0)),
        ("drift, nats", Show::Fixed(4)),
        ("largest", Show::Fixed(1)),
        ("last quarter", Show::Fixed(4)),
        ("top 10 kept", Show::Percent(1)),
        ("bits/byte against dense", Show::Fixed(4)),
    ];
    let mut table = Table::new("Ablation: drift of next-token distributions from the dense ones", &columns);
    let mut series: Vec<Series> = Vec::new();
    for (variant, found) in variants.iter().zip(found) {
        let Some(found) = found else {
            let floor = variant.floor().unwrap_or(f64::NAN);
            let mut cells = vec![Cell::words(format!("below its floor of {floor:.1}"))];
            cells.resize(columns.len(), Cell::words("–"));
            table.row(variant.name.clone(), cells);
            continue;
        };
        let each = |f: &dyn Fn(&Moved) -> f64| -> Vec<f64> { found.iter().map(f).collect() };
        let cell = |f: &dyn Fn(&Moved) -> f64| Cell::mean(&each(f), setup.seed);
        let (bytes, drift) = (mean(&each(&|m| m.deeds.bytes)), Figure::mean(&each(&|m| mean(&m.drift)), setup.seed));
        table.row(
            variant.name.clone(),
            vec![
                Cell::plain(bytes),
                Cell::plain(mean(&each(&|m| m.deeds.kept))),
                Cell::plain(mean(&each(&|m| m.deeds.first))),
                drift.into(),
                Cell::plain(largest(found.iter().flat_map(|m| m.drift.iter().copied()))),
                cell(&Moved::tail),
                cell(&|m| mean(&m.overlap)),
                cell(&|m| m.bits),
            ],
        );
        // The same at other budgets is one line.
        let (name, line) = match variant.choice {
            Choice::First => ("one code everywhere", Line::Frontier),
            _ => (variant.name.rsplit_once(", ").map_or("", |(name, _)| name), Line::All),
        };
        let short = variant.name.trim_start_matches("angle only: ").trim_end_matches(" everywhere");
        let point = Point { name: short.into(), x: bytes, y: drift };
        match series.iter_mut().find(|s| s.name == name) {
            Some(one) => one.points.push(point),
            None => series.push(Series { name: name.into(), line, points: vec![point] }),
        }
    }
    let chart = Chart {
        title: "Drift against bytes".into(),
        x: Axis::linear("bytes of a token, key head and layer", Show::Count),
        y: Axis::log("KL of the next token, nats", Show::Fixed(3)),
        series,
    };
    (table, chart)
}

/// A1: scores from codes by table, and by decoding.
fn direct(gather: &certkv_control::spherical::Gather, setup: &Setup) -> Result<Table, CliError> {
    let columns = [
        ("random keys", Show::Count),
        ("largest difference, nats", Show::Power),
        ("code bytes of a key", Show::Fixed(2)),
        ("bytes of it decoded", Show::Fixed(0)),
    ];
    let mut table = Table::new("A1: logits straight from codes against decoded keys", &columns);
    let dim = setup.heads.head_dim;
    for tier in Tier::ALL {
        let books = gather.train_head(0, 0, tier, &setup.training(setup.seed)).map_err(CliError::refused)?;
        let spherical = Spherical::new(&Scheme::new(tier, &books.words)).map_err(CliError::refused)?;
        let mut rng = Rng::new(setup.seed);
        let (mut most, mut keys) = (0.0f64, 0);
        for _ in 0..8 {
            let block: Vec<f64> = rng.normals(BLOCK * dim);
            let coded = codec::encode(&spherical, &block).map_err(CliError::refused)?;
            let decoded = codec::decode(&spherical, &coded).map_err(CliError::refused)?;
            let (q, scale) = (rng.normals(dim), (dim as f64).powf(-0.5));
            let products = codec::table(&spherical, &q).map_err(CliError::refused)?;
            let scores = codec::score(&spherical, &coded, &products, scale).map_err(CliError::refused)?;
            for (score, key) in scores.iter().zip(decoded.chunks_exact(dim)) {
                let dot: f64 = key.iter().zip(&q).map(|(a, b)| a * b).sum();
                most = most.max((score - scale * dot).abs());
                keys += 1;
            }
        }
        let bytes = codec::row_bytes(&spherical) as f64;
        table.row(
            format!("{tier}, directions of layer 0"),
            vec![Cell::plain(f64::from(keys)), Cell::plain(most), Cell::plain(bytes), Cell::plain(2.0 * dim as f64)],
        );
    }
    table.title += "; time and traffic are not measured, as no cache holds blocks of several tiers";
    Ok(table)
}
