//! Decode beside a plain memory read of the same bytes. `cargo bench -p certkv-kernel --bench decode -- [table]`.
mod workload;

use certkv_kernel::{Arch, Workspace, probe};
use std::time::Instant;
use workload::{HEADS, Workload};

const FORMATS: [&str; 7] = [
    "f16-f16-b32", "k8-v4g32-b32", "k8-v4g16-b32", "k8-v6g64-b64", "k8-v8g64-b32", "t4-v4g32-b32", "t8-v4g32-b32",
];

fn time(f: impl FnOnce()) -> f64 {
    let start = Instant::now();
    f();
    start.elapsed().as_secs_f64()
}

/// One thread, KV head by KV head: every head's best time over the rounds, summed. The probe reads slices of a head's size
/// in the same rounds.
fn table(tokens: usize, arch: Arch, formats: &[&str], rounds: usize) {
    let cold = vec![1u8; 96 << 20];
    for format in formats {
        let (mut w, mut work) = (Workload::new(format, tokens, arch), Workspace::new());
        let per_head = w.bytes() / HEADS.1;
        let slices: Vec<&[u8]> = cold.chunks_exact(per_head.min(cold.len() / 8)).collect();
        let mut best = [[f64::INFINITY; 3]; HEADS.1];
        for _ in 0..rounds {
            for (h, best) in best.iter_mut().enumerate() {
                let slice = slices[h % slices.len()];
                let read = time(|| {
                    std::hint::black_box(probe::read_all(std::hint::black_box(slice)));
                });
                best[0] = best[0].min(read * per_head as f64 / slice.len() as f64);
            }
            for (h, best) in best.iter_mut().enumerate() {
                best[1] = best[1].min(time(|| w.step_head(h, &mut work, false)));
            }
            std::hint::black_box(probe::read_all(&cold));
            for (h, best) in best.iter_mut().enumerate() {
                best[2] = best[2].min(time(|| w.step_head(h, &mut work, true)));
            }
        }
        let [floor, bare, full] = [0, 1, 2].map(|i| 1e3 * best.iter().map(|b| b[i]).sum::<f64>());
        println!(
            "{:7} {tokens:6} {format:14} probe {:5.1} GB/s floor {floor:6.2} ms, bare {bare:6.2} ms ({:4.2}x), certified {full:6.2} ms ({:4.2}x, {:+5.1}%)",
            arch.name(),
            w.bytes() as f64 / floor * 1e-6,
            bare / floor,
            full / floor,
            (full / bare - 1.0) * 100.0
        );
    }
}

/// One KV head of 2048 tokens over and over: the arithmetic without the memory.
fn hot(arch: Arch, formats: &[&str]) {
    for format in formats {
        let (mut w, mut work) = (Workload::new(format, 2048, arch), Workspace::new());
        let best = (0..4000).map(|_| time(|| w.step_head(0, &mut work, false))).fold(f64::INFINITY, f64::min);
        println!("{:7} hot {format:14} {:6.1} ns per block of 32 tokens", arch.name(), best * 1e9 / 64.0);
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let named = |f: &&str| words.iter().all(|w| !w.contains('-') || f.contains(w.as_str()));
    let formats: Vec<&str> = FORMATS.into_iter().filter(named).collect();
    hot(Arch::detect(), &formats);
    if !words.iter().any(|w| w == "hot") {
        table(32768, Arch::detect(), &formats, 12);
    }
}
