//! Failures that caches had in the field, on a GPU (docs/states.md 7): `gpu_states [--only PART,..] [--few] [--replays N] [--seed N]
//! [--cubins FOLDER] [--cache FOLDER]`.
//!
//! Parts: `unwritten` (B12: what memory holds that nobody wrote changes no bit), `erased` (what sequences leave is gone where it is to be erased), `far` (B14: pages behind 2^32 bytes), `replays` (B15: a recorded
//! step a thousand times while pages change hands), `limits` (B20: caches that the machine has no memory for). `far` pins some 11 GB of host
//! memory, with `--few` next to nothing: that shows that the program works, and nothing of far pages. Exit code 0: all hold, 1: something is wrong, 2: no GPU.
mod bench;
#[path = "../common/mod.rs"]
mod common;
mod erased;
mod far;
mod limits;
mod replays;
mod unwritten;

use bench::{Bench, Failure};
use certkv::Geometry;
use certkv::gpu::Gpu;
use common::Words;
use std::process::ExitCode;
use std::time::Instant;

const PARTS: [&str; 5] = ["unwritten", "erased", "far", "replays", "limits"];

/// Runs a part and says how long it took.
fn part(name: &str, bench: &Bench<'_>, (replays, few): (usize, bool)) -> Result<bool, Failure> {
    let start = Instant::now();
    let held = match name {
        "unwritten" => unwritten::run(bench),
        "erased" => erased::run(bench),
        "far" => far::run(bench, few.then(far::Places::few).as_ref()),
        "replays" => replays::run(bench, replays),
        "limits" => limits::run(bench),
        _ => Err(format!("no part {name}; there are {PARTS:?}").into()),
    }?;
    println!("{name}: {:.1} s", start.elapsed().as_secs_f64());
    Ok(held)
}

fn all(gpu: &Gpu, words: &Words) -> Result<bool, Failure> {
    let compiler = words.compiler();
    let bench = Bench {
        gpu,
        compiler: &compiler,
        geometry: Geometry::new(2, 32, 8, 128)?,
        formats: ["k8-v4g64-b64", "k8-v4g64-b64-r8.4"],
        block: 64,
        seed: words.number("--seed", 1) as u64,
        stubs: false,
    };
    let chosen = words.value("--only").map_or_else(|| PARTS.join(","), Clone::clone);
    let how = (words.number("--replays", 1000), words.has("--few"));
    let mut held = true;
    for name in chosen.split(',') {
        // A part that ends early is wrong, and the others still say what they have to say.
        held &= part(name, &bench, how).unwrap_or_else(|error| {
            println!("WRONG {name}: {error}");
            false
        });
    }
    println!("{}", if held { "all held" } else { "SOMETHING IS WRONG" });
    Ok(held)
}

fn main() -> ExitCode {
    let words = Words::given();
    let gpu = match Gpu::open(0) {
        Ok(gpu) => gpu,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    match all(&gpu, &words) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
