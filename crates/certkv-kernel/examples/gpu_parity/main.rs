//! The decode kernel on a GPU against attention in f64: `gpu_parity [--small] [--only TEXT] [--cubins FOLDER]
//! [--cache FOLDER]`.
//!
//! Every geometry, ragged and forked batches, contexts up to 128K, hard data, residuals read never, always, on demand and in corrections, sliding
//! windows with sinks; drafts; refinable and TurboQuant formats also with the wide cut. Outputs are poisoned before each run, every case runs
//! twice and must give the same bits. `--only`: formats whose name holds the text. `--small` runs the cases that a memory checker gets through. Exit
//! code 0: all hold, 1: something
//! is wrong, 2: no GPU.
#[path = "../../tests/device_cases/mod.rs"]
mod device_cases;

use certkv_core::Dtype;
use certkv_device::cuda::{DeviceBuffer, Gpu, GpuStream, LaunchOptions, Priority};
use certkv_kernel::cuda::args::{AttendArgs, Certificate};
use certkv_kernel::cuda::{Ahead, Arch, Compiler, Kernels, Sight, Variant, Verb};
use certkv_testkit::generate::Kind;
use device_cases::{Arranged, Case, Correction, Refining, Spec, Verdict, bytes32, demand_words};
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
        "tq4-tq4-b64",
        "tq3-tq2-b32",
        "tq1-v4g32-b16",
        "tq6-tq5-b64",
        "tq5-tq6-b32",
        "ctq6-v4g32-b16",
        "k8-tq4-b32",
        "e4m3-e4m3-b64",
        "e5m2g32-e4m3g16-b16",
        "p8-p4g32-b32",
        "k8-c4-b64",
        "tq4-c5-b16",
        "ctq4-tq4-b64",
        "ctq3-v4g32-b32",
        "ctq1-f16-b16",
        "gtq3-tq3-b64",
        "gtq2.5-v4g32-b32",
        "gtq4-c4-b16",
        "gtq5-f16-b64",
        "gtq6-tq2-b32",
        "s1-v4g64-b64",
        "s1-tq3-b32",
        "s2-f16-b16",
        "s3-c4-b64",
        "k4-v4g32-b64",
        "k2-v2g16-b32",
        "k3-c3-b16",
        "k5-v5g32-b32",
        "k6-tq4-b32",
        "k7-v7g32-b64",
    ];
    for (i, format) in formats.into_iter().enumerate() {
        for dim in [64, 96, 128, 256] {
            let fits = format.parse::<certkv_core::Format>().is_ok_and(|f| f.validated(dim, Dtype::F16).is_ok());
            // TurboQuant of a head rotates powers of two on a GPU.
            let whole = |side: &str| side.starts_with("tq") || side.starts_with("ctq");
            if !fits || (format.split('-').any(whole) && !dim.is_power_of_two()) {
                continue;
            }
            let group = 1 + (i * 5 + dim / 32) % 8;
            all.push(Spec { seed: (i * 7 + dim) as u64, ..Spec::new(format, dim, group, &[90, 40, 333]) });
        }
    }
    for group in 1..=16 {
        all.push(Spec { seed: group as u64, ..Spec::new("k8-v4g32-b32", 128, group, &[161, 50]) });
    }
    for (i, rows) in Arranged::ways().enumerate() {
        let (format, dim, group) =
            [("k8-v4g64-b64", 128, 4), ("tq4-tq4-b64", 64, 9), ("k8-c4-b32", 256, 2), ("k8-v4g64-b64-r8.4", 128, 8)]
                [i % 4];
        let store = [Dtype::F16, Dtype::Bf16][i % 2];
        all.push(Spec { rows, store, seed: i as u64, ..Spec::new(format, dim, group, &[333, 64, 1]) });
    }
    if small {
        all.truncate(12);
        all.extend(refinable(true).into_iter().chain(windowed(true)).chain(device_cases::closing::specs()));
        all.extend(device_cases::drafts::specs(true));
        return all;
    }
    all.extend(refinable(false).into_iter().chain(windowed(false)).chain(device_cases::closing::specs()));
    all.extend(device_cases::drafts::specs(false));
    for kind in Kind::ALL {
        for (store, format) in [
            (Dtype::F16, "k8-v4g32-b32"),
            (Dtype::Bf16, "k8-v4g64-b64"),
            (Dtype::F16, "k8-v8g64-b64"),
            (Dtype::Bf16, "tq4-tq4-b64"),
            (Dtype::F16, "ctq4-tq4-b32"),
            (Dtype::F16, "gtq4-tq4-b32"),
            (Dtype::Bf16, "gtq3-tq3-b64"),
            (Dtype::F16, "s1-tq4-b32"),
            (Dtype::Bf16, "s2-v4g64-b64"),
            (Dtype::F16, "e4m3-e4m3-b64"),
            (Dtype::Bf16, "k8-c4-b64"),
            (Dtype::F16, "k4-v4g64-b64"),
            (Dtype::Bf16, "k2-v2g16-b32"),
        ] {
            all.push(Spec { kind, store, seed: 70 + kind as u64, ..Spec::new(format, 128, 4, &[1500, 64, 7, 511]) });
        }
    }
    for (tokens, promoted) in [(8192, 0.1), (32768, 0.05), (131072, 0.02)] {
        for format in [
            "k8-v4g32-b32",
            "k8-v4g64-b64",
            "k4-v4g64-b64",
            "k8-c4-b64",
            "tq4-tq4-b64",
            "ctq4-tq4-b64",
            "gtq3-tq3-b64",
            "s1-v4g64-b64",
        ] {
            let spec = Spec::new(format, 128, 4, &[tokens, 1000, tokens / 3]);
            all.push(Spec { keys: promoted, values: promoted, kind: Kind::Rope, seed: tokens as u64, ..spec });
        }
    }
    all
}

