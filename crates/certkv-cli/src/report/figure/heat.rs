//! Median bound over the output's norm, layer by head.
use super::words;
use crate::report::{
    data::ReportData,
    svg::{Anchor, Svg},
};

/// Maps shown; more would say the same.
const SHOWN: usize = 3;

/// The maps side by side; nothing without bounds.
pub fn draw(data: &ReportData) -> String {
    let maps: Vec<_> = data
        .heat
        .iter()
        .filter(|h| h.median.iter().flatten().any(Option::is_some))
        .filter_map(|h| Some((h, data.modes.get(h.mode)?)))
        .take(SHOWN)
        .collect();
    let mut html = String::new();
    for (heat, row) in maps {
        let layers = heat.median.len();
        let heads = heat.median.iter().map(Vec::len).max().unwrap_or(0);
        let cell = [(300.0 / heads.max(1) as f64).min(72.0), (240.0 / layers.max(1) as f64).min(36.0)];
        let finite = heat.median.iter().flatten().flatten().copied();
        let top = row.tolerance.unwrap_or_else(|| finite.clone().fold(0.0, f64::max));
        let (left, upper) = (38.0, 44.0);
        let mut svg = Svg::new(350.0, upper + cell[1] * layers as f64 + 54.0, "Median bound by layer and head");
        let title = format!("{}{}", if row.twin { "twin, " } else { "" }, row.format);
        svg.text([left, 14.0], &title, "strong", Anchor::Start);
        svg.text([left, 34.0], "head →", "tick", Anchor::Start);
        for (l, line) in heat.median.iter().enumerate() {
            let y = upper + l as f64 * cell[1];
            if layers <= 12 || l % 4 == 0 {
                let name = if l == 0 { "layer 0".to_owned() } else { l.to_string() };
                let (at, class) = ([left - 6.0, y + cell[1] * 0.5 + 4.0], "tick");
                svg.text(at, name.trim_start_matches("layer "), class, Anchor::End);
            }
            for (h, value) in line.iter().enumerate() {
                let x = left + h as f64 * cell[0];
                let Some(v) = value else {
                    svg.rect([x, y, cell[0] - 1.5, cell[1] - 1.5], 2.0, "void", "", "no bound");
                    continue;
                };
                let share = if top > 0.0 { (v / top).clamp(0.0, 1.0) } else { 0.0 };
                let hue = if *v > top { "--naive" } else { "--cert" };
                let style = format!("fill:color-mix(in oklab,var({hue}) {:.0}%,var(--void))", 8.0 + 92.0 * share);
                let tip = format!("layer {l}, head {h}: median bound {} of the output", words::percent(*v));
                svg.rect([x, y, cell[0] - 1.5, cell[1] - 1.5], 2.0, "", &style, &tip);
                if cell[0] > 40.0 && cell[1] > 16.0 {
                    let class = if share > 0.55 { "tick on" } else { "tick off" };
                    svg.text([x + cell[0] * 0.5, y + cell[1] * 0.5 + 4.0], &words::percent(*v), class, Anchor::Middle);
                }
            }
        }
        let y = upper + cell[1] * layers as f64 + 16.0;
        for i in 0..40 {
            let style =
                format!("fill:color-mix(in oklab,var(--cert) {:.0}%,var(--void))", 8.0 + 92.0 * f64::from(i) / 39.0);
            svg.rect([left + f64::from(i) * 4.0, y, 4.2, 8.0], 0.0, "", &style, "");
        }
        svg.text([left, y + 24.0], "0", "tick", Anchor::Start);
        let end = if row.tolerance.is_some() { "tolerance " } else { "" };
        svg.text([left + 160.0, y + 24.0], &format!("{end}{}", words::percent(top)), "tick", Anchor::End);
        html += &format!("<div>{}</div>", svg.finish());
    }
    if html.is_empty() { html } else { format!("<div class=\"trio\">{html}</div>") }
}
