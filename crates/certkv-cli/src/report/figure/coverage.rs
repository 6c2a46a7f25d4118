//! How much of the attention mass the heaviest blocks hold.
use super::words;
use crate::report::{
    data::{Coverage, ReportData},
    svg::{Anchor, Scale, Svg},
};

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 330.0;

/// Mass against share of blocks, with the band that holds eight of ten head-steps; nothing without recomputed outputs.
pub fn draw(data: &ReportData) -> String {
    // The twin computes the same function: its masses are the model's.
    let Some(c) = data.coverage.first().filter(|c| c.shares.len() > 1) else { return String::new() };
    let mut svg = Svg::new(WIDTH, HEIGHT, "Attention mass of the heaviest blocks");
    let (bottom, top) = (HEIGHT - 40.0, 16.0);
    let x = Scale::log([c.shares[0], 1.0], [46.0, WIDTH - 16.0]);
    let y = Scale::linear([0.0, 1.0], [bottom, top]);
    for v in [0.0, 0.25, 0.5, 0.75, 1.0] {
        svg.line([x.at(0.0), y.at(v)], [x.at(1.0), y.at(v)], "grid");
        svg.text([x.at(0.0) - 8.0, y.at(v) + 4.0], &words::percent(v), "tick", Anchor::End);
    }
    for v in [0.002, 0.01, 0.05, 0.2, 1.0] {
        svg.text([x.at(v), bottom + 18.0], &words::percent(v), "tick", Anchor::Middle);
    }
    svg.text([x.at(0.045), bottom + 34.0], "heaviest blocks, share of all", "tick", Anchor::Middle);
    let points =
        |values: &[f64]| -> Vec<[f64; 2]> { c.shares.iter().zip(values).map(|(s, v)| [x.at(*s), y.at(*v)]).collect() };
    let band: Vec<[f64; 2]> = points(&c.high).into_iter().chain(points(&c.low).into_iter().rev()).collect();
    svg.path(&band, "cert-band", "");
    svg.path(&points(&c.median), "cert-line", "");
    for (i, at) in points(&c.median).into_iter().enumerate() {
        let tip = format!(
            "the heaviest {} of blocks hold {} of the mass in the median, {} to {} in eight of ten head-steps",
            words::percent(c.shares[i]),
            words::percent(c.median[i]),
            words::percent(c.low[i]),
            words::percent(c.high[i])
        );
        svg.dot(at, 3.0, "cert", "", &tip);
    }
    if let Some((share, mass)) = remark(c) {
        let at = [x.at(share), y.at(mass)];
        svg.dot(at, 5.5, "ring", "", "");
        // Towards the right edge the words end at the edge instead of starting at the dot.
        let (x, anchor) = if share > 0.04 { (WIDTH - 18.0, Anchor::End) } else { (at[0] + 12.0, Anchor::Start) };
        svg.text([x, at[1] + 26.0], &format!("{} of blocks", words::percent(share)), "strong cert-ink", anchor);
        svg.text([x, at[1] + 43.0], &format!("hold {} of the mass", words::percent(mass)), "label", anchor);
    }
    svg.finish()
}

/// The first share that covers nine tenths in the median.
fn remark(c: &Coverage) -> Option<(f64, f64)> {
    c.shares.iter().zip(&c.median).find(|(_, m)| **m >= 0.9).map(|(s, m)| (*s, *m))
}
