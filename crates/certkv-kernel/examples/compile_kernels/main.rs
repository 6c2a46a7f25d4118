//! Compiles the GPU kernels for a matrix of variants without a GPU, and holds them to what was recorded: no spilled
//! registers, no more registers than before.
//!
//! ```text
//! compile_kernels [--nvrtc LIBRARY] [--archs 80,90a] [--all | --variants k8-v4g32-b32/f16/d128/g4,..]
//!                 [--verbs attend,pack] [--check registers.tsv [--record | --settled N --turn K]] [--out DIR] [--threads N]
//!                 [--allow-failures]
//! ```
//! `--out` keeps the code as a folder for `Ahead::Folder`, with a list `kernels.tsv`. `--record` writes what was found
//! as the new bounds; a kernel that spills is never recorded. `--settled N`: of the programs that were recorded from the same sources
//! with the same compiler only one in N is compiled again, others with each turn K, and all of the usual variant. Without NVRTC the program fails.
use certkv_device::cuda::nvrtc;
use certkv_kernel::cuda::{Arch, seal};
use certkv_testkit::{cores, side_by_side};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use std::{env, fs};

mod bounds;
mod control;
mod log;
mod matrix;

use bounds::Bounds;
use log::Usage;
use matrix::Job;

/// What the command line asks for.
struct Wanted {
    nvrtc: Option<PathBuf>,
    archs: Vec<Arch>,
    all: bool,
    variants: Option<String>,
    verbs: Option<String>,
    check: Option<PathBuf>,
    record: bool,
    settled: u64,
    turn: u64,
    out: Option<PathBuf>,
    threads: usize,
    allow_failures: bool,
}

fn arguments() -> Result<Wanted, Box<dyn Error>> {
    let mut wanted = Wanted {
        nvrtc: None,
        archs: Arch::ALL.to_vec(),
        all: false,
        variants: None,
        verbs: None,
        check: None,
        record: false,
        settled: 1,
        turn: 0,
        out: None,
        threads: cores(),
        allow_failures: false,
    };
    let mut arguments = env::args().skip(1);
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{name} needs a value"));
        match name.as_str() {
            "--nvrtc" => wanted.nvrtc = Some(value()?.into()),
            "--archs" => wanted.archs = value()?.split(',').map(matrix::arch).collect::<Result<_, _>>()?,
            "--all" => wanted.all = true,
            "--variants" => wanted.variants = Some(value()?),
            "--verbs" => wanted.verbs = Some(value()?),
            "--check" => wanted.check = Some(value()?.into()),
            "--record" => wanted.record = true,
            "--settled" => wanted.settled = value()?.parse::<u64>()?.max(1),
            "--turn" => wanted.turn = value()?.parse()?,
            "--out" => wanted.out = Some(value()?.into()),
            "--threads" => wanted.threads = value()?.parse::<usize>()?.max(1),
            "--allow-failures" => wanted.allow_failures = true,
            _ => return Err(format!("unknown argument {name}").into()),
        }
    }
    if wanted.record && (wanted.check.is_none() || wanted.settled > 1) {
        return Err("--record needs --check FILE, and compiles all".into());
    }
    Ok(wanted)
}

/// What became of a job.
struct Made {
    usages: Vec<Usage>,
    bytes: usize,
    seconds: f64,
}

fn compile(job: &Job, wanted: &Wanted) -> Result<Made, Box<dyn Error + Send + Sync>> {
    let start = Instant::now();
    let compiled = job.recipe.compile()?;
    let seconds = start.elapsed().as_secs_f64();
    let usages = log::usages(&compiled.log);
    for kernel in job.verb.kernels() {
        if !usages.iter().any(|u| u.kernel == kernel) {
            return Err(format!("{kernel} is not in the compiler's report:\n{}", compiled.log).into());
        }
    }
    let bytes = compiled.cubin.len();
    if let Some(folder) = &wanted.out {
        fs::write(folder.join(job.recipe.file()), seal(compiled.cubin))?;
    }
    Ok(Made { usages, bytes, seconds })
}

