//! SmartKV: blocks in several formats by what they are attended to, against one format of the same bytes.
use super::{
    Setup, Use,
    contenders::{Contender, race},
    data::{Axis, Cell, Chart, Figure, Line, Point, Row, Section, Series, Show, Table, mean, median_and_high},
    heap,
    spherical::Shared,
};
use crate::{error::CliError, tasks::Window};
use certkv::{Certified, Config, Geometry, Level, Policy, RecordLayout, SmartKv, smartkv::Rule};
use rayon::prelude::*;

const UNIFORM: &str = "t4-v4g64-b64";
const LEVELS: [&str; 4] = ["t8-v8g64-b64", UNIFORM, "t3-v3g64-b64", "t2-v2g64-b64"];
const TOLERANCE: f64 = 0.05;

/// The contenders behind dense: name, certified, levels (0 for one format), hysteresis.
const ENTRIES: [(&str, bool, usize, bool); 6] = [
    ("4 bits everywhere", false, 0, true),
    ("SmartKV 8, 4, 3", false, 3, true),
    ("SmartKV 8, 4, 3, no hysteresis", false, 3, false),
    ("SmartKV 8, 4, 3, 2", false, 4, true),
    ("4 bits everywhere, certified", true, 0, true),
    ("SmartKV 8, 4, 3, certified", true, 3, true),
];

/// Every decision may change every block.
fn free() -> Rule {
    Rule { points: 0.0, checks: 0, keep_rank: 0.0, ..Rule::default() }
}

/// Bytes of a token in one layer, all KV heads together: those of a page's seal are counted.
fn page_bytes(geometry: &Geometry, format: &str) -> Result<f64, CliError> {
    let format = format.parse::<certkv::Format>()?;
    let layout = RecordLayout::new(geometry, format).map_err(CliError::refused)?;
    Ok((64 + geometry.kv_heads * layout.bytes) as f64 / format.block as f64)
}

fn config(geometry: Geometry, room: usize, entry: (&str, bool, usize, bool)) -> Result<Config, CliError> {
    let (_, certified, levels, hysteresis) = entry;
    let policy = match certified {
        true => Policy::Certified(Certified { tol_rel: TOLERANCE, ..Certified::default() }),
        false => Policy::Packed,
    };
    let base = Config::new(geometry, room);
    if levels == 0 {
        return Ok(Config { policy, ..base.with_format(UNIFORM.parse()?) });
    }
    let mut ladder = Vec::new();
    for format in &LEVELS[..levels] {
        ladder.push(Level { format: format.parse()?, tokens: room });
    }
    let rule = if hysteresis { Rule::default() } else { free() };
    let control = SmartKv { rule, ..SmartKv::new(page_bytes(&geometry, UNIFORM)?) };
    Ok(Config { policy, control: Some(control.into()), ..base.with_levels(ladder) })
}

/// The contenders of each window, without the dense one.
fn races(setup: &Setup) -> Result<Vec<Vec<Contender>>, CliError> {
    let [prompt, _] = setup.sizes.smart;
    let windows = setup.windows(Use::SmartKv)?;
    let m = setup.config();
    let geometry = Geometry::new(m.layers, m.heads, m.kv_heads, m.head_dim).map_err(CliError::refused)?;
    let refused = |e: certkv::Error| CliError::Internal(Box::new(e));
    let bar = Shared::new(setup, "SmartKV", windows.len());
    // Windows side by side, a thread each.
    let run = |(_, window): &(usize, Window)| -> Result<Vec<Contender>, CliError> {
        let tokens = setup.encode(&window.bytes)?;
        let room = tokens.len() + 64;
        let dense = Config { policy: Policy::Dense, ..Config::new(geometry, room) };
        let mut contenders = vec![Contender::new("dense", dense).map_err(refused)?];
        for entry in ENTRIES {
            contenders.push(Contender::new(entry.0, config(geometry, room, entry)?).map_err(refused)?);
        }
        let mut run = race(&setup.model, &tokens, prompt, contenders)?;
        run.remove(0);
        bar.step();
        Ok(run)
    };
    let all = windows.par_iter().map(run).collect();
    bar.finish();
    all
}

