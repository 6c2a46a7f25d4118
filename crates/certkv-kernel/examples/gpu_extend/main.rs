//! Attention of chunks on a GPU: `gpu_extend [--small] [--only TEXT] [--times] [--formats a,b] [--shapes BEFORExTOKENSxCHUNKS,..] [--cubins FOLDER] [--cache FOLDER]`.
//!
//! Against causal attention in f64, with poisoned outputs and two runs that must give the same bits; then, with `--times`, the times of long chunks, with and
//! without certificates: 32 query and 8 KV heads of 128 channels; formats `a+b` are levels that as many blocks have each. Exit code 0: all hold, 1: something is wrong, 2: no GPU.
#[path = "../../tests/device_cases/extend.rs"]
mod extend_cases;
mod relays;
mod times;

use certkv_core::Dtype;
use certkv_device::cuda::{DeviceBuffer, Gpu, GpuStream, LaunchOptions, Priority};
use certkv_kernel::cuda::args::{Certificate, Element};
use certkv_kernel::cuda::extend::ExtendArgs;
use certkv_kernel::cuda::{Ahead, Arch, Compiler, Kernels, Sight, Variant, Verb};
use certkv_testkit::generate::Kind;
use extend_cases::{Case, Spec};
use rayon::prelude::*;
use std::cell::RefCell;
use std::process::ExitCode;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

fn specs(small: bool) -> Vec<Spec> {
    let mut all = vec![
        Spec::new("k8-v4g64-b64", 128, 4, &[(130, 70), (0, 200), (64, 1)]),
        Spec::new("tq4-tq4-b64", 128, 4, &[(300, 100)]),
    ];
    if small {
        return all;
    }
    let formats = [
        "k8-v4g16-b16",
        "k8-v6g32-b32",
        "k8-v8g64-b64",
        "t4-v5g32-b32",
        "t8g32-v3g32-b16",
        "f16-f16-b16",
        "f16-v4g32-b64",
        "tq3-tq2-b32",
        "tq1-v4g32-b16",
        "tq6-tq5-b64",
        "ctq5-tq6-b32",
        "ctq4-tq4-b64",
        "ctq2-v4g32-b32",
        "gtq3-tq3-b64",
        "gtq2.5-v4g32-b32",
        "gtq5-f16-b16",
        "s1-v4g64-b64",
        "s2-tq3-b32",
        "s3-f16-b16",
        "k8-tq4-b32",
        "k8-v4g64-b64-r8.4",
        "e4m3-e4m3-b64",
        "p8g32-e5m2-b32",
        "k4-v4g32-b64",
        "k3-c3-b16",
    ];
    for (i, format) in formats.into_iter().enumerate() {
        for dim in [64, 96, 128, 256] {
            let fits = format.parse::<certkv_core::Format>().is_ok_and(|f| f.validated(dim, Dtype::F16).is_ok());
            // TurboQuant rotates powers of two on a GPU; residual planes are for heads of up to 128 channels.
            let whole = |side: &str| side.starts_with("tq") || side.starts_with("ctq");
            let rotated = !format.split('-').any(whole) || dim.is_power_of_two();
            let fits = fits && rotated && (dim <= 128 || !format.contains("-r"));
            if fits {
                let group = 1 + (i * 5 + dim / 32) % 8;
                all.push(Spec {
                    seed: (i * 7 + dim) as u64,
                    ..Spec::new(format, dim, group, &[(333, 140), (40, 90), (0, 17)])
                });
            }
        }
    }
    for group in 1..=16 {
        all.push(Spec { seed: group as u64, ..Spec::new("k8-v4g64-b64", 128, group, &[(161, 50), (700, 9)]) });
    }
    for kind in Kind::ALL {
        for (store, format) in [
            (Dtype::F16, "k8-v4g64-b64"),
            (Dtype::Bf16, "k8-v4g32-b32"),
            (Dtype::Bf16, "tq4-tq4-b64"),
            (Dtype::F16, "gtq4-tq4-b64"),
            (Dtype::F16, "s1-tq4-b64"),
        ] {
            all.push(Spec {
                kind,
                store,
                seed: 70 + kind as u64,
                ..Spec::new(format, 128, 4, &[(1500, 70), (64, 33)])
            });
        }
    }
    for (tokens, sinks) in [(1, 0), (64, 64), (129, 1), (500, 70), (1 << 20, 9)] {
        for format in ["k8-v4g64-b64", "tq4-tq4-b32", "ctq4-tq4-b32", "gtq3-tq4-b32", "s1-tq4-b32"] {
            let sight = Some(Sight { tokens, sinks });
            all.push(Spec { sight, ..Spec::new(format, 128, 4, &[(1500, 200), (0, 300)]) });
        }
    }
    for (before, tokens) in [(8192, 64), (32768, 20)] {
        for format in ["k8-v4g64-b64", "tq4-tq4-b64", "ctq4-tq4-b64", "gtq3-tq3-b64", "s2-tq3-b64"] {
            all.push(Spec { kind: Kind::Rope, seed: before as u64, ..Spec::new(format, 128, 4, &[(before, tokens)]) });
        }
    }
    all
}

