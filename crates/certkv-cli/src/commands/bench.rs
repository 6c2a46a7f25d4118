//! `certkv bench`: decode attention of one layer beside a plain memory read, in one run.
use super::{
    args::{Common, bounded, tolerance},
    help,
};
use crate::{
    bench::{self, Shape},
    demo::defaults,
    engine::CpuEngine,
    error::CliError,
    eval::{Mode, Policy},
    gpu::Device,
    output::print,
};
use std::io::Write;

/// Runs the benchmark.
///
/// # Errors
/// [`CliError`] for bad options or when memory is short.
pub fn run(mut parser: lexopt::Parser, out: &mut dyn Write) -> Result<(), CliError> {
    use lexopt::prelude::*;
    let mut common = Common::default();
    let mut shape = Shape::default();
    let (mut contexts, mut formats, mut limits) = (Vec::new(), Vec::new(), Vec::new());
    let mut repeats = 9;
    while let Some(arg) = parser.next()? {
        let name = match arg {
            Short('h') | Long("help") => return print(out, help::BENCH),
            Long(name) => name.to_owned(),
            other => return Err(other.unexpected().into()),
        };
        match name.as_str() {
            "context" => contexts.push(bounded(&mut parser, "--context", 16, 1 << 20)?),
            "format" => formats.push(parser.value()?.string()?.parse()?),
            "tolerance" => limits.push(tolerance(&mut parser)?),
            "heads" => shape.heads = bounded(&mut parser, "--heads", 1, 1024)?,
            "kv-heads" => shape.kv_heads = bounded(&mut parser, "--kv-heads", 1, 1024)?,
            "head-dim" => shape.head_dim = bounded(&mut parser, "--head-dim", 1, 1024)?,
            "repeats" => repeats = bounded(&mut parser, "--repeats", 1, 10_000)?,
            other => {
                if !common.take(other, &mut parser)? {
                    return Err(CliError::Usage(format!("bench: there is no option --{other}")));
                }
            }
        }
    }
    if common.device != Device::Cpu {
        let why = "bench: measures the CPU; the program gpu_bench (an example of certkv-kernel) measures a GPU";
        return Err(CliError::Usage(why.into()));
    }
    if !shape.heads.is_multiple_of(shape.kv_heads) {
        return Err(CliError::Usage("bench: --kv-heads must divide --heads".into()));
    }
    if contexts.is_empty() {
        contexts = vec![2048, 8192, 32768];
    }
    if formats.is_empty() {
        formats.push(defaults::FORMAT.parse()?);
    }
    if limits.is_empty() {
        limits.push(defaults::TOLERANCE);
    }
    let threads = common.threads.unwrap_or(1);
    let mut modes = vec![Mode::dense(false)];
    for format in formats {
        let mode = |policy| Mode::of(policy, format, false);
        modes.push(mode(Policy::Packed));
        modes.extend(limits.iter().map(|&tolerance| mode(Policy::Certified { tolerance })));
        modes.push(mode(Policy::Seed000));
    }
    let plan = bench::Plan { shape, contexts, modes, repeats, threads, seed: common.seed_or_default() };
    // Calibrated on the rows that are measured: there is no model that a file could be of.
    let found = bench::calibrations(&plan).map_err(CliError::refused)?;
    let mut engine = CpuEngine::new(threads).calibrated(found);
    let rows = bench::run(&plan, &mut engine, &common.progress())?;
    if common.json {
        let text = serde_json::to_string_pretty(&rows).map_err(|e| CliError::Internal(Box::new(e)))?;
        print(out, &(text + "\n"))
    } else {
        print(out, &bench::render(&plan, &rows))
    }
}
