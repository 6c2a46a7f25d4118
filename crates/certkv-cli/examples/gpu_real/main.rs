//! Certified decode of a real model's activations on a GPU: how much is promoted, found and repaired, and how long it takes.
//!
//! ```text
//! gpu_real [--contexts 4096,8192,16384,32768] [--tolerances 0.05,0.02] [--steps 64] [--format k8-v4g64-b64[+F..]] [--model FOLDER]
//!          [--text FILE] [--kernels FOLDER] [--targets 0.5,0.9] [--scratch 0.11] [--copies 64] [--tile 8] [--ragged] [--by-layer]
//!          [--plan-apart] [--threads N] [--ring 0] [--spill memory|FOLDER [--frames 0.25] [--prefetch]]
//! ```
//! The model reads a window of prose and one of code by dense attention on the CPU; keys, values, queries and outputs of the last
//! `--steps` tokens are kept. Then the cache on the GPU takes the context and, as the end of a prompt, the first two of these tokens; it
//! decodes the others, and every output is compared with its bound.
//! `--tile N` repeats the windows' heads until N sequences of 32 query and 8 KV heads are filled, layer by layer, and times recorded
//! steps of them, with `--ragged` of sequences whose blocks fill in different steps; with `--plan-apart`
//! plans and copies run beside the next layers; `--ring` is how many steps' certificates the cache publishes to the host. With `--spill`
//! host memory has room for `--frames` of the context's originals, and memory or files for the others; `--prefetch` asks for some before
//! each step. Exit code 0: every output within its bound; 1: one was not; 2: no GPU.
use certkv::gpu::{Ahead, Compiler, Gpu, GpuConfig};
use certkv::store::{Backend, Durability, FileConfig, FileStore, MemoryStore};
use certkv::{Certified, Geometry, Policy, Spill};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

mod rates;
mod tape;
mod tile;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What the command line asks for.
pub(crate) struct Wanted {
    pub(crate) contexts: Vec<usize>,
    pub(crate) tolerances: Vec<f64>,
    pub(crate) targets: Vec<f64>,
    pub(crate) steps: usize,
    pub(crate) format: String,
    /// Share of all sides that scratch has room for, of keys and of values.
    pub(crate) scratch: f64,
    /// Most copies to scratch of a layer in a step.
    pub(crate) copies: usize,
    pub(crate) tile: usize,
    /// Whether blocks of the tile fill in different steps.
    pub(crate) ragged: bool,
    /// Whether plans and their copies run beside what comes behind their layer.
    pub(crate) plan_apart: bool,
    /// Whether the tile is filled and timed for each layer by itself.
    pub(crate) by_layer: bool,
    pub(crate) threads: usize,
    /// Steps whose certificates are published.
    pub(crate) ring: usize,
    pub(crate) spill: Option<Spilled>,
}

/// Where originals go, and what stays.
pub(crate) struct Spilled {
    pub(crate) store: Arc<dyn Backend>,
    /// Share of the context that host memory has room for.
    pub(crate) frames: f64,
    pub(crate) prefetch: bool,
}

impl Spilled {
    fn new(place: &str, frames: f64, prefetch: bool) -> Result<Self, Failure> {
        let files = |root| FileConfig { root, quota: u64::MAX, durability: Durability::default(), read_back: false };
        let store: Arc<dyn Backend> = match place {
            "memory" => Arc::new(MemoryStore::new(u64::MAX)),
            folder => Arc::new(FileStore::open(files(folder.into()))?),
        };
        Ok(Self { store, frames, prefetch })
    }
}

impl Wanted {
    /// A cache of `sequences` sequences of at most `context` tokens.
    pub(crate) fn config(
        &self,
        geometry: Geometry,
        (sequences, context): (usize, usize),
        (tolerance, target): (f64, f64),
    ) -> Result<GpuConfig, Failure> {
        let context = context.next_multiple_of(64);
        let mut config = GpuConfig::new(geometry, sequences * context);
        let formats = self.format.split('+').map(str::parse).collect::<Result<Vec<_>, _>>()?;
        config.formats =
            (0..if formats.len() == 1 { 1 } else { geometry.layers }).map(|l| formats[l % formats.len()]).collect();
        config.policy = policy(tolerance);
        (config.plan_target, config.plan_apart) = (target, self.plan_apart);
        (config.max_sequences, config.max_context) = (sequences, context);
        (config.threads, config.copies_per_step, config.certificate_ring) =
            (self.threads.min(16), self.copies, self.ring);
        config.spill = self.spill.as_ref().map(|to| {
            let host_tokens = (context as f64 * to.frames) as usize;
            Spill { deadline: Duration::from_secs(60), ..Spill::new(to.store.clone(), host_tokens) }
        });
        Ok(config.with_scratch(self.scratch))
    }
}