/// Cases of refinable formats; each in every mode.
fn refinable(small: bool) -> Vec<Spec> {
    const MODES: [Refining; 6] = [
        Refining::Never,
        Refining::All,
        Refining::OnDemand(0.0),
        Refining::OnDemand(1.0),
        Refining::Picked(0.3),
        Refining::OnDemand(4.0),
    ];
    let mut all = Vec::new();
    let mut add = |spec: &Spec, modes: &[Refining]| {
        all.extend(modes.iter().map(|refine| Spec { refine: *refine, ..spec.clone() }))
    };
    let main = |lens: &[usize]| Spec::new("k8-v4g64-b64-r5.4", 128, 4, lens);
    add(&main(&[300, 64, 7]), &MODES);
    add(&Spec { keys: 0.0, values: 0.0, ..Spec::new("k8-v4g32-b16-r3.2", 64, 2, &[130, 5]) }, &MODES[1..5]);
    add(&Spec::new("k8-c4-b64-r8.4", 128, 4, &[300, 64, 7]), &MODES[1..5]);
    if small {
        return all;
    }
    let formats = [
        ("k8-v4g32-b32-r5.4", 96),
        ("k8-v4g32-b16-r1.1", 128),
        ("k8-v2g16-b32-r8.2", 64),
        ("k8-v8g64-b64-r8.8", 128),
        ("k8-v3g32-b64-r6.3", 64),
        ("k4-v4g64-b64-r4.4", 128),
        ("k6-c4-b32-r3.2", 96),
    ];
    for (i, (format, dim)) in formats.into_iter().enumerate() {
        for store in [Dtype::F16, Dtype::Bf16] {
            add(
                &Spec { store, seed: i as u64, ..Spec::new(format, dim, 1 + (i * 3) % 8, &[90, 40, 333, 1025]) },
                &MODES,
            );
        }
    }
    for group in 1..=8 {
        add(&Spec { seed: group as u64, ..Spec::new("k8-v4g64-b64-r5.4", 128, group, &[500, 50]) }, &MODES[1..5]);
    }
    for kind in Kind::ALL {
        for store in [Dtype::F16, Dtype::Bf16] {
            let spec = Spec { kind, store, seed: 90 + kind as u64, ..main(&[1500, 64, 7, 511]) };
            add(&spec, &MODES[1..5]);
        }
    }
    for (tokens, promoted) in [(4096, 0.0), (8192, 0.1), (32768, 0.05)] {
        let spec = Spec { keys: promoted, values: promoted, seed: tokens as u64, ..main(&[tokens, 1000, tokens / 3]) };
        // A wide tolerance, so that demands leave something unread.
        add(&Spec { kind: Kind::Rope, relative: 0.3, ..spec }, &MODES);
    }
    all
}

