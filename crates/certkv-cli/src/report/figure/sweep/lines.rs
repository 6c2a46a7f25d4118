//! Bytes read, originals moved and quality against tolerance, one line per format.
use super::{View, frame::Frame, words};
use crate::report::{
    svg::{Anchor, Svg, axis},
    sweep::{
        CurvePoint,
        data::{repaired, skipped},
    },
};

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 330.0;
const EDGES: [f64; 4] = [52.0, 40.0, WIDTH - 120.0, HEIGHT - 46.0];

/// One chart.
struct Chart {
    title: &'static str,
    value: fn(&CurvePoint) -> Option<f64>,
    show: fn(f64) -> String,
    /// Numbers that the axis always reaches.
    reach: &'static [f64],
}

/// Everything read over dense.
pub(super) fn read(view: &View<'_>) -> String {
    chart(
        view,
        &Chart {
            title: "Bytes read, share of dense",
            value: |p| Some(p.read.total()),
            show: |v| format!("{v:.2}"),
            reach: &[],
        },
    )
}

/// Originals read over dense.
pub(super) fn moved(view: &View<'_>) -> String {
    chart(
        view,
        &Chart {
            title: "Of them originals, moved to be read",
            value: |p| Some(p.read.originals()),
            show: |v| format!("{v:.2}"),
            reach: &[0.0],
        },
    )
}

/// Change of bits per byte; of accuracy if there was no text.
pub(super) fn quality(view: &View<'_>) -> String {
    let change = Chart {
        title: "Change of bits per byte against dense",
        value: |p| p.delta,
        show: |v| if v == 0.0 { "0".into() } else { format!("{:+.2}%", 100.0 * v) },
        reach: &[-0.001, 0.001],
    };
    let right = Chart {
        title: "Right answers",
        value: |p| (p.prompts > 0).then(|| p.right as f64 / p.prompts as f64),
        show: words::percent,
        reach: &[0.0, 1.0],
    };
    chart(view, if view.points().any(|p| p.delta.is_some()) { &change } else { &right })
}

/// What a point says when pointed at.
pub(super) fn tip(format: &str, p: &CurvePoint) -> String {
    let delta = p.delta.map_or_else(String::new, |d| format!(", bits per byte {:+.2}%", 100.0 * d));
    let right = if p.prompts > 0 { format!(", {} of {} right", p.right, p.prompts) } else { String::new() };
    let skipped = match skipped(p) {
        s if s > 0.0 => format!(", {} of values not read", words::percent(s)),
        _ => String::new(),
    };
    format!(
        "{format} at {}: reads {:.3} of dense, {:.3} of it originals{skipped}; {} of head-steps repaired{right}{delta}",
        words::percent(p.tolerance),
        p.read.total(),
        p.read.originals(),
        words::percent(repaired(&p.rungs))
    )
}

fn chart(view: &View<'_>, chart: &Chart) -> String {
    let known = || view.points().chain(view.marks().map(|(_, p)| p)).filter_map(chart.value);
    if known().next().is_none() {
        return String::new();
    }
    let ticks = axis(known().chain(chart.reach.iter().copied()), 5.0);
    let frame = Frame::new(EDGES, view, &ticks);
    let [left, _, right, bottom] = EDGES;
    let tolerances = view.tolerances();
    let mut svg = Svg::new(WIDTH, HEIGHT, chart.title);
    svg.text([0.0, 14.0], chart.title, "strong", Anchor::Start);
    frame.levels(&mut svg, &ticks, chart.show);
    frame.tolerances(&mut svg, &tolerances);
    frame.default_tolerance(&mut svg, &tolerances);
    svg.text([(left + right) / 2.0, bottom + 36.0], "tolerance, share of the output's norm", "tick", Anchor::Middle);
    let mut labels: Vec<(f64, usize)> = Vec::new();
    for (i, curve) in view.drawn() {
        let known: Vec<(&CurvePoint, [f64; 2])> =
            curve.points.iter().filter_map(|p| Some((p, frame.at(p.tolerance, (chart.value)(p)?)))).collect();
        let line: Vec<[f64; 2]> = known.iter().map(|(_, at)| *at).collect();
        let class = if i == view.focus { "series focus" } else { "series" };
        svg.path(&line, class, &format!("stroke:{}", words::series(i)));
        for (p, at) in known {
            let r = if i == view.focus { 4.6 } else { 3.6 };
            svg.dot(at, r, "", &format!("fill:{}", words::series(i)), &tip(&curve.format, p));
        }
        labels.extend(line.last().map(|at| (at[1], i)));
    }
    for (format, p) in view.marks() {
        if let Some(value) = (chart.value)(p) {
            let at = frame.at(p.tolerance, value);
            svg.dot(at, 8.0, "ring here", "", &format!("this run: {}", tip(format, p)));
            svg.text([at[0] + 13.0, at[1] - 8.0], "this run", "label halo", Anchor::Start);
        }
    }
    names(&mut svg, view, labels, right + 10.0);
    svg.finish()
}

/// Formats at the right end of their lines, moved apart where they would cover each other.
fn names(svg: &mut Svg, view: &View<'_>, mut labels: Vec<(f64, usize)>, x: f64) {
    const STEP: f64 = 16.0;
    labels.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut at: Vec<f64> = Vec::new();
    for (y, _) in &labels {
        let free = at.last().map_or(f64::NEG_INFINITY, |last| last + STEP);
        at.push((y + 4.0).max(free));
    }
    // A pile that grew past the lower edge moves up as a whole.
    let over = (at.last().copied().unwrap_or(0.0) - EDGES[3] - 4.0).max(0.0);
    for ((_, i), y) in labels.into_iter().zip(at) {
        let class = if i == view.focus { "strong" } else { "name" };
        let style = format!("fill:{}", words::series(i));
        svg.text_in([x, y - over], &view.curves[i].format, class, Anchor::Start, &style);
    }
}
