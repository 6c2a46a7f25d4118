//! Decode beside a plain memory read. `cargo bench -p certkv-kernel --bench decode` runs criterion; with words after `--` it
//! prints instead: `table` (floors and ratios; `lengths` for 2K to 128K), `against` (every codec beside 16-bit rows on the
//! same instruction set), `decoded` (spherical keys decoded before their products, beside reading their codes), `hot` (arithmetic alone; with `bare` or `certified` that way only), `prefill`, instruction sets by name or `all`
//! (else the machine's own), and a format such as `k8-v4g32-b32`, or a part of one, to choose some.
mod workload;

use criterion::{Criterion, Throughput};

use certkv_core::Format;
use certkv_kernel::{Arch, Pool, Workspace, probe};
use std::time::Instant;
use workload::{DIM, Decoder, HEADS, How, Workload};

const WAYS: [How; 4] = [How::Bare, How::Certified, How::Sweeps, How::HalfSkipped];

const FORMATS: [&str; 18] = [
    "f16-f16-b32",
    "k8-v4g128-b32",
    "k8-v4g64-b32",
    "k8-v4g32-b32",
    "k8-v4g16-b32",
    "k8-v4g64-b64",
    "k8-v4g32-b64",
    "k8-v5g64-b64",
    "k8-v6g64-b64",
    "k8-v8g64-b32",
    "t4-v4g128-b32",
    "t4-v4g32-b32",
    "t8-v4g32-b32",
    "f16-f16-b64",
    "tq4-tq4-b64",
    "s1-f16-b64",
    "s1-v4g64-b64",
    "s3-v4g64-b64",
];

/// Every codec once as keys and once as values, in blocks of 64, beside sides that are in the first cache anyway. Calibrated
/// keys are missing: `ctqN` is `tqN` with other queries (`certkv bench` has them on the machine's own instruction set).
fn every_codec() -> Vec<String> {
    let widths = |from: u8, to: u8, name: &str, tail: &str| -> Vec<String> {
        (from..=to).map(|bits| format!("{name}{bits}{tail}")).collect()
    };
    let floats = ["e4m3", "e5m2", "e4m3g64"].map(String::from).to_vec();
    let keys = [
        widths(2, 8, "k", ""),
        widths(2, 8, "t", ""),
        widths(2, 8, "t", "g32"),
        widths(1, 6, "tq", ""),
        widths(2, 8, "p", ""),
        widths(2, 8, "p", "g64"),
        floats.clone(),
        widths(1, 3, "s", ""),
        vec!["k0".into()],
    ];
    let values = [
        widths(2, 8, "v", "g64"),
        widths(2, 8, "v", "g32"),
        widths(2, 8, "c", ""),
        widths(1, 6, "tq", ""),
        widths(2, 8, "p", ""),
        widths(2, 8, "p", "g64"),
        floats,
        vec!["c0".into()],
    ];
    let beside_values = keys.concat().into_iter().map(|key| format!("{key}-v4g64-b64"));
    beside_values.chain(values.concat().into_iter().map(|value| format!("k8-{value}-b64"))).collect()
}

/// [`every_codec`] with certificates, one thread, KV head by KV head, each beside 16-bit rows in the same rounds: how many
/// times as fast as those, packed and certified.
fn against(tokens: usize, arch: Arch, named: impl Fn(&&String) -> bool, rounds: usize) {
    let (mut dense, mut work) = (Workload::new("f16-f16-b64", tokens, arch), Workspace::new());
    let cold = vec![1u8; 96 << 20];
    let mut slower = 0;
    let formats: Vec<String> = every_codec().into_iter().filter(|f| named(&f)).collect();
    for format in &formats {
        let mut coded = Workload::new(format, tokens, arch);
        let mut best = [[f64::INFINITY; 3]; HEADS.1];
        for _ in 0..rounds {
            for (i, how) in [How::Bare, How::Bare, How::Certified].into_iter().enumerate() {
                // What the steps before left in the caches goes.
                probe::bandwidth(&cold, 1);
                let layer = if i == 0 { &mut dense } else { &mut coded };
                for (h, best) in best.iter_mut().enumerate() {
                    best[i] = best[i].min(time(|| layer.step_head(h, &mut work, how)));
                }
            }
        }
        let [rows, bare, full] = [0, 1, 2].map(|i| 1e3 * best.iter().map(|b| b[i]).sum::<f64>());
        slower += usize::from(bare > rows);
        println!(
            "{:7} {tokens:6} {format:14} rows {rows:6.2} ms, packed {bare:6.2} ms ({:4.2}x as fast), certified {full:6.2} ms ({:4.2}x)",
            arch.name(),
            rows / bare,
            rows / full
        );
    }
    println!("{}: {} formats, {slower} slower than rows of 16 bits", arch.name(), formats.len());
}

