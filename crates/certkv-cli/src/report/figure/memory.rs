//! Device bytes of a token by tier, beside dense; originals on the host below each bar.
use super::words;
use crate::report::{
    data::{Kind, ReportData},
    svg::{Anchor, Scale, Svg},
};

const WIDTH: f64 = 1080.0;
const LEFT: f64 = 250.0;
const RIGHT: f64 = 170.0;
const ROW: f64 = 46.0;

/// The bars; nothing when no bytes are known.
pub fn draw(data: &ReportData) -> String {
    let dense = data.setting.dense_bytes_per_token as f64;
    // Modes of one format and kind hold the same bytes up to scratch; the twin's add a row only for another format.
    let mut rows = Vec::new();
    for m in data.modes.iter().filter(|m| m.bytes_per_token > 0.0) {
        if !rows.iter().any(|r: &&crate::report::data::ModeRow| r.kind == m.kind && r.format == m.format) {
            rows.push(m);
        }
    }
    if rows.is_empty() || dense <= 0.0 {
        return String::new();
    }
    let most = rows.iter().map(|m| m.bytes_per_token.max(m.memory.host)).fold(dense, f64::max);
    let x = Scale::linear([0.0, most], [LEFT, WIDTH - RIGHT]);
    let height = 44.0 + ROW * rows.len() as f64;
    let mut svg = Svg::new(WIDTH, height, "Bytes of a token by tier");
    let mut key = LEFT;
    for (class, name) in [
        ("packed", "packed pages"),
        ("scratch", "16-bit in device memory"),
        ("tables", "tables"),
        ("host", "16-bit originals on the host"),
    ] {
        svg.rect([key, 4.0, 12.0, 12.0], 2.0, class, "", "");
        svg.text([key + 18.0, 14.0], name, "label", Anchor::Start);
        key += 46.0 + 7.0 * name.len() as f64;
    }
    for (i, m) in rows.iter().enumerate() {
        let y = 34.0 + i as f64 * ROW;
        let tolerance = m.tolerance.map_or_else(String::new, |t| format!(" {}", words::percent(t)));
        svg.text(
            [0.0, y + 12.0],
            &format!("{}{tolerance}", words::short(m)),
            &format!("strong {}-ink", words::class(m.kind)),
            Anchor::Start,
        );
        let format = if m.kind == Kind::Dense { "f16" } else { &m.format };
        svg.text([0.0, y + 28.0], format, "label", Anchor::Start);
        let mut from = 0.0;
        for (class, bytes) in [("packed", m.memory.packed), ("scratch", m.memory.scratch), ("tables", m.memory.tables)]
        {
            let tip = format!("{class}: {bytes:.0} bytes a token");
            svg.rect([x.at(from), y, x.at(from + bytes) - x.at(from), 18.0], 0.0, class, "", &tip);
            from += bytes;
        }
        let host = format!("host: {:.0} bytes a token", m.memory.host);
        svg.rect([x.at(0.0), y + 21.0, x.at(m.memory.host) - x.at(0.0), 5.0], 0.0, "host", "", &host);
        svg.text([WIDTH - RIGHT + 12.0, y + 14.0], &format!("{:.0} B", m.bytes_per_token), "strong", Anchor::Start);
        svg.text([WIDTH, y + 14.0], &format!("{:.2} of dense", m.bytes_per_token / dense), "label", Anchor::End);
    }
    svg.line([x.at(dense), 24.0], [x.at(dense), height - 8.0], "limit");
    svg.finish()
}