pub(super) fn section(setup: &Setup) -> Result<Section, CliError> {
    let [prompt, steps] = setup.sizes.smart;
    let (all, seed, kv_heads) = (races(setup)?, setup.seed, setup.heads.kv_heads as f64);
    let percent = Show::Percent(2);
    let columns = [
        ("bytes stored", Show::Fixed(1)),
        ("bytes read a step", Show::Fixed(1)),
        ("error of outputs, mean", percent),
        ("95%", percent),
        ("mean over that of 4 bits", Show::Fixed(3)),
        ("95% over that of 4 bits", Show::Fixed(3)),
    ];
    let mut errors = Table::new("At equal bytes: error of outputs over windows", &columns);
    let columns = [
        ("changes of level", Show::Count),
        ("a block and 100 steps", Show::Fixed(3)),
        ("back to the level before", Show::Count),
        ("share that went back", Show::Percent(1)),
        ("error of outputs, mean", percent),
    ];
    let mut flips = Table::new("Changes of level, with hysteresis and without", &columns);
    let mut series = Vec::new();
    for (i, (name, certified, levels, _)) in ENTRIES.into_iter().enumerate() {
        let of = |f: &dyn Fn(&Contender) -> f64| -> Vec<f64> { all.iter().map(|run| f(&run[i])).collect() };
        let base = if certified { 4 } else { 0 };
        let high = |c: &Contender| median_and_high(c.errors.iter().copied())[1];
        let means = of(&|c| mean(&c.errors));
        let over =
            |f: &dyn Fn(&Contender) -> f64| -> Vec<f64> { all.iter().map(|run| f(&run[i]) / f(&run[base])).collect() };
        let ratios = |numbers: Vec<f64>| if i == base { Cell::words("1") } else { Cell::mean(&numbers, seed) };
        errors.row(
            name,
            vec![
                Cell::plain(mean(&of(&|c| mean(&c.stored))) / kv_heads),
                Cell::plain(mean(&of(&Contender::read_bytes)) / (prompt + steps / 2) as f64),
                Cell::mean(&means, seed),
                Cell::mean(&of(&high), seed),
                ratios(over(&|c| mean(&c.errors))),
                ratios(over(&high)),
            ],
        );
        let points = means.iter().enumerate().map(|(window, error)| Point {
            name: format!("{name}, window {}", window + 1),
            x: (window + 1) as f64,
            y: Figure::plain(*error),
        });
        if !certified {
            series.push(Series { name: name.into(), line: Line::All, points: points.collect() });
        }
        if levels > 0 {
            let rate = |c: &Contender| 100.0 * c.changed as f64 / c.held.max(1) as f64;
            let sum = |f: fn(&Contender) -> u64| all.iter().map(|run| f(&run[i])).sum::<u64>() as f64;
            flips.row(
                name,
                vec![
                    Cell::plain(sum(|c| c.changed)),
                    Cell::mean(&of(&rate), seed),
                    Cell::plain(sum(|c| c.returned)),
                    Cell::plain(sum(|c| c.returned) / sum(|c| c.changed).max(1.0)),
                    Cell::mean(&means, seed),
                ],
            );
        }
    }
    let over = |row: &Row| row.cells[0].value().zip(errors.rows[0].cells[0].value()).is_none_or(|(a, b)| a > 1.01 * b);
    let heavier: Vec<&str> = errors.rows.iter().filter(|row| over(row)).map(|row| row.name.as_str()).collect();
    let equal = match heavier.as_slice() {
        [] => "Every row stores at most 1% more than the first.".to_owned(),
        names => format!(
            "Not at equal bytes, as the protected blocks alone take more than the budget: {}.",
            names.join("; ")
        ),
    };
    let chart = Chart {
        title: "Error of outputs from codes alone, window by window".into(),
        x: Axis::linear("window", Show::Count),
        y: Axis::linear("mean of ||error|| / ||output||", Show::Percent(1)),
        series,
    };
    Ok(Section {
        id: "smartkv".into(),
        title: "SmartKV against one width at equal bytes".into(),
        text: format!(
            "Blocks of 64 tokens at 8, 4, 3 (and 2) bits by the attention that they get, within the bytes that 4 bits everywhere take. {} windows: a prompt of {prompt} tokens and \
             {steps} steps, every cache given the rows and queries of the model over exact attention. Bytes are those of a token, one KV head and layer.",
            all.len()
        ),
        charts: vec![chart],
        tables: vec![errors, flips, heap::table(setup)?],
        notes: vec![
            equal,
            "The controller is told the masses of each step and decides by its own clock; changes are counted after every step.".into(),
            "Random instances: scores whose logarithms are normal with a spread of 0.5, 1.5 or 3, a third each; budgets even between the lowest and the highest widths. The exact optimum is by dynamic programming.".into(),
        ],
    })
}