fn time(f: impl FnOnce()) -> f64 {
    let start = Instant::now();
    f();
    start.elapsed().as_secs_f64()
}

/// One thread, KV head by KV head: every head's best time over the rounds, summed. The probe reads 96 MiB in the same
/// rounds; its best is the floor.
fn table(tokens: usize, arch: Arch, formats: &[&str], rounds: usize) {
    let cold = vec![1u8; 96 << 20];
    for format in formats {
        let (mut w, mut work) = (Workload::new(format, tokens, arch), Workspace::new());
        let (mut best, mut read) = ([[f64::INFINITY; WAYS.len()]; HEADS.1], 0.0f64);
        for _ in 0..rounds {
            for (i, how) in WAYS.into_iter().enumerate() {
                read = read.max(probe::bandwidth(&cold, 1));
                for (h, best) in best.iter_mut().enumerate() {
                    best[i] = best[i].min(time(|| w.step_head(h, &mut work, how)));
                }
            }
        }
        let [bare, full, sweeps, half] = [0, 1, 2, 3].map(|i| 1e3 * best.iter().map(|b| b[i]).sum::<f64>());
        let floor = w.bytes() as f64 / read * 1e3;
        println!(
            "{:7} {tokens:6} {format:14} probe {:5.1} GB/s floor {floor:6.2} ms, bare {bare:6.2} ms ({:4.2}x), certified {full:6.2} ms ({:4.2}x, {:+5.1}%), two sweeps {sweeps:6.2} ms ({:+5.1}%), half skipped {half:6.2} ms",
            arch.name(),
            read * 1e-9,
            bare / floor,
            full / floor,
            (full / bare - 1.0) * 100.0,
            (sweeps / bare - 1.0) * 100.0
        );
    }
}

/// One KV head of 2048 tokens over and over: the arithmetic without the memory. `ways` of [`WAYS`].
fn hot(arch: Arch, formats: &[&str], ways: &[How]) {
    for format in formats {
        let (mut w, mut work) = (Workload::new(format, 2048, arch), Workspace::new());
        let ns: Vec<String> = ways
            .iter()
            .map(|&how| {
                let best = (0..4000).map(|_| time(|| w.step_head(0, &mut work, how))).fold(f64::INFINITY, f64::min);
                format!("{:6.1}", best * 1e9 / 64.0)
            })
            .collect();
        println!(
            "{:7} hot {format:14} {} ns per block of 32 tokens: bare, certified, two sweeps, half skipped",
            arch.name(),
            ns.join(" ")
        );
    }
}

/// Prefill of one KV head with 4 query heads: 512 rows at the end of 4096 tokens.
fn prefill(arch: Arch) {
    let (first, rows) = (3584, 512);
    let w = Workload::new("f16-f16-b32", first + rows, arch);
    let best = (0..8).map(|_| time(|| w.prefill(first, rows))).fold(f64::INFINITY, f64::min);
    let products = 4.0 * DIM as f64 * 4.0 * (first..first + rows).map(|t| t as f64 + 1.0).sum::<f64>();
    println!("{:7} prefill {rows} rows at {first}: {:5.1} GFLOP/s", arch.name(), products / best * 1e-9);
}