fn run() -> Result<bool, Box<dyn Error>> {
    let wanted = arguments()?;
    if let Some(library) = &wanted.nvrtc {
        nvrtc::preload(library)?;
    }
    let (major, minor) = nvrtc::version()?;
    let mut jobs = match &wanted.variants {
        Some(list) => matrix::listed(list, &wanted.archs)?,
        None if wanted.all => matrix::full(&wanted.archs)?,
        None => matrix::reduced(&wanted.archs)?,
    };
    if let Some(verbs) = &wanted.verbs {
        jobs.retain(|job| verbs.split(',').any(|verb| verb == job.verb.name()));
    }
    if let Some(folder) = &wanted.out {
        fs::create_dir_all(folder)?;
    }
    let mut bounds = Bounds::default();
    if let Some(file) = wanted.check.as_ref().filter(|f| f.exists() || !wanted.record) {
        bounds = Bounds::parse(&fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?)?;
    }
    let made_by = |job: &Job| format!("{:.16}-{major}.{minor}", job.recipe.file());
    let count = jobs.len();
    if wanted.settled > 1 {
        let settled = |job: &Job| job.verb.kernels().all(|k| bounds.settles(k, &job.label, &made_by(job)));
        let usual = matrix::usual(&wanted.archs)?;
        let due = |job: &Job| {
            u64::from_str_radix(&job.recipe.file()[..8], 16)
                .map_or(true, |n| n % wanted.settled == wanted.turn % wanted.settled)
        };
        jobs.retain(|job| !settled(job) || usual.contains(&job.recipe.file()) || due(job));
    }
    let start = Instant::now();
    let made = side_by_side(wanted.threads, &jobs, |job| compile(job, &wanted).map_err(|error| error.to_string()));
    let wall = start.elapsed().as_secs_f64();

    println!(
        "NVRTC {major}.{minor}, {} programs on {} threads; {} more are as recorded, from the same sources (turn {})",
        jobs.len(),
        wanted.threads,
        count - jobs.len(),
        wanted.turn
    );
    println!(
        "{:<16} {:<44} {:>4} {:>6} {:>6} {:>7} {:>8} {:>6}",
        "kernel", "variant", "regs", "stack", "spill", "shared", "cubin", "s"
    );
    // Bounds are held for the matrix they were recorded for; another may name kernels that were never recorded.
    let complete = wanted.check.is_some() && !wanted.record && !wanted.all && wanted.variants.is_none();
    let (mut executed, mut failures, mut total) = (0, Vec::new(), 0.0);
    let mut list = String::from("file\tverb\tvariant\tregisters\tstack\tspill\tshared\tbytes\n");
    for (job, made) in jobs.iter().zip(made) {
        let made = match made {
            Ok(made) => made,
            Err(error) => {
                executed += 1;
                failures.push(format!("{} {}: {error}", job.verb, job.label));
                continue;
            }
        };
        total += made.seconds;
        for u in &made.usages {
            executed += 1;
            let shared = u.shared + job.dynamic_shared;
            println!(
                "{:<16} {:<44} {:>4} {:>6} {:>6} {shared:>7} {:>8} {:>6.2}",
                u.kernel, job.label, u.registers, u.stack, u.spill, made.bytes, made.seconds
            );
            list.push_str(&format!(
                "{}\t{}\t{}\t{}\t{}\t{}\t{shared}\t{}\n",
                job.recipe.file(),
                job.verb,
                job.label,
                u.registers,
                u.stack,
                u.spill,
                made.bytes
            ));
            if let Some(why) = bounds.judge(&job.label, u, complete) {
                failures.push(format!("{} {}: {why}", u.kernel, job.label));
            }
            if wanted.record {
                bounds.record(&job.label, &made_by(job), u);
            }
        }
    }
    if let Some(folder) = &wanted.out {
        fs::write(folder.join("kernels.tsv"), list)?;
    }
    if let Some(file) = wanted.check.as_ref().filter(|_| wanted.record) {
        fs::write(file, bounds.text())?;
    }
    for failure in &failures {
        // A compiler's log can have hundreds of lines; the first ones say why.
        println!("FAILED {}", failure.lines().take(12).collect::<Vec<_>>().join("\n       "));
    }
    let caught = control::caught(&wanted.archs)?;
    println!("{total:.0} s of compilation in {wall:.0} s");
    println!("GATE kernels executed={executed} failed={} controls={}/1 seed=0x0", failures.len(), u32::from(caught));
    Ok((failures.is_empty() || wanted.allow_failures) && caught && executed > 0)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("compile_kernels: {error}");
            ExitCode::FAILURE
        }
    }
}
