//! The table that a terminal shows.
use super::data::{ModeRow, ReportData};
use crate::stats::Quantiles;

/// Columns of text, the first left-aligned, the others right-aligned.
#[derive(Debug, Clone, Default)]
pub struct TextTable {
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// A table with a heading.
    pub fn new(heading: &[&str]) -> Self {
        Self { rows: vec![heading.iter().map(|s| (*s).to_owned()).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The text, two spaces between columns, a rule under the heading.
    pub fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| self.rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for (i, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (c, cell) in row.iter().enumerate() {
                let pad = " ".repeat(widths[c] - cell.chars().count());
                line += &if c == 0 { format!("{cell}{pad}") } else { format!("  {pad}{cell}") };
            }
            text += line.trim_end();
            text.push('\n');
            if i == 0 {
                text += &"─".repeat(widths.iter().sum::<usize>() + 2 * columns.saturating_sub(1));
                text.push('\n');
            }
        }
        text
    }
}

/// A share as a percentage with sensible digits.
pub fn percent(x: f64) -> String {
    match x * 100.0 {
        p if !p.is_finite() => "–".into(),
        0.0 => "0%".into(),
        p if p.abs() > 999.0 => ">999%".into(),
        p if p.abs() < 0.095 => format!("{p:.2}%"),
        p if p.abs() < 9.95 && (p - p.round()).abs() > 1e-9 => format!("{p:.1}%"),
        p => format!("{p:.0}%"),
    }
}

fn pair(q: &Quantiles, show: impl Fn(f64) -> String) -> String {
    if q.count == 0 { "–".into() } else { format!("{} / {}", show(q.median), show(q.p99)) }
}

/// A p-value in few characters.
pub fn p_value(p: f64) -> String {
    if p < 0.001 { "<0.001".into() } else { format!("{p:.3}") }
}

fn quality(row: &ModeRow) -> Vec<String> {
    let all = row.text.iter().find(|t| t.part == "all");
    let o = &row.overall;
    let none = || "–".to_owned();
    let delta = |d: [f64; 3]| format!("{:+.1} [{:+.1}, {:+.1}]", 100.0 * d[0], 100.0 * d[1], 100.0 * d[2]);
    vec![
        row.name.clone(),
        if o.n == 0 { none() } else { format!("{:.1}%", 100.0 * o.accuracy()) },
        format!("{}/{}", o.right, o.n),
        o.delta.map_or_else(none, delta),
        if o.delta.is_some() { p_value(o.p_value) } else { none() },
        all.map_or_else(none, |t| format!("{:.4}", t.bits)),
        all.and_then(|t| t.delta).map_or_else(none, |d| format!("{:+.2}%", 100.0 * d)),
        format!("{:.0}", row.bytes_per_token),
        format!("{:.3}", row.read_share),
        format!("{:.0}", row.tokens_per_second),
    ]
}

fn certificates(row: &ModeRow) -> Vec<String> {
    let rungs: u64 = row.rungs.iter().sum();
    let mut cells = vec![row.name.clone()];
    cells.extend(row.rungs.iter().map(|&n| percent(n as f64 / rungs.max(1) as f64)));
    cells.extend([
        percent(row.certified),
        pair(&row.e_key, percent),
        pair(&row.e_val, percent),
        pair(&row.true_error, percent),
        pair(&row.tightness, |x| format!("{x:.0}")),
        row.violations.to_string(),
    ]);
    cells
}

/// The modes twice, one a line: what they give and cost, and what their certificates say.
pub fn render(data: &ReportData) -> String {
    let mut first = TextTable::new(&[
        "mode",
        "right",
        "",
        "Δ points [95%]",
        "McNemar p",
        "bits/byte",
        "Δ",
        "bytes/token",
        "read/dense",
        "tokens/s",
    ]);
    let mut second = TextTable::new(&[
        "mode",
        "packed",
        "+keys",
        "+values",
        "head",
        "layer",
        "certified",
        "E_key",
        "E_val",
        "true error",
        "tightness",
        "violations",
    ]);
    for row in &data.modes {
        first.row(quality(row));
        second.row(certificates(row));
    }
    let checked: usize = data.modes.iter().map(|m| m.tightness.count).sum();
    format!(
        "{}\n{}\nMedian / 99th percentile; E_key, E_val and true error are shares of ||O||, tightness is bound / true error.\n\
         {checked} outputs were recomputed in double precision and compared with their bound.\n",
        first.render(),
        second.render()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut t = TextTable::new(&["a", "bb"]);
        t.row(vec!["long name".into(), "1".into()]);
        t.row(vec!["x".into(), "123".into()]);
        assert_eq!(t.render(), "a           bb\n──────────────\nlong name    1\nx          123\n");
    }

    #[test]
    fn percentages_keep_two_digits() {
        let shown = [0.0, 0.0004, 0.021, 0.05, 0.5, f64::NAN].map(percent);
        assert_eq!(shown, ["0%", "0.04%", "2.1%", "5%", "50%", "–"]);
    }
}