/// Spherical keys read as codes, and decoded first: into the second cache, and all of them into memory. One thread, as [`against`].
fn decoded(tokens: usize, arch: Arch, rounds: usize) {
    let (mut dense, mut work) = (Workload::new("f16-f16-b64", tokens, arch), Workspace::new());
    let cold = vec![1u8; 96 << 20];
    for format in ["s1-v4g64-b64", "s2-v4g64-b64", "s3-v4g64-b64", "s1-f16-b64"] {
        let mut coded = Workload::new(format, tokens, arch);
        let mut decoders = [32, tokens / 64].map(|blocks| Decoder::new(&coded, blocks));
        let apart = (0..HEADS.1).map(|h| coded.apart(h, &mut work, &mut decoders[0])).fold(0.0, f64::max);
        let mut best = [[f64::INFINITY; 4]; HEADS.1];
        for _ in 0..rounds {
            for i in 0..4 {
                probe::bandwidth(&cold, 1);
                for (h, best) in best.iter_mut().enumerate() {
                    best[i] = best[i].min(time(|| match i {
                        0 => dense.step_head(h, &mut work, How::Bare),
                        1 => coded.step_head(h, &mut work, How::Bare),
                        _ => coded.step_decoded(h, &mut work, &mut decoders[i - 2]),
                    }));
                }
            }
        }
        let [rows, direct, near, far] = [0, 1, 2, 3].map(|i| 1e3 * best.iter().map(|b| b[i]).sum::<f64>());
        println!(
            "{:7} {tokens:6} {format:12} rows {rows:6.2} ms, codes {direct:6.2} ms, decoded 32 blocks at a time {near:6.2} ms ({:4.2}x as long), all first {far:6.2} ms ({:4.2}x); outputs {apart:.1e} apart",
            arch.name(),
            near / direct,
            far / direct
        );
    }
}

/// All heads of a step on one and two threads, with certificates, for criterion's statistics.
fn criterion(c: &mut Criterion) {
    for threads in [1, 2] {
        let pool = Pool::new(threads).expect("threads");
        for format in ["f16-f16-b32", "k8-v4g32-b32", "t4-v4g32-b32"] {
            let mut w = Workload::new(format, 32768, Arch::detect());
            let mut group = c.benchmark_group(format!("decode-32k-x{threads}"));
            group.throughput(Throughput::Bytes(w.bytes() as u64)).sample_size(20);
            group.bench_function(format, |b| b.iter(|| w.step(&pool, How::Certified)));
            group.finish();
        }
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let wants = |word: &str| words.iter().any(|w| w == word);
    let named = |f: &&str| words.iter().all(|w| !w.contains('-') || f.contains(w.as_str()));
    let mut formats: Vec<&str> = FORMATS.into_iter().filter(named).collect();
    // One that is not among them can be given in full.
    if formats.is_empty() {
        formats = words.iter().map(String::as_str).filter(|w| w.parse::<Format>().is_ok()).collect();
    }
    let named_arch = Arch::ALL.into_iter().any(|a| wants(a.name()));
    let wanted = |a: Arch| wants("all") || if named_arch { wants(a.name()) } else { a == Arch::detect() };
    let archs: Vec<Arch> = Arch::ALL.into_iter().filter(|a| a.is_available() && wanted(*a)).collect();
    if wants("hot") {
        let ways = match (wants("bare"), wants("certified")) {
            (true, _) => &WAYS[..1],
            (_, true) => &WAYS[1..2],
            _ => &WAYS[..],
        };
        archs.iter().for_each(|&a| hot(a, &formats, ways));
    }
    if wants("prefill") {
        archs.iter().for_each(|&a| prefill(a));
    }
    if wants("table") {
        let lengths: &[usize] = if wants("lengths") { &[2048, 8192, 32768, 131_072] } else { &[32768] };
        for &a in &archs {
            lengths.iter().for_each(|&n| table(n, a, &formats, 12));
        }
    }
    if wants("decoded") {
        archs.iter().for_each(|&a| decoded(32768, a, 7));
    }
    if wants("against") {
        let named = |f: &&String| words.iter().all(|w| !w.contains('-') || f.contains(w.as_str()));
        archs.iter().for_each(|&a| against(32768, a, named, 5));
    }
    if words.is_empty() {
        let mut c = Criterion::default().configure_from_args();
        criterion(&mut c);
        c.final_summary();
    }
}
