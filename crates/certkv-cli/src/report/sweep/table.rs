//! A sweep as a table for a terminal.
use super::data::{Sweep, repaired, skipped};
use crate::report::table::{TextTable, percent};

/// Provenance, then one line per format and tolerance.
pub fn render(sweep: &Sweep) -> String {
    let s = &sweep.setting;
    let mut table = TextTable::new(&[
        "format",
        "tolerance",
        "read/dense",
        "originals",
        "values skipped",
        "repaired",
        "dense rungs",
        "right",
        "bits/byte",
        "Δ",
    ]);
    for curve in &sweep.curves {
        for p in &curve.points {
            let all: u64 = p.rungs.iter().fold(0, |sum, n| sum.saturating_add(*n));
            let dense = p.rungs[3].saturating_add(p.rungs[4]) as f64 / all.max(1) as f64;
            table.row(vec![
                curve.format.clone(),
                percent(p.tolerance),
                format!("{:.3}", p.read.total()),
                format!("{:.3}", p.read.originals()),
                percent(skipped(p)),
                percent(repaired(&p.rungs)),
                percent(dense),
                format!("{}/{}", p.right, p.prompts),
                p.bits.map_or_else(|| "–".into(), |b| format!("{b:.4}")),
                p.delta.map_or_else(|| "–".into(), |d| format!("{:+.2}%", 100.0 * d)),
            ]);
        }
    }
    format!(
        "Curves of {}, {} layers, context {}; recorded by certkv {} on {} with {} threads in {:.0} s:\n  {}\n\n{}",
        s.model,
        s.layers,
        sweep.work.context,
        s.version,
        sweep.machine,
        s.threads,
        s.seconds,
        sweep.command,
        table.render()
    )
}