/// Cases of layers with windows: both edges anywhere in a block, windows within the open block and far longer than the context.
fn windowed(small: bool) -> Vec<Spec> {
    let see = |tokens, sinks, spec: Spec| Spec { sight: Some(Sight { tokens, sinks }), ..spec };
    let main = |lens: &[usize]| Spec::new("k8-v4g64-b64", 128, 4, lens);
    let fine = |refine, lens: &[usize]| Spec { refine, ..Spec::new("k8-v4g64-b64-r8.4", 128, 4, lens) };
    let mut all = vec![
        see(70, 5, main(&[300, 64, 7])),
        see(150, 21, fine(Refining::OnDemand(1.5), &[300, 130, 7])),
        see(150, 21, fine(Refining::Picked(0.5), &[300, 130, 7])),
    ];
    if small {
        return all;
    }
    for (i, (tokens, sinks)) in
        [(1, 0), (17, 4), (64, 64), (128, 0), (129, 1), (500, 70), (4096, 4), (1 << 20, 9)].into_iter().enumerate()
    {
        let lens = [8192, 1000, 4096, 33, 511];
        all.push(see(tokens, sinks, Spec { seed: i as u64, ..main(&lens) }));
        for (format, dim, group, store) in [
            ("k8-v4g32-b32", 64, 8, Dtype::Bf16),
            ("t4-v4g32-b16", 96, 3, Dtype::F16),
            ("f16-f16-b16", 128, 12, Dtype::F16),
            ("tq4-tq4-b64", 128, 4, Dtype::F16),
            ("ctq4-tq4-b64", 128, 4, Dtype::F16),
            ("gtq3-tq3-b64", 128, 4, Dtype::F16),
            ("s1-v4g64-b64", 128, 4, Dtype::F16),
            ("k8-v4g32-b32", 256, 2, Dtype::F16),
        ] {
            all.push(see(
                tokens,
                sinks,
                Spec { store, seed: i as u64, ..Spec::new(format, dim, group, &[1500, 129, 7]) },
            ));
        }
        for refine in [Refining::Never, Refining::All, Refining::OnDemand(1.0), Refining::Picked(0.3)] {
            let spec = Spec { kind: Kind::Rope, relative: 0.3, seed: i as u64, ..fine(refine, &lens) };
            all.push(see(tokens, sinks, spec));
        }
    }
    all
}

/// The cuts that a case runs with: that of its variant and, for residuals, the wide one where it is another.
fn cuts(spec: &Spec, arch: Arch) -> Result<Vec<Variant>, Failure> {
    let own = Variant::new(spec.layout(), spec.heads(), arch)?;
    let own = if spec.draft > 0 { own.drafting(spec.draft)? } else { own };
    let own = if spec.sight.is_some() { own.windowed() } else { own };
    let wide = own.clone().wide();
    let both = (!own.layout().format.refine.is_none() || spec.format.contains("tq")) && wide != own;
    Ok(if both { vec![own, wide] } else { vec![own] })
}

