//! Rungs of the ladder by tolerance, stacked; what is not drawn was accepted as it was.
use super::{View, words};
use crate::report::{
    svg::{Anchor, Scale, Svg},
    sweep::{CurvePoint, data::repaired},
};

const WIDTH: f64 = 520.0;
const COLUMNS: usize = 3;
pub(super) const NAMES: [&str; 5] = ["packed", "more keys", "exact values", "dense head", "dense layer"];

/// A round share at or above `x`, for the top of an axis.
pub(super) fn round_up(x: f64) -> f64 {
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0].into_iter().find(|&s| s >= x).unwrap_or(1.0)
}

/// Shares of the rungs; zeros without head-steps.
fn shares(rungs: &[u64; 5]) -> [f64; 5] {
    let all: f64 = rungs.iter().map(|n| *n as f64).sum();
    rungs.map(|n| n as f64 / all.max(1.0))
}

/// One bar of width `width` centred at `x`.
pub(super) fn bar(svg: &mut Svg, x: f64, width: f64, y: &Scale, rungs: &[u64; 5], title: &str) {
    let shares = shares(rungs);
    let mut sum = 0.0;
    for (r, share) in shares.iter().enumerate().skip(1).filter(|(_, s)| **s > 0.0) {
        let (from, to) = (y.at(sum), y.at(sum + share));
        svg.rect([x - width / 2.0, to, width, from - to], 0.0, &format!("r{r}"), "", "");
        sum += share;
    }
    let parts: Vec<String> =
        (0..5).filter(|&r| rungs[r] > 0).map(|r| format!("{} {}", NAMES[r], words::percent(shares[r]))).collect();
    let tip = format!("{title}: {}", parts.join(", "));
    // The whole column answers, not only the part that is filled.
    let (low, high) = (y.at(f64::NEG_INFINITY), y.at(f64::INFINITY));
    svg.rect([x - width / 2.0, high, width, low - high], 0.0, "ghost", "", &tip);
}

/// Tolerances as numbers of percent, which fit under narrow bars.
pub(super) fn bare(t: f64) -> String {
    words::percent(t).trim_end_matches('%').to_owned()
}

/// One panel per format.
pub(super) fn draw(view: &View<'_>) -> String {
    let tolerances = view.tolerances();
    let top = round_up(view.points().map(|p| repaired(&p.rungs)).fold(0.0, f64::max));
    let rows = view.curves.len().div_ceil(COLUMNS).max(1);
    let (left, head) = (44.0, 40.0);
    let (width, gap) = ((WIDTH - left) / COLUMNS as f64, 16.0);
    let pitch = if rows > 1 { 136.0 } else { 250.0 };
    let mut svg = Svg::new(WIDTH, head + pitch * rows as f64 + 20.0, "Rungs by format and tolerance");
    svg.text([0.0, 14.0], "Head-steps that needed more than the codes", "strong", Anchor::Start);
    key(&mut svg, view);
    for (i, curve) in view.curves.iter().enumerate() {
        let (column, row) = (i % COLUMNS, i / COLUMNS);
        let x = left + column as f64 * width;
        let (upper, lower) = (head + row as f64 * pitch + 22.0, head + (row + 1) as f64 * pitch - 22.0);
        let y = Scale::linear([0.0, top], [lower, upper]);
        let class = if i == view.focus { "strong" } else { "name" };
        svg.text_in([x, upper - 8.0], &curve.format, class, Anchor::Start, &format!("fill:{}", words::series(i)));
        for share in [0.0, 0.5, 1.0] {
            svg.line([x, y.at(top * share)], [x + width - gap, y.at(top * share)], "grid");
            if column == 0 {
                svg.text([x - 8.0, y.at(top * share) + 4.0], &words::percent(top * share), "tick", Anchor::End);
            }
        }
        let slot = (width - gap) / tolerances.len().max(1) as f64;
        for (t, &tolerance) in tolerances.iter().enumerate() {
            let at = x + (t as f64 + 0.5) * slot;
            svg.text([at, lower + 16.0], &bare(tolerance), "tick", Anchor::Middle);
            let here = |p: &&CurvePoint| p.tolerance == tolerance;
            if let Some(p) = curve.points.iter().find(here) {
                let title = format!("{} at {}", curve.format, words::percent(tolerance));
                bar(&mut svg, at, (slot * 0.66).min(26.0), &y, &p.rungs, &title);
            }
        }
    }
    let under = head + pitch * rows as f64 + 14.0;
    svg.text([left + (WIDTH - left) / 2.0, under], "tolerance, % of the output's norm", "tick", Anchor::Middle);
    svg.finish()
}

/// The rungs that occur.
fn key(svg: &mut Svg, view: &View<'_>) {
    let mut x = 0.0;
    for r in (1..5).filter(|&r| r < 3 || view.points().any(|p| p.rungs[r] > 0)) {
        svg.rect([x, 26.0, 11.0, 11.0], 2.0, &format!("r{r}"), "", "");
        svg.text([x + 17.0, 36.0], NAMES[r], "label", Anchor::Start);
        x += 38.0 + 6.6 * NAMES[r].len() as f64;
    }
}
