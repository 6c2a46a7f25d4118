//! What a tolerance costs: bytes read by format, and where the promotions fall.
use super::words;
use crate::report::{
    data::{Curve, ReportData},
    svg::{Anchor, Scale, Svg},
};

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 330.0;
const TICKS: [f64; 7] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5];

/// Bytes read against tolerance, one line per format; nothing without certified modes.
pub fn bytes(data: &ReportData) -> String {
    let points = || data.curves.iter().flat_map(|c| &c.points);
    if points().next().is_none() {
        return String::new();
    }
    let low = points().map(|p| p.tolerance).fold(f64::INFINITY, f64::min).min(0.02);
    let high = points().map(|p| p.tolerance).fold(0.0, f64::max).max(0.1);
    let most = points().map(|p| p.read_share).fold(1.0, f64::max) * 1.04;
    // The floor of the axis is a round number below the cheapest point: differences between formats are what is asked.
    let least = (points().map(|p| p.read_share).fold(1.0, f64::min) * 10.0 - 0.5).floor().max(0.0) / 10.0;
    let mut svg = Svg::new(WIDTH, HEIGHT, "Bytes read against tolerance");
    let (bottom, top) = (HEIGHT - 40.0, 16.0);
    let x = Scale::log([low, high], [46.0, WIDTH - 122.0]);
    let y = Scale::linear([least, most], [bottom, top]);
    for v in (0..=10).map(|i| f64::from(i) / 10.0).filter(|v| *v >= least) {
        svg.line([x.at(low), y.at(v)], [x.at(high), y.at(v)], if v == 1.0 { "limit" } else { "grid" });
        svg.text([x.at(low) - 8.0, y.at(v) + 4.0], &format!("{v:.2}"), "tick", Anchor::End);
    }
    svg.text([x.at(high), y.at(1.0) - 6.0], "dense", "label", Anchor::End);
    for t in TICKS.into_iter().filter(|t| (low..=high).contains(t)) {
        svg.text([x.at(t), bottom + 18.0], &words::percent(t), "tick", Anchor::Middle);
    }
    svg.text(
        [(x.at(low) + x.at(high)) / 2.0, bottom + 34.0],
        "tolerance, share of the output's norm",
        "tick",
        Anchor::Middle,
    );
    let mut labels: Vec<(f64, usize)> = Vec::new();
    for (i, curve) in data.curves.iter().enumerate() {
        let line: Vec<[f64; 2]> = curve.points.iter().map(|p| [x.at(p.tolerance), y.at(p.read_share)]).collect();
        svg.path(&line, "series", &format!("stroke:{}", words::series(i)));
        for (p, at) in curve.points.iter().zip(&line) {
            let tip = format!(
                "{} at {}: reads {:.3} of dense, {} of head-steps repaired, {} dense, {} right",
                curve.format,
                words::percent(p.tolerance),
                p.read_share,
                words::percent(p.repaired_share),
                words::percent(p.dense_share),
                words::percent(p.accuracy)
            );
            svg.dot(*at, 4.0, "", &format!("fill:{}", words::series(i)), &tip);
        }
        labels.push((line.last().map_or(bottom, |p| p[1]), i));
    }
    labels.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut free = 0.0;
    for (at, i) in labels {
        let at = (at + 4.0).max(free);
        let style = format!("fill:{}", words::series(i));
        svg.text_in([x.at(high) + 10.0, at], &data.curves[i].format, "strong", Anchor::Start, &style);
        free = at + 16.0;
    }
    svg.finish()
}

/// Promoted share of blocks by layer and tolerance, one grid per format; nothing without certified modes.
pub fn layers(data: &ReportData) -> String {
    let most = data.curves.iter().flat_map(|c| &c.points).flat_map(|p| &p.promoted).copied().fold(0.0, f64::max);
    let mut html = String::new();
    for (i, curve) in data.curves.iter().enumerate().filter(|(_, c)| !c.points.is_empty()) {
        html += &format!("<div>{}</div>", grid(curve, i, most));
    }
    if html.is_empty() { html } else { format!("<div class=\"trio\">{html}</div>") }
}

fn grid(curve: &Curve, i: usize, most: f64) -> String {
    let layers = curve.points.iter().map(|p| p.promoted.len()).max().unwrap_or(0).max(1);
    let (left, upper, height) = (52.0, 46.0, 26.0);
    let width = (290.0 / layers as f64).min(60.0);
    let mut svg = Svg::new(350.0, upper + height * curve.points.len() as f64 + 10.0, "Promoted blocks by layer");
    svg.text_in([left, 14.0], &curve.format, "strong", Anchor::Start, &format!("fill:{}", words::series(i)));
    svg.text([left, 36.0], "layer 0", "tick", Anchor::Start);
    svg.text([left + width * layers as f64, 36.0], &format!("{}", layers - 1), "tick", Anchor::End);
    for (row, p) in curve.points.iter().enumerate() {
        let y = upper + row as f64 * height;
        svg.text([left - 8.0, y + 17.0], &words::percent(p.tolerance), "tick", Anchor::End);
        for (l, share) in p.promoted.iter().enumerate() {
            let depth = if most > 0.0 { 100.0 * (share / most).sqrt() } else { 0.0 };
            let style = format!("fill:color-mix(in oklab,{} {depth:.0}%,var(--void))", words::series(i));
            let tip = format!(
                "layer {l} at {}: {} of blocks read as originals",
                words::percent(p.tolerance),
                words::percent(*share)
            );
            svg.rect([left + l as f64 * width, y, width - 1.5, height - 1.5], 2.0, "", &style, &tip);
            if width > 38.0 {
                let class = if depth > 60.0 { "tick on" } else { "tick off" };
                svg.text([left + (l as f64 + 0.5) * width, y + 17.0], &words::percent(*share), class, Anchor::Middle);
            }
        }
    }
    svg.finish()
}
