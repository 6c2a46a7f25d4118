//! The same by layer: one column per layer, one row per quantity.
use super::{
    View,
    frame::Frame,
    rungs::{bar, bare, round_up},
    words,
};
use crate::report::{
    svg::{Anchor, Svg, axis},
    sweep::{CurvePoint, LayerPoint, data::repaired},
};

const WIDTH: f64 = 1080.0;
const LEFT: f64 = 46.0;
const GAP: f64 = 18.0;
const PLOT: f64 = 96.0;
const PITCH: f64 = PLOT + 52.0;

/// Layers of one band; more go into further bands below.
const COLUMNS: usize = 8;

struct Row {
    title: &'static str,
    value: fn(&LayerPoint) -> f64,
    show: fn(f64) -> String,
    /// Whether the axis starts at zero.
    from_zero: bool,
}

const ROWS: [Row; 4] = [
    Row {
        title: "bytes read, share of dense",
        value: |l| l.read.total(),
        show: |v| format!("{v:.1}"),
        from_zero: false,
    },
    Row {
        title: "blocks whose keys were read as originals",
        value: |l| l.promoted_keys,
        show: words::percent,
        from_zero: true,
    },
    Row {
        title: "blocks whose values were read as originals",
        value: |l| l.promoted_values,
        show: words::percent,
        from_zero: true,
    },
    Row {
        title: "blocks whose values were not read",
        value: |l| l.skipped_values,
        show: words::percent,
        from_zero: true,
    },
];

/// A chosen row with the ticks of its axis.
type Ranged<'a> = (&'a Row, Vec<f64>);

/// The matrix; nothing without layers.
pub(super) fn draw(view: &View<'_>) -> String {
    let layers = view.points().map(|p| p.layers.len()).max().unwrap_or(0);
    let each = |value: fn(&LayerPoint) -> f64| {
        view.points().chain(view.marks().map(|(_, p)| p)).flat_map(|p| &p.layers).map(value)
    };
    let rows: Vec<Ranged<'_>> = ROWS
        .iter()
        .filter(|row| each(row.value).any(|v| v > 0.0))
        .map(|row| (row, axis(each(row.value).chain(row.from_zero.then_some(0.0)), 3.0)))
        .collect();
    // Even bands: 12 layers make two of six, not one of eight and one of four.
    let bands = layers.div_ceil(COLUMNS);
    let columns = layers.div_ceil(bands.max(1));
    (0..bands).map(|b| band(view, &rows, b * columns..((b + 1) * columns).min(layers), columns)).collect()
}

fn band(view: &View<'_>, rows: &[Ranged<'_>], layers: std::ops::Range<usize>, columns: usize) -> String {
    let tolerances = view.tolerances();
    let width = (WIDTH - LEFT + GAP) / columns.max(1) as f64;
    let height = 40.0 + PITCH * (rows.len() + 1) as f64 + 10.0;
    let mut svg = Svg::new(WIDTH, height, "Curves by layer");
    for (c, layer) in layers.enumerate() {
        let x = LEFT + c as f64 * width;
        svg.text([x, 14.0], &format!("layer {layer}"), "strong", Anchor::Start);
        for (r, (row, ticks)) in rows.iter().enumerate() {
            let top = 46.0 + r as f64 * PITCH;
            let frame = Frame::new([x, top, x + width - GAP, top + PLOT], view, ticks);
            let show = |v: f64| if c == 0 { (row.show)(v) } else { String::new() };
            frame.levels(&mut svg, ticks, show);
            if c == 0 {
                svg.text([x, top - 10.0], row.title, "label", Anchor::Start);
            }
            lines(&mut svg, view, &frame, row, layer);
            under(&mut svg, &tolerances, top + PLOT, |t| frame.x.at(t));
        }
        let top = 46.0 + rows.len() as f64 * PITCH;
        bars(&mut svg, view, [x, top, width - GAP], layer, c == 0);
    }
    svg.finish()
}

fn under(svg: &mut Svg, tolerances: &[f64], y: f64, x: impl Fn(f64) -> f64) {
    for &t in tolerances {
        svg.text([x(t), y + 15.0], &bare(t), "tick", Anchor::Middle);
    }
}

fn lines(svg: &mut Svg, view: &View<'_>, frame: &Frame, row: &Row, layer: usize) {
    let value = |p: &CurvePoint| p.layers.get(layer).map(row.value);
    for (i, curve) in view.drawn() {
        let known: Vec<(&CurvePoint, f64)> = curve.points.iter().filter_map(|p| Some((p, value(p)?))).collect();
        let line: Vec<[f64; 2]> = known.iter().map(|(p, v)| frame.at(p.tolerance, *v)).collect();
        let class = if i == view.focus { "series" } else { "series thin" };
        svg.path(&line, class, &format!("stroke:{}", words::series(i)));
        for ((p, v), at) in known.iter().zip(line) {
            let tip = tip(&curve.format, p, layer, row, *v);
            let r = if i == view.focus { 3.0 } else { 2.2 };
            svg.dot(at, r, "", &format!("fill:{}", words::series(i)), &tip);
        }
    }
    for (format, p) in view.marks() {
        if let Some(v) = value(p) {
            let tip = format!("this run: {}", tip(format, p, layer, row, v));
            svg.dot(frame.at(p.tolerance, v), 6.0, "ring here", "", &tip);
        }
    }
}

fn tip(format: &str, p: &CurvePoint, layer: usize, row: &Row, v: f64) -> String {
    let v = if row.from_zero { words::percent(v) } else { format!("{v:.3}") };
    format!("layer {layer}, {format} at {}: {}, {v}", words::percent(p.tolerance), row.title)
}

/// Rungs of the curve that stands out.
fn bars(svg: &mut Svg, view: &View<'_>, [x, top, width]: [f64; 3], layer: usize, first: bool) {
    let Some(curve) = view.curves.get(view.focus) else { return };
    let most = curve.points.iter().flat_map(|p| &p.layers).map(|l| repaired(&l.rungs)).fold(0.0, f64::max);
    let most = round_up(most);
    let ticks = [0.0, most / 2.0, most];
    let frame = Frame::new([x, top, x + width, top + PLOT], view, &ticks);
    frame.levels(svg, &ticks, |v| if first { words::percent(v) } else { String::new() });
    if first {
        let title = format!("head-steps that needed more than the codes, {}", curve.format);
        svg.text([x, top - 10.0], &title, "label", Anchor::Start);
    }
    let slot = width / curve.points.len().max(1) as f64;
    for (i, p) in curve.points.iter().enumerate() {
        let at = x + (i as f64 + 0.5) * slot;
        if let Some(l) = p.layers.get(layer) {
            let title = format!("layer {layer}, {} at {}", curve.format, words::percent(p.tolerance));
            bar(svg, at, (slot * 0.66).min(26.0), &frame.y, &l.rungs, &title);
        }
        svg.text([at, top + PLOT + 15.0], &bare(p.tolerance), "tick", Anchor::Middle);
    }
}
