//! How far outputs were from exact attention, against what their certificates said.
use super::words;
use crate::report::{
    data::{Kind, ModeRow, ReportData},
    svg::{Anchor, Scale, Svg},
};

const WIDTH: f64 = 1080.0;
const HEIGHT: f64 = 330.0;
const RANGE: [f64; 2] = [1e-4, 2.0];

/// One panel for the model and one for its twin; nothing without recomputed outputs.
pub fn draw(data: &ReportData) -> String {
    let panels: Vec<(&str, Vec<&ModeRow>)> = [(true, "outlier twin"), (false, "model")]
        .into_iter()
        .map(|(twin, name)| (name, picked(data, twin)))
        .filter(|(_, rows)| !rows.is_empty())
        .collect();
    if panels.is_empty() {
        return String::new();
    }
    let mut svg = Svg::new(WIDTH, HEIGHT, "Error of attention outputs by percentile");
    let gap = 60.0;
    let width = (WIDTH - gap * (panels.len() - 1) as f64) / panels.len() as f64;
    for (i, (name, rows)) in panels.iter().enumerate() {
        panel(&mut svg, i as f64 * (width + gap), width, name, rows);
    }
    svg.finish()
}

/// The naive mode, and the certified one at the tolerance nearest to 5 %: one line each is enough to see.
fn picked(data: &ReportData, twin: bool) -> Vec<&ModeRow> {
    let with =
        |kind: Kind| data.modes.iter().filter(move |m| m.twin == twin && m.kind == kind && m.error_curve.len() == 101);
    let distance = |m: &&ModeRow| m.tolerance.map_or(f64::INFINITY, |t| (t / 0.05).ln().abs());
    let certified = with(Kind::Certified).min_by(|a, b| distance(a).total_cmp(&distance(b)));
    with(Kind::Naive).take(1).chain(certified).collect()
}

fn panel(svg: &mut Svg, left: f64, width: f64, name: &str, rows: &[&ModeRow]) {
    let (top, bottom) = (34.0, HEIGHT - 34.0);
    let x = Scale::linear([0.0, 100.0], [left + 46.0, left + width - 118.0]);
    let y = Scale::log(RANGE, [bottom, top]);
    svg.text([left, 14.0], name, "strong", Anchor::Start);
    for (value, label) in [(1e-4, "0.01%"), (1e-3, "0.1%"), (1e-2, "1%"), (1e-1, "10%"), (1.0, "100%")] {
        svg.line([x.at(0.0), y.at(value)], [x.at(100.0), y.at(value)], "grid");
        svg.text([x.at(0.0) - 8.0, y.at(value) + 4.0], label, "tick", Anchor::End);
    }
    for p in [0.0, 25.0, 50.0, 75.0, 100.0] {
        svg.text([x.at(p), bottom + 18.0], &format!("{p:.0}"), "tick", Anchor::Middle);
    }
    svg.text([x.at(50.0), bottom + 32.0], "percentile of outputs", "tick", Anchor::Middle);
    let line = |curve: &[f64]| -> Vec<[f64; 2]> {
        curve.iter().enumerate().map(|(p, &e)| [x.at(p as f64), y.at(e)]).collect()
    };
    // Labels sit at the right end; a label that would cover its neighbour is moved down.
    let mut labels: Vec<(f64, String, String)> = Vec::new();
    for row in rows {
        let class = words::class(row.kind);
        let points = line(&row.error_curve);
        if row.bound_curve.len() == 101 && row.kind == Kind::Certified {
            let bound = line(&row.bound_curve);
            let area: Vec<[f64; 2]> = bound.iter().copied().chain(points.iter().rev().copied()).collect();
            svg.path(&area, &format!("{class}-band"), "");
            svg.path(&bound, &format!("{class}-thin"), "");
            labels.push((bound[100][1], "its certificate".into(), format!("label {class}-ink")));
        }
        svg.path(&points, &format!("{class}-line"), "");
        let worst = words::percent(row.error_curve[100]);
        labels.push((points[100][1], format!("{}: {worst}", words::short(row)), format!("strong {class}-ink")));
        for p in (0..=100).step_by(5) {
            let tip =
                format!("{}: {p}% of outputs are within {}", words::short(row), words::percent(row.error_curve[p]));
            svg.dot(points[p], 6.0, "ghost", "", &tip);
        }
    }
    if let Some(t) = rows.iter().find_map(|r| r.tolerance) {
        svg.line([x.at(0.0), y.at(t)], [x.at(100.0), y.at(t)], "limit");
        svg.text([x.at(0.0) + 6.0, y.at(t) - 6.0], &format!("tolerance {}", words::percent(t)), "label", Anchor::Start);
    }
    labels.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut free = 0.0;
    for (at, text, class) in labels {
        let at = (at + 4.0).max(free);
        svg.text([x.at(100.0) + 10.0, at], &text, &class, Anchor::Start);
        free = at + 17.0;
    }
}
