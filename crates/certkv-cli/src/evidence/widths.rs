//! Block-GTQ against one width for all channels: logits by layer, attention, needles and bits per byte.
use super::{
    Setup, Use,
    codecs::{self, Runs},
    data::{Axis, Cell, Chart, Figure, Line, Point, Section, Series, Show, Table, mean},
    setup::NEEDLES,
};
use crate::{
    calibrate::{self, Measured},
    engine::Calibrations,
    error::CliError,
    eval::{Mode, Work},
    stats::wilson,
};
use certkv_core::{Format, KeyFormat};

/// Key formats by the bits that they are compared at. The last of 3 bits is the one that takes the bytes of TurboQuant.
const KEYS: [(u8, &[&str]); 2] = [(2, &["tq2", "ctq2", "gtq2"]), (3, &["tq3", "ctq3", "gtq3", "gtq2.5"])];

/// Formats of whole caches.
const PAIRS: [(&str, [&str; 3]); 3] = [
    ("K3V3", ["tq3-tq3-b64", "ctq3-tq3-b64", "gtq3-tq3-b64"]),
    ("K3V2", ["tq3-tq2-b64", "ctq3-tq2-b64", "gtq3-tq2-b64"]),
    ("K2V2", ["tq2-tq2-b64", "ctq2-tq2-b64", "gtq2-tq2-b64"]),
];

fn key(name: &str) -> Result<KeyFormat, CliError> {
    Ok(format!("{name}-f16-b64").parse::<Format>()?.key)
}

/// What every key format of `KEYS` does to every window, in the order of `KEYS`.
fn logits(setup: &Setup) -> Result<Vec<Vec<Measured>>, CliError> {
    let mut ways = Vec::new();
    for name in KEYS.iter().flat_map(|(_, names)| *names) {
        ways.push(calibrate::stored(&setup.calibration, key(name)?).map_err(CliError::refused)?);
    }
    let windows = setup.windows(Use::Logits)?;
    let mut bar = setup.progress.bar("logits", windows.len() as u64);
    let mut found = Vec::new();
    for (_, window) in &windows {
        let rows = calibrate::capture(&setup.model, setup.heads, &setup.encode(&window.bytes)?, |_| ())?;
        found.push(calibrate::measure(&rows, &ways, || ()).map_err(CliError::refused)?);
        bar.advance(1);
    }
    bar.finish();
    Ok(found)
}

pub(super) fn section(setup: &Setup, runs: &Runs) -> Result<Section, CliError> {
    let (layers, seed) = (setup.heads.layers, setup.seed);
    let found = logits(setup)?;
    let of = |at: usize, f: &dyn Fn(&Measured) -> f64| -> Vec<f64> { found.iter().map(|w| f(&w[at])).collect() };
    let names: Vec<String> = (0..layers).map(|layer| format!("layer {layer}")).collect();
    let by_layer = |show: Show| names.iter().map(move |name| (name.as_str(), show));
    let head = [("bytes of a key", Show::Fixed(1))];
    let tail = [("KL of attention", Show::Fixed(4)), ("top 10 kept", Show::Percent(1))];
    let columns: Vec<_> = head.into_iter().chain(by_layer(Show::Fixed(4))).chain(tail).collect();
    let columns_of_ratios: Vec<_> =
        by_layer(Show::Fixed(3)).chain([("layers that are smaller", Show::Count)]).collect();
    let mut errors = Table::new("Mean absolute error of a logit after rotation, in nats", &columns);
    let mut ratios = Table::new("Block-GTQ over one width: ratio of errors, mean of windows", &columns_of_ratios);
    let (mut charts, mut at) = (Vec::new(), 0);
    for (bits, keys) in KEYS {
        let mut series = Vec::new();
        for (i, name) in keys.iter().enumerate() {
            let error = |layer: usize| Figure::mean(&of(at + i, &|m| m.error[layer]), seed);
            let mut cells = vec![Cell::mean(&of(at + i, &|m| m.bytes), seed)];
            cells[0] = Cell::plain(cells[0].value().unwrap_or(f64::NAN));
            cells.extend((0..layers).map(|layer| Cell::from(error(layer))));
            cells.push(Cell::mean(&of(at + i, &|m| m.divergence), seed));
            cells.push(Cell::mean(&of(at + i, &|m| m.overlap), seed));
            errors.row(*name, cells);
            let point = |layer: usize| Point { name: names[layer].clone(), x: layer as f64, y: error(layer) };
            series.push(Series { name: (*name).into(), line: Line::All, points: (0..layers).map(point).collect() });
        }
        for (mine, its) in [(2, 0), (2, 1), (3, 0), (3, 1)].into_iter().filter(|(mine, _)| *mine < keys.len()) {
            let ratio = |layer: usize| -> Vec<f64> {
                found.iter().map(|w| w[at + mine].error[layer] / w[at + its].error[layer]).collect()
            };
            let mut cells: Vec<Cell> = (0..layers).map(|layer| Cell::mean(&ratio(layer), seed)).collect();
            // Smaller, and the whole interval below 1.
            let wins = (0..layers).filter(|layer| {
                let figure = Figure::mean(&ratio(*layer), seed);
                figure.value < 1.0 && figure.interval.is_none_or(|[_, high]| high < 1.0)
            });
            cells.push(Cell::plain(wins.count() as f64));
            ratios.row(format!("{} over {}", keys[mine], keys[its]), cells);
        }
        charts.push(Chart {
            title: format!("Error of logits by layer, {bits} bits"),
            x: Axis::linear("layer", Show::Count),
            y: Axis::linear("nats", Show::Fixed(1)),
            series,
        });
        at += keys.len();
    }
    Ok(Section {
        id: "widths".into(),
        title: "Block-GTQ against one width for all channels".into(),
        text: format!(
            "tq: TurboQuant. ctq: the same, of keys centred and balanced by the calibration. gtq: Block-GTQ, a width for each pair of channels, as records of a cache \
             hold it. {} windows of {} bytes; calibrated on {} tokens that no window has. Every fourth query of the second half, with all keys up to its own.",
            found.len(),
            setup.sizes.logits,
            setup.calibration.source().tokens,
        ),
        charts,
        tables: vec![errors, ratios, caches(setup, runs)?],
        notes: vec![
            "At equal bits Block-GTQ is larger by its radii, one for each width of a head: gtq2.5 takes the bytes of tq3.".into(),
            "K3V3, K3V2 and K2V2 are read from codes alone, nothing repaired. Needles are answered right if every byte is the model's first choice; their intervals are Wilson's.".into(),
        ],
    })
}

