//! Runs every part of the CUDA door on a real GPU and prints a table. Exit code 0: all passed; 1: something failed; 2: no
//! driver, GPU or compiler here.
//!
//! `cuda_smoke [ordinal] [path of libnvrtc]`
//!
//! Everything runs twice: in a thread without a current context, and in one where another context of the same GPU is
//! current. Each call to the library is compared before and after: the thread must keep what it had.
mod context;
mod costs;
mod parts;

use certkv_device::cuda::{CudaError, Gpu, Module, nvrtc};
use std::path::Path;
use std::process::ExitCode;

/// What the parts share.
pub(crate) struct Bench {
    /// The GPU.
    pub(crate) gpu: Gpu,
    /// `kernels.cu`, loaded.
    pub(crate) module: Module,
    /// The same as bytes.
    pub(crate) cubin: Vec<u8>,
    /// Another context of the GPU.
    pub(crate) foreign: context::Foreign,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let ordinal = arguments.next().and_then(|a| a.parse().ok()).unwrap_or(0);
    if let Some(path) = arguments.next()
        && let Err(error) = nvrtc::preload(Path::new(&path))
    {
        println!("{path}: {error}");
        return ExitCode::from(2);
    }
    let bench = match prepare(ordinal) {
        Ok(bench) => bench,
        Err(error) => {
            println!("cuda_smoke: {error}");
            return ExitCode::from(2);
        }
    };
    let info = bench.gpu.info();
    println!("{info:?}\nNVRTC {:?} for {:?}", nvrtc::version(), nvrtc::supported_archs());
    let mut failures = 0;
    for foreign in [false, true] {
        println!("\n{}", if foreign { "-- a foreign context is current" } else { "-- no context is current" });
        bench.foreign.make_current(foreign);
        for (name, part) in parts::PARTS {
            let outcome = part(&bench).and_then(|note| match context::take_changes() {
                changes if changes.is_empty() => Ok(note),
                changes => Err(format!("the current context changed: {changes}")),
            });
            failures += u32::from(outcome.is_err());
            match outcome {
                Ok(note) => println!("PASS {name:<34} {note}"),
                Err(why) => println!("FAIL {name:<34} {why}"),
            }
        }
    }
    bench.foreign.make_current(false);
    match costs::measure(&bench) {
        Ok(lines) => println!("\n{}", lines.join("\n")),
        Err(error) => {
            failures += 1;
            println!("\nFAIL costs {error}");
        }
    }
    let usage = bench.gpu.usage();
    let clean = usage == Default::default();
    failures += u32::from(!clean);
    println!("{} nothing held at the end                 {usage:?}", if clean { "PASS" } else { "FAIL" });
    // Last: it destroys the context.
    let lost = parts::stray_kernel(&bench);
    failures += u32::from(lost.is_err());
    println!(
        "{} a stray kernel is a typed error         {}",
        if lost.is_ok() { "PASS" } else { "FAIL" },
        lost.unwrap_or_else(|e| e)
    );
    println!("cuda_smoke: {failures} failures");
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn prepare(ordinal: u32) -> Result<Bench, CudaError> {
    let gpu = Gpu::open(ordinal)?;
    let (major, minor) = gpu.info().arch;
    let options = [format!("--gpu-architecture=sm_{major}{minor}"), "--std=c++17".to_owned()];
    let source = include_str!("kernels.cu");
    let compiled = nvrtc::compile(nvrtc::Program { source, name: "kernels.cu", headers: &[], options: &options })?;
    let module = Module::load(&gpu, &compiled.cubin)?;
    Ok(Bench { foreign: context::Foreign::new(ordinal), gpu, module, cubin: compiled.cubin })
}
