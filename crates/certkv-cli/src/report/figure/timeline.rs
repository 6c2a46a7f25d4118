//! Which rungs the head-steps needed, along the run. The packed rung is the empty space above.
use super::words;
use crate::report::{
    data::{ReportData, Timeline},
    svg::{Anchor, Scale, Svg},
};

const WIDTH: f64 = 1080.0;
const HEIGHT: f64 = 168.0;
const NAMES: [&str; 5] = ["packed", "more keys", "exact values", "dense head", "dense layer"];
/// Lines shown.
const SHOWN: usize = 4;

/// One strip per mode; nothing without steps.
pub fn draw(data: &ReportData) -> String {
    let lines: Vec<&Timeline> = data.timelines.iter().filter(|t| !t.bins.is_empty()).take(SHOWN).collect();
    let mut html = String::new();
    for (i, line) in lines.iter().enumerate() {
        let Some(row) = data.modes.get(line.mode) else { continue };
        html += &strip(line, &title(row), row.rungs, i == 0);
    }
    html
}

fn title(row: &crate::report::data::ModeRow) -> String {
    let tolerance = row.tolerance.map_or_else(String::new, |t| format!(" at {}", words::percent(t)));
    format!("{}{}, {}{tolerance}", if row.twin { "twin, " } else { "" }, words::short(row), row.format)
}

/// A round number at or above `x`, for the top of an axis.
fn round_up(x: f64) -> f64 {
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0].into_iter().find(|&s| s >= x).unwrap_or(1.0)
}

fn strip(line: &Timeline, title: &str, rungs: [u64; 5], legend: bool) -> String {
    let off = line.bins.iter().map(|b| b[1..].iter().sum::<f64>()).fold(0.0, f64::max);
    let top = round_up(off);
    let (left, right, upper, lower) = (52.0, WIDTH - 190.0, 30.0, HEIGHT - 28.0);
    let y = Scale::linear([0.0, top], [lower, upper]);
    let mut svg = Svg::new(WIDTH, HEIGHT, "Rungs along the decode steps");
    svg.text([left, 14.0], title, "strong", Anchor::Start);
    for share in [0.0, 0.5, 1.0] {
        svg.line([left, y.at(top * share)], [right, y.at(top * share)], "grid");
        svg.text([left - 8.0, y.at(top * share) + 4.0], &words::percent(top * share), "tick", Anchor::End);
    }
    let width = (right - left) / line.bins.len().max(1) as f64;
    for (i, bin) in line.bins.iter().enumerate() {
        let mut sum = 0.0;
        let first = i as f64 * line.steps_per_bin;
        let tip = format!(
            "from step {first:.0}: {}",
            (0..5)
                .filter(|&r| bin[r] > 0.0)
                .map(|r| format!("{} {}", NAMES[r], words::percent(bin[r])))
                .collect::<Vec<_>>()
                .join(", ")
        );
        for (r, share) in bin.iter().enumerate().skip(1) {
            let (from, to) = (y.at(sum), y.at(sum + share));
            let x = left + i as f64 * width;
            svg.rect(
                [x, to, width.max(1.2) - if width > 4.0 { 0.8 } else { 0.0 }, from - to],
                0.0,
                &format!("r{r}"),
                "",
                "",
            );
            sum += share;
        }
        svg.rect([left + i as f64 * width, upper, width, lower - upper], 0.0, "ghost", "", &tip);
    }
    let steps = line.steps_per_bin * line.bins.len() as f64;
    svg.text([left, lower + 18.0], "first decode step", "tick", Anchor::Start);
    svg.text([right, lower + 18.0], &format!("step {steps:.0}"), "tick", Anchor::End);
    let all: u64 = rungs.iter().sum();
    for r in 0..5 {
        let at = upper + 12.0 + r as f64 * 20.0;
        let share = words::percent(rungs[r] as f64 / all.max(1) as f64);
        if legend || rungs[r] > 0 {
            svg.rect([right + 22.0, at - 9.0, 11.0, 11.0], 2.0, &format!("r{r}"), "", "");
            svg.text([right + 40.0, at], NAMES[r], "label", Anchor::Start);
            svg.text([WIDTH, at], &share, "label", Anchor::End);
        }
    }
    svg.finish()
}