/// Needles and bits per byte of whole caches.
fn caches(setup: &Setup, runs: &Runs) -> Result<Table, CliError> {
    let short = setup.sizes == super::Sizes::QUICK;
    let prompts = setup.needles(setup.sizes.needles, short)?;
    let mut modes = vec![Mode::dense(false)];
    for name in PAIRS.iter().flat_map(|(_, names)| names) {
        modes.push(Mode::packed(name, false)?);
    }
    let calibrations = Calibrations { schemes: Some(setup.calibration.clone()), ..Calibrations::default() };
    let mut bar = setup.progress.bar("needles", prompts.len() as u64);
    let mut trials = Vec::new();
    for prompt in prompts {
        let work = Work { prompts: vec![prompt], windows: Vec::new() };
        let outcome = codecs::evaluate(setup, &calibrations, modes.clone(), work)?;
        trials.push(outcome.modes.into_iter().flat_map(|m| m.trials).collect::<Vec<_>>());
        bar.advance(1);
    }
    bar.finish();
    let columns = [
        ("bytes stored", Show::Fixed(1)),
        ("needles right", Show::Percent(0)),
        ("of", Show::Count),
        ("bits/byte against dense", Show::Fixed(4)),
        ("against tq, same window", Show::Fixed(4)),
    ];
    let mut table =
        Table::new("Whole caches: needles, and bits per byte (perplexity of bytes is 2 to that power)", &columns);
    let mut add = |name: String, mode: usize, format: Option<(&str, &str)>| {
        let right = trials.iter().filter(|t| t[mode].correct()).count();
        let (low, high) = wilson(right as u64, trials.len() as u64);
        let value = right as f64 / trials.len().max(1) as f64;
        let needles = Figure { value, interval: Some([low, high]) };
        let none = || Cell::words("–");
        let mut cells = vec![none(), needles.into(), Cell::plain(trials.len() as f64), none(), none()];
        if let Some((format, plain)) = format {
            let (mine, its) = (runs.change(format, false), runs.change(plain, false));
            cells[0] = Cell::plain(runs.stored(setup, format));
            cells[3] = Cell::mean(&mine, setup.seed);
            let less: Vec<f64> = mine.iter().zip(&its).map(|(a, b)| a - b).collect();
            cells[4] = if format == plain { none() } else { Cell::mean(&less, setup.seed) };
        }
        table.row(name, cells);
    };
    add(format!("dense, {:.4} bits/byte", mean(&runs.dense())), 0, None);
    for (i, (pair, names)) in PAIRS.iter().enumerate() {
        for (j, name) in names.iter().enumerate() {
            add(format!("{pair} {name}"), 1 + names.len() * i + j, Some((name, names[0])));
        }
    }
    table.title += &format!("; {} of {} tokens", NEEDLES.join(", "), if short { 1024 } else { 4096 });
    Ok(table)
}
