//! The decode kernel on a GPU against attention in f64: `gpu_parity [--small] [--cubins FOLDER] [--cache FOLDER]`.
//!
//! Every geometry, ragged and forked batches, contexts up to 128K, hard data; outputs are poisoned before each run, every case runs
//! twice and must give the same bits. `--small` runs the cases that a memory checker gets through. Exit code 0: all hold, 1: something
//! is wrong, 2: no GPU.
#[path = "../../tests/device_cases/mod.rs"]
mod device_cases;

use certkv_core::Dtype;
use certkv_device::cuda::{DeviceBuffer, Gpu, GpuStream, LaunchOptions, Priority};
use certkv_kernel::cuda::args::{AttendArgs, Certificate};
use certkv_kernel::cuda::{Ahead, Arch, Compiler, Kernels, Variant, Verb};
use certkv_testkit::generate::Kind;
use device_cases::{Case, Spec, Verdict};
use rayon::prelude::*;
use std::cell::RefCell;
use std::process::ExitCode;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn specs(small: bool) -> Vec<Spec> {
    let mut all = vec![
        Spec::new("k8-v4g32-b32", 128, 4, &[100]),
        Spec { keys: 0.0, values: 0.0, ..Spec::new("k8-v4g32-b32", 128, 4, &[700, 33, 1]) },
        Spec { forked: true, ..Spec::new("k8-v4g32-b16", 64, 2, &[130, 200, 96]) },
    ];
    let formats = [
        "k8-v4g32-b32",
        "k8-v4g64-b64",
        "k8-v4g16-b16",
        "k8-v6g32-b32",
        "k8-v8g64-b64",
        "k8-v3g32-b16",
        "t4-v5g32-b32",
        "t8g32-v4g32-b16",
        "t6-v7g32-b16",
        "f16-f16-b16",
        "k8-f16-b16",
        "f16-v4g32-b16",
    ];
    for (i, format) in formats.into_iter().enumerate() {
        for dim in [64, 96, 128, 256] {
            if !format.parse::<certkv_core::Format>().is_ok_and(|f| f.validated(dim, Dtype::F16).is_ok()) {
                continue;
            }
            let group = 1 + (i * 5 + dim / 32) % 8;
            all.push(Spec { seed: (i * 7 + dim) as u64, ..Spec::new(format, dim, group, &[90, 40, 333]) });
        }
    }
    for group in 1..=16 {
        all.push(Spec { seed: group as u64, ..Spec::new("k8-v4g32-b32", 128, group, &[161, 50]) });
    }
    if small {
        all.truncate(12);
        return all;
    }
    for kind in Kind::ALL {
        for (store, format) in
            [(Dtype::F16, "k8-v4g32-b32"), (Dtype::Bf16, "k8-v4g64-b64"), (Dtype::F16, "k8-v8g64-b64")]
        {
            all.push(Spec { kind, store, seed: 70 + kind as u64, ..Spec::new(format, 128, 4, &[1500, 64, 7, 511]) });
        }
    }
    for (tokens, promoted) in [(8192, 0.1), (32768, 0.05), (131072, 0.02)] {
        for format in ["k8-v4g32-b32", "k8-v4g64-b64"] {
            let spec = Spec::new(format, 128, 4, &[tokens, 1000, tokens / 3]);
            all.push(Spec { keys: promoted, values: promoted, kind: Kind::Rope, seed: tokens as u64, ..spec });
        }
    }
    all
}

fn certificates(words: &[u32]) -> Vec<Certificate> {
    words.as_chunks().0.iter().map(Certificate::from_words).collect()
}

struct Outputs {
    out: Vec<f32>,
    certificates: Vec<u32>,
    masses: Vec<u32>,
}

