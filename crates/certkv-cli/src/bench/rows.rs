//! Results of the benchmark.
use super::run::Plan;
use crate::report::table::{TextTable, percent};
use serde::Serialize;

/// One mode at one context.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Row {
    /// Mode in words.
    pub mode: String,
    /// Tokens.
    pub context: usize,
    /// Milliseconds of a step: append and attend, median.
    pub milliseconds: f64,
    /// The fastest step.
    pub fastest: f64,
    /// Milliseconds in which a plain read takes in the bytes that the step read.
    pub floor: f64,
    /// Bytes a second of the plain read, measured beside this row.
    pub bandwidth: f64,
    /// Bytes read over those of dense half precision.
    pub read_share: f64,
    /// Dense milliseconds over these.
    pub against_dense: f64,
    /// Share of head-steps that left the packed rung.
    pub repaired: f64,
}

/// The rows as a table.
pub fn render(plan: &Plan, rows: &[Row]) -> String {
    let mut table = TextTable::new(&[
        "mode",
        "context",
        "ms/step",
        "fastest",
        "floor",
        "of floor",
        "read",
        "against dense",
        "repaired",
        "GB/s read",
    ]);
    for r in rows {
        table.row(vec![
            r.mode.clone(),
            r.context.to_string(),
            format!("{:.3}", r.milliseconds),
            format!("{:.3}", r.fastest),
            format!("{:.3}", r.floor),
            format!("{:.2}x", r.milliseconds / r.floor),
            format!("{:.3}", r.read_share),
            format!("{:.2}x", r.against_dense),
            percent(r.repaired),
            format!("{:.1}", r.bandwidth / 1e9),
        ]);
    }
    let s = plan.shape;
    format!(
        "One layer, {} query and {} key/value heads of {} channels, one query, {} threads, {} steps, data rotated past the caches.\n\n{}",
        s.heads,
        s.kv_heads,
        s.head_dim,
        plan.threads,
        plan.repeats,
        table.render()
    )
}
