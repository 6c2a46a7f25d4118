//! From outcomes to curves, and from curves to a file.
use super::data::{Curve, CurvePoint, LayerPoint, ReadShare, SCHEMA, Sweep, SweepWork};
use crate::{
    eval::{ModeOutcome, Outcome, Plan, gather::LayerSums},
    report::data::ReportData,
};

/// Six digits after the point: far below what a sweep resolves, and short in a file.
fn short(x: f64) -> f64 {
    (x * 1e6).round() / 1e6
}

fn share(part: u64, of: u64) -> f64 {
    short(part as f64 / of.max(1) as f64)
}

fn read([packed, scratch, host]: [u64; 3], dense: u64) -> ReadShare {
    ReadShare { packed: share(packed, dense), scratch: share(scratch, dense), host: share(host, dense) }
}

fn layer(sums: &LayerSums) -> LayerPoint {
    LayerPoint {
        read: read(sums.read, sums.read_dense),
        rungs: sums.rungs,
        promoted_keys: share(sums.promoted_keys, sums.blocks),
        promoted_values: share(sums.promoted_values, sums.blocks),
        skipped_values: share(sums.skipped_values, sums.blocks),
    }
}

fn point(outcome: &Outcome, m: &ModeOutcome, tolerance: f64) -> CurvePoint {
    let (right, prompts) = m.accuracy(None);
    let bits = m.bits_per_byte(None);
    let dense = outcome.baseline(&m.mode).and_then(|b| b.bits_per_byte(None));
    CurvePoint {
        tolerance,
        read: read(m.gathered.read, m.gathered.read_dense),
        rungs: m.gathered.rungs,
        right,
        prompts,
        bits: bits.map(short),
        delta: bits.zip(dense).filter(|(_, d)| *d > 0.0).map(|(b, d)| short(b / d - 1.0)),
        layers: m.gathered.layers.iter().map(layer).collect(),
    }
}

/// Certified modes of the model by format, formats in the order asked for, tolerances rising.
pub fn curves(outcome: &Outcome) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for m in outcome.modes.iter().filter(|m| !m.mode.twin) {
        let Some(tolerance) = m.mode.tolerance() else { continue };
        let format = m.mode.written();
        let index = curves.iter().position(|c| c.format == format).unwrap_or_else(|| {
            curves.push(Curve { format, ..Curve::default() });
            curves.len() - 1
        });
        let curve = &mut curves[index];
        curve.bytes_per_token = curve.bytes_per_token.max(m.footprint.per_token().round());
        if curve.points.iter().all(|p| p.tolerance != tolerance) {
            curve.points.push(point(outcome, m, tolerance));
        }
    }
    for curve in &mut curves {
        curve.points.sort_by(|a, b| a.tolerance.total_cmp(&b.tolerance));
    }
    curves
}

/// The sweep of a finished run as a file keeps it.
pub fn sweep(plan: &Plan, data: &ReportData, command: String) -> Sweep {
    let mut tasks: Vec<(String, u64)> = Vec::new();
    for prompt in &plan.base.prompts {
        match tasks.iter_mut().find(|(name, _)| *name == prompt.task) {
            Some((_, n)) => *n += 1,
            None => tasks.push((prompt.task.clone(), 1)),
        }
    }
    let mut setting = data.setting.clone();
    setting.seconds = setting.seconds.round();
    Sweep {
        schema: SCHEMA,
        command,
        machine: machine(),
        setting,
        work: SweepWork {
            tasks,
            context: data.setting.longest,
            windows: plan.base.windows.len(),
            scored: plan.base.windows.iter().map(|w| w.scored).sum(),
        },
        curves: data.curves.clone(),
    }
}

/// This machine in words: the kernel's instruction set, and the processor's name where the system tells it.
pub fn machine() -> String {
    let arch = certkv_kernel::Arch::detect().name();
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|l| l.strip_prefix("model name")).and_then(|l| l.split_once(':'));
    match model {
        Some((_, name)) => format!("{}, {arch} kernels", name.trim()),
        None => format!("{}, {arch} kernels", std::env::consts::ARCH),
    }
}