pub(crate) fn policy(tolerance: f64) -> Policy {
    Policy::Certified(Certified { tol_rel: tolerance, ..Certified::default() })
}

fn list<T: std::str::FromStr>(text: &str) -> Result<Vec<T>, Failure> {
    text.split(',').map(|x| x.parse().map_err(|_| format!("`{x}` is not understood").into())).collect()
}

fn run(gpu: &Gpu, words: &[String]) -> Result<bool, Failure> {
    let value = |name: &str| words.iter().position(|w| w == name).and_then(|i| words.get(i + 1)).map(String::as_str);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let wanted = Wanted {
        contexts: list(value("--contexts").unwrap_or("4096,8192,16384,32768"))?,
        tolerances: list(value("--tolerances").unwrap_or("0.05,0.02"))?,
        targets: list(value("--targets").unwrap_or("0.9"))?,
        steps: value("--steps").unwrap_or("64").parse()?,
        format: value("--format").unwrap_or(certkv::DEFAULT_FORMAT).into(),
        scratch: value("--scratch").map_or(Ok(certkv::gpu::SCRATCH_SHARE), str::parse)?,
        copies: value("--copies").unwrap_or("64").parse()?,
        tile: value("--tile").unwrap_or("0").parse()?,
        ragged: words.iter().any(|w| w == "--ragged"),
        plan_apart: words.iter().any(|w| w == "--plan-apart"),
        by_layer: words.iter().any(|w| w == "--by-layer"),
        threads: value("--threads").map_or(Ok(threads), str::parse)?,
        ring: value("--ring").unwrap_or("0").parse()?,
        spill: match value("--spill") {
            Some(place) => {
                let frames = value("--frames").unwrap_or("0.25").parse()?;
                Some(Spilled::new(place, frames, words.iter().any(|w| w == "--prefetch"))?)
            }
            None => None,
        },
    };
    let assets = certkv_cli::assets::locate(None);
    let of = |given: Option<&str>, part: &str| match given {
        Some(path) => Ok(path.into()),
        None => assets.as_ref().map(|a| a.join(part)).map_err(|e| e.to_string()),
    };
    let (model, text) = (of(value("--model"), "ref-d128")?, of(value("--text"), "eval/text.bin")?);
    let mut compiler = Compiler::new();
    if let Some(folder) = value("--kernels") {
        compiler = compiler.with_ahead(Ahead::Folder(folder.into())).with_cache(folder);
    }
    println!("{}", gpu.info().name);
    let model = certkv_cli::model::Llama::load(&model)?;
    let mut sound = true;
    for &context in &wanted.contexts {
        let start = std::time::Instant::now();
        let windows = tape::windows(&model, &text, context, wanted.steps, wanted.threads)?;
        println!("context {context}: {} windows read in {:.1} s", windows.len(), start.elapsed().as_secs_f64());
        for &tolerance in &wanted.tolerances {
            for &target in &wanted.targets {
                let rates = rates::measure(gpu, &compiler, &wanted, &windows, model.config(), (tolerance, target))?;
                rates.print(context, tolerance, target);
                sound &= rates.beyond() == 0;
                let given = (tolerance, target);
                if wanted.tile > 0 && !wanted.by_layer {
                    tile::measure(gpu, &compiler, &wanted, &windows, model.config(), given)?;
                }
                for layer in 0..if wanted.tile > 0 && wanted.by_layer { model.config().layers } else { 0 } {
                    println!("  layer {layer}");
                    let own: Vec<_> = windows.iter().map(|window| window.of_layer(layer)).collect();
                    let one = certkv_cli::model::Config { layers: 1, ..model.config().clone() };
                    tile::measure(gpu, &compiler, &wanted, &own, &one, given)?;
                }
            }
        }
    }
    Ok(sound)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let gpu = match Gpu::open(0) {
        Ok(gpu) => gpu,
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::from(2);
        }
    };
    match run(&gpu, &words) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