struct Outputs {
    out: Vec<f32>,
    certificates: Vec<u32>,
}

/// A launch of a variant's kernel; several leave to each other what they have.
type Ready<'a> = (&'a Kernels, &'a Variant, ExtendArgs);

/// Memory of the device that holds what a case is made of.
fn placer<'a>(
    gpu: &'a Gpu,
    stream: &'a GpuStream,
    memory: &'a RefCell<Vec<DeviceBuffer>>,
    failed: &'a RefCell<Option<Failure>>,
) -> impl FnMut(&[u8]) -> u64 + 'a {
    |bytes| {
        let made = DeviceBuffer::new(gpu, bytes.len().max(16)).and_then(|b| b.write(stream, 0, bytes).map(|()| b));
        match made {
            Ok(buffer) => {
                let at = buffer.address();
                memory.borrow_mut().push(buffer);
                at
            }
            Err(e) => {
                *failed.borrow_mut() = Some(e.into());
                0
            }
        }
    }
}

/// Two runs of the launches, with the outputs of the last, which are poisoned before each.
fn run(
    gpu: &Gpu,
    stream: &GpuStream,
    launches: &[Ready<'_>],
    (outputs, heads): (usize, usize),
) -> Result<[Outputs; 2], Failure> {
    let out = DeviceBuffer::new(gpu, outputs * 4)?;
    let certificates = DeviceBuffer::new(gpu, heads * size_of::<Certificate>())?;
    let once = || -> Result<Outputs, Failure> {
        for buffer in [&out, &certificates] {
            buffer.fill(stream, 0, buffer.len(), 0xff)?;
        }
        for (kernels, variant, args) in launches {
            let args = ExtendArgs {
                out: out.address(),
                sums: out.address(),
                out_type: Element::F32 as u32,
                certificates: certificates.address(),
                ..*args
            };
            let (function, shape) = (kernels.get(variant, Verb::Extend)?, variant.extend_shape());
            let (ctas, threads) = (args.tiles * args.kv_heads, shape.threads() as u32);
            // SAFETY: every address is that of a live buffer of the size the kernel's argument documents.
            unsafe { function.launch(stream, ctas, threads, shape.shared as u32, &args, LaunchOptions::default())? };
        }
        let mut o = Outputs { out: vec![0.0; outputs], certificates: vec![0; heads * Certificate::WORDS] };
        out.read(stream, 0, &mut o.out)?;
        certificates.read(stream, 0, &mut o.certificates)?;
        Ok(o)
    };
    Ok([once()?, once()?])
}

fn parity(gpu: &Gpu, stream: &GpuStream, compiler: &Compiler, specs: &[Spec]) -> Result<bool, Failure> {
    let arch = Arch::of(gpu.info().arch)?;
    let variants: Vec<Variant> = specs
        .iter()
        .map(|s| {
            Ok(if s.sight.is_some() {
                Variant::new(s.layout(), s.group, arch)?.windowed()
            } else {
                Variant::new(s.layout(), s.group, arch)?
            })
        })
        .collect::<Result<_, Failure>>()?;
    let kernels = Kernels::prepare_verbs(gpu, &variants, &[Verb::Extend], compiler)?;
    let cases: Vec<Case> = specs.par_iter().map(Case::new).collect();
    let mut ran = Vec::new();
    for (case, variant) in cases.iter().zip(&variants) {
        let (memory, failed) = (RefCell::default(), RefCell::default());
        let placed = case.place(variant, &mut placer(gpu, stream, &memory, &failed));
        failed.into_inner().map_or(Ok(()), Err)?;
        ran.push(run(gpu, stream, &[(&kernels, variant, placed.args)], (placed.outputs, placed.heads))?);
    }
    let judged: Vec<_> = cases
        .par_iter()
        .zip(&ran)
        .map(|(case, [first, second])| {
            let bits = |o: &Outputs| o.out.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let same = bits(first) == bits(second) && first.certificates == second.certificates;
            let certificates: Vec<Certificate> =
                first.certificates.as_chunks().0.iter().map(Certificate::from_words).collect();
            // Control: an output moved beyond its bound must be found, where there is one that has a bound.
            let bounded = certificates.iter().position(|c| c.bound.is_finite());
            let control = bounded.map(|at| {
                let mut bent = first.out.clone();
                bent[at * case.spec.dim] += 2.5 * certificates[at].bound + 1e-3;
                !case.judge(&bent, &certificates).wrong.is_empty()
            });
            (case.judge(&first.out, &certificates), same, control)
        })
        .collect();
    let (mut outputs, mut wrong, mut caught, mut planted) = (0, 0, 0, 0);
    for (case, (v, same, control)) in cases.iter().zip(&judged) {
        let s = &case.spec;
        outputs += v.outputs;
        wrong += v.wrong.len() + usize::from(!same);
        planted += usize::from(control.is_some());
        caught += usize::from(*control == Some(true));
        println!(
            "{:18} d {:3} group {:2} {:16} {:28} {:12} rounding {:.1e} e_arith {:.1e} bound {:.3}{}{}",
            s.format,
            s.dim,
            s.group,
            format!("{:?}", s.kind),
            format!("{:?}", s.chunks),
            s.sight.map_or(String::new(), |w| format!("window {}+{}", w.tokens, w.sinks)),
            v.rounding,
            v.arith,
            v.relative,
            if *same { "" } else { "  TWO RUNS DIFFER" },
            v.wrong.first().map(|w| format!("  WRONG {} {w}", v.wrong.len())).unwrap_or_default(),
        );
    }
    println!("GATE gpu-extend executed={outputs} failed={wrong} controls={caught}/{planted} seed=0x1");
    Ok(wrong == 0 && caught == planted && planted * 10 > cases.len() * 9)
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
    let all = || -> Result<bool, Failure> {
        let stream = GpuStream::new(&gpu, Priority::default())?;
        let mut specs = specs(words.iter().any(|w| w == "--small"));
        if let Some(text) = value("--only") {
            specs.retain(|s| s.format.contains(text.as_str()));
        }
        let mut good = parity(&gpu, &stream, &compiler, &specs)?;
        if value("--only").is_none() {
            good &= relays::parity(&gpu, &stream, &compiler)?;
        }
        if words.iter().any(|w| w == "--times") {
            let formats = value("--formats").map_or("k8-v4g64-b64,tq4-tq4-b64,f16-f16-b64", String::as_str);
            let shapes = value("--shapes").map_or(times::SHAPES, String::as_str);
            times::print(&gpu, &stream, &compiler, formats.split(','), shapes)?;
        }
        Ok(good)
    };
    match all() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