/// Copies the case to the device once and runs it `runs` times.
fn run(
    gpu: &Gpu,
    stream: &GpuStream,
    kernels: &Kernels,
    variant: &Variant,
    case: &Case,
    runs: usize,
) -> Result<Vec<Outputs>, Failure> {
    let ctas = gpu.info().multiprocessors as usize;
    let (memory, failed) = (RefCell::new(Vec::new()), RefCell::new(None));
    let keep = |buffer: Result<DeviceBuffer, _>| match buffer {
        Ok(buffer) => {
            let at = buffer.address();
            memory.borrow_mut().push(buffer);
            at
        }
        Err(e) => {
            *failed.borrow_mut() = Some(e);
            0
        }
    };
    let placed = case.place(
        ctas,
        &mut |bytes| {
            keep(DeviceBuffer::new(gpu, bytes.len().max(16)).and_then(|b| b.write(stream, 0, bytes).map(|()| b)))
        },
        &mut |bytes| keep(DeviceBuffer::new(gpu, bytes).and_then(|b| b.fill(stream, 0, bytes, 0).map(|()| b))),
    );
    if let Some(e) = failed.into_inner() {
        return Err(e.into());
    }
    let out = DeviceBuffer::new(gpu, placed.outputs * 4)?;
    let certificates = DeviceBuffer::new(gpu, placed.heads * size_of::<Certificate>())?;
    let masses = DeviceBuffer::new(gpu, placed.masses * 4)?;
    let failures = DeviceBuffer::new(gpu, (1 + case.launch_heads()) * 4)?;
    let args = AttendArgs {
        out: out.address(),
        certificates: certificates.address(),
        masses: masses.address(),
        failures: failures.address(),
        ..placed.args
    };
    let function = kernels.get(variant, Verb::Attend)?;
    let shape = variant.shape();
    let mut all = Vec::new();
    for _ in 0..runs {
        for buffer in [&out, &certificates, &masses] {
            buffer.fill(stream, 0, buffer.len(), 0xff)?;
        }
        failures.fill(stream, 0, failures.len(), 0)?;
        // SAFETY: every address is that of a live buffer of the size the kernel's argument documents.
        unsafe {
            function.launch(
                stream,
                ctas as u32,
                shape.threads() as u32,
                shape.shared as u32,
                &args,
                LaunchOptions::default(),
            )?;
        }
        let mut o = Outputs {
            out: vec![0.0; placed.outputs],
            certificates: vec![0; placed.heads * Certificate::WORDS],
            masses: vec![0; placed.masses],
        };
        out.read(stream, 0, &mut o.out)?;
        certificates.read(stream, 0, &mut o.certificates)?;
        masses.read(stream, 0, &mut o.masses)?;
        all.push(o);
    }
    Ok(all)
}

fn all(gpu: &Gpu, small: bool, compiler: &Compiler) -> Result<bool, Failure> {
    let arch = Arch::of(gpu.info().arch)?;
    let specs = specs(small);
    let mut variants: Vec<Variant> = Vec::new();
    for spec in &specs {
        let variant = Variant::new(spec.layout(), spec.group, arch)?;
        if !variants.contains(&variant) {
            variants.push(variant);
        }
    }
    let start = std::time::Instant::now();
    let kernels = Kernels::prepare_verbs(gpu, &variants, &[Verb::Attend], compiler)?;
    println!("{} variants ready in {:.1} s on {}", variants.len(), start.elapsed().as_secs_f64(), gpu.info().name);
    let stream = GpuStream::new(gpu, Priority::Normal)?;
    let (mut heads, mut wrong, mut cases, mut caught) = (0, 0, 0, 0);
    for group in specs.chunks(16) {
        let built: Vec<Case> = group.par_iter().map(Case::new).collect();
        let mut ran = Vec::new();
        for case in &built {
            let variant = Variant::new(case.layout.clone(), case.spec.group, arch)?;
            ran.push(run(gpu, &stream, &kernels, &variant, case, 2)?);
        }
        let verdicts: Vec<(Verdict, bool, usize)> = built
            .par_iter()
            .zip(&ran)
            .map(|(case, runs)| {
                let bits = |o: &Outputs| o.out.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                let same = bits(&runs[0]) == bits(&runs[1]) && runs[0].certificates == runs[1].certificates;
                let certificates = certificates(&runs[0].certificates);
                let verdict = case.judge(&runs[0].out, &certificates, &runs[0].masses);
                // The control: an output off by more than the first head's bound must be seen.
                let mut bent = runs[0].out.clone();
                bent[0] += 2.5 * certificates[0].bound.min(1e30) + 1e-3;
                let control = case.judge(&bent, &certificates, &[]).wrong.len().min(1);
                (verdict, same, control)
            })
            .collect();
        for (case, (v, same, control)) in built.iter().zip(verdicts) {
            let s = &case.spec;
            cases += 1;
            heads += v.heads;
            wrong += v.wrong.len() + usize::from(!same);
            caught += control;
            println!(
                "{:16} d {:3} group {:2} {:16} {:22} rounding {:.1e} e_arith {:.1e} bound {:.3}{}{}",
                s.format,
                s.dim,
                s.group,
                format!("{:?}", s.kind),
                format!("{:?}", s.lens),
                v.rounding,
                v.arith,
                v.relative / v.finite.max(1) as f64,
                if same { "" } else { "  TWO RUNS DIFFER" },
                v.wrong.first().map(|w| format!("  WRONG {} {w}", v.wrong.len())).unwrap_or_default(),
            );
        }
    }
    println!("GATE gpu-attend executed={heads} failed={wrong} controls={caught}/{cases} seed=0x1");
    Ok(wrong == 0 && caught == cases)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| words.iter().position(|w| w == name).and_then(|i| words.get(i + 1));
    let mut compiler = Compiler::new();
    if let Some(folder) = value("--cubins") {
        compiler = compiler.with_ahead(Ahead::Folder(folder.into()));
    }
    if let Some(folder) = value("--cache") {
        compiler = compiler.with_cache(folder);
    }
    let gpu = match Gpu::open(0) {
        Ok(gpu) => gpu,
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::from(2);
        }
    };
    match all(&gpu, words.iter().any(|w| w == "--small"), &compiler) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