/// The mode of a case of a refinable format, for the line that is printed: what was read of what may be.
fn refining(case: &Case, warps: usize, refined: &[u32]) -> String {
    let most = case.refinable();
    let mode = format!("{:?}", case.spec.refine);
    format!(" {mode:13} {warps:2} warps read {}+{} of {}+{}", refined[0], refined[1], most[0], most[1])
}

fn certificates(words: &[u32]) -> Vec<Certificate> {
    words.as_chunks().0.iter().map(Certificate::from_words).collect()
}

struct Outputs {
    out: Vec<f32>,
    certificates: Vec<u32>,
    masses: Vec<u32>,
    /// Sides whose residuals were read, keys and values.
    refined: Vec<u32>,
    demands: Vec<u32>,
    /// Which they are; empty where nothing chooses.
    looks: Vec<u8>,
    /// Of the pass, where that was corrected.
    before: Vec<u32>,
    correction: Correction,
}

impl Outputs {
    fn same(&self, other: &Self) -> bool {
        let bits = |o: &Self| o.out.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        bits(self) == bits(other)
            && self.certificates == other.certificates
            && self.refined == other.refined
            && self.demands == other.demands
            && self.looks == other.looks
    }
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
    let demand_words = demand_words(&case.demands());
    let demands = DeviceBuffer::new(gpu, (4 * demand_words.len()).max(16))?;
    let refined = DeviceBuffer::new(gpu, 8)?;
    let kept = DeviceBuffer::new(gpu, 4 * case.launch_heads() * variant.partial_stride())?;
    let looks = DeviceBuffer::new(gpu, case.launch_heads() * case.stride())?;
    let corrects = Case::corrects(&case.spec, variant)?;
    let chooses = matches!(case.spec.refine, Refining::OnDemand(_) | Refining::Picked(_));
    let words = |words: &[u32]| -> Result<DeviceBuffer, Failure> {
        let buffer = DeviceBuffer::new(gpu, 4 * words.len())?;
        buffer.write(stream, 0, &bytes32(words))?;
        Ok(buffer)
    };
    let args = AttendArgs {
        kept: if corrects.is_some() { kept.address() } else { 0 },
        looks: if chooses { looks.address() } else { 0 },
        demands: if demand_words.is_empty() { 0 } else { demands.address() },
        refined: refined.address(),
        out: out.address(),
        certificates: certificates.address(),
        masses: masses.address(),
        failures: failures.address(),
        ..placed.args
    };
    let launch = |variant: &Variant, args: &AttendArgs, programmatic| -> Result<(), Failure> {
        let (function, shape) = (kernels.get(variant, Verb::Attend)?, variant.shape());
        let (threads, shared) = (shape.threads() as u32, shape.shared as u32);
        let options = LaunchOptions { programmatic, ..LaunchOptions::default() };
        // SAFETY: every address is that of a live buffer of the size the kernel's argument documents.
        Ok(unsafe { function.launch(stream, ctas as u32, threads, shared, args, options) }?)
    };
    let mut all = Vec::new();
    for run in 0..runs {
        for buffer in [&out, &certificates, &masses, &kept, &looks] {
            buffer.fill(stream, 0, buffer.len(), 0xff)?;
        }
        failures.fill(stream, 0, failures.len(), 0)?;
        refined.fill(stream, 0, refined.len(), 0)?;
        if !demand_words.is_empty() {
            demands.write(stream, 0, &demand_words)?;
        }
        // What is settled may start early, by turns.
        let early = run & 1 == 1;
        launch(variant, &AttendArgs { settled: u32::from(early), ..args }, early)?;
        let mut said = vec![0u8; if chooses { looks.len() } else { 0 }];
        if chooses {
            looks.read(stream, 0, &mut said)?;
        }
        let mut before = vec![0; placed.heads * Certificate::WORDS];
        certificates.read(stream, 0, &mut before)?;
        let mut correction = Correction::default();
        if let Some((variant, c)) = corrects.as_ref().zip(case.correction(&said)) {
            let mut list = c.only.clone();
            // And for their order.
            list.resize(1 + 2 * case.launch_heads(), 0);
            let [picks, picked, only] = [words(&c.picks)?, words(&c.counts())?, words(&list)?];
            let (picks, picked, only) = (picks.address(), picked.address(), only.address());
            failures.fill(stream, 0, 4, 0)?;
            let none = AttendArgs { demands: 0, looks: 0, masses: 0, promoted: 0, settled: 0, ..args };
            launch(variant, &AttendArgs { picks, picked, only, ..none }, early)?;
            stream.synchronize()?;
            (said, correction) = (c.looks.clone(), c);
        }
        let mut o = Outputs {
            looks: said,
            before,
            correction,
            out: Vec::new(),
            certificates: vec![0; placed.heads * Certificate::WORDS],
            masses: vec![0; placed.masses],
            refined: vec![0; 2],
            demands: vec![0; demand_words.len()],
        };
        let mut words = vec![0u32; placed.outputs];
        out.read(stream, 0, &mut words)?;
        o.out = case.outputs(&words)?;
        certificates.read(stream, 0, &mut o.certificates)?;
        masses.read(stream, 0, &mut o.masses)?;
        refined.read(stream, 0, &mut o.refined)?;
        if !o.demands.is_empty() {
            demands.read(stream, 0, &mut o.demands)?;
        }
        all.push(o);
    }
    Ok(all)
}

fn all(gpu: &Gpu, specs: Vec<Spec>, compiler: &Compiler) -> Result<bool, Failure> {
    let arch = Arch::of(gpu.info().arch)?;
    let mut variants: Vec<Variant> = Vec::new();
    for spec in &specs {
        for variant in cuts(spec, arch)? {
            for variant in Case::corrects(spec, &variant)?.into_iter().chain([variant]) {
                if !variants.contains(&variant) {
                    variants.push(variant);
                }
            }
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
            for variant in cuts(&case.spec, arch)? {
                let runs = run(gpu, &stream, &kernels, &variant, case, 2)?;
                ran.push((case, variant.shape().warps, runs));
            }
        }
        let verdicts: Vec<(Verdict, bool, usize)> = ran
            .par_iter()
            .map(|(case, _, runs)| {
                let same = runs[0].same(&runs[1]);
                let certificates = certificates(&runs[0].certificates);
                let (r, before) = (&runs[0], self::certificates(&runs[0].before));
                let mut verdict = case.judge(&r.out, &certificates, &r.masses, &r.looks);
                verdict.wrong.extend(case.judge_refined(&r.refined, &r.demands, &before));
                verdict.wrong.extend(case.judge_picked(&r.correction.picked, &certificates));
                // The control: an output off by more than the first head's bound must be seen.
                let mut bent = runs[0].out.clone();
                bent[0] += 2.5 * certificates[0].bound.min(1e30) + 1e-3;
                let control = case.judge(&bent, &certificates, &[], &r.looks).wrong.len().min(1);
                (verdict, same, control)
            })
            .collect();
        for ((case, warps, runs), (v, same, control)) in ran.iter().zip(verdicts) {
            let s = &case.spec;
            cases += 1;
            heads += v.heads;
            wrong += v.wrong.len() + usize::from(!same);
            caught += control;
            println!(
                "{:17} d {:3} group {:2} {:16} {:22}{}{} rounding {:.1e} e_arith {:.1e} bound {:.3}{}{}",
                s.format,
                s.dim,
                s.group,
                format!("{:?}", s.kind),
                format!("{:?}", s.lens),
                s.sight.map_or(String::new(), |w| format!(" window {} sinks {}", w.tokens, w.sinks)),
                if case.layout.format.refine.is_none() {
                    String::new()
                } else {
                    refining(case, *warps, &runs[0].refined)
                },
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
    let mut specs = specs(words.iter().any(|w| w == "--small"));
    if let Some(text) = value("--only") {
        specs.retain(|s| s.format.contains(text.as_str()));
    }
    match all(&gpu, specs, &compiler) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
