//! Times of the decode kernel: `gpu_bench [--cache FOLDER] [--cubins FOLDER] [--json FILE] [--csv FILE] [--shapes 8x32K,8x1K*,..] [--formats a,b]
//! [--beside P[,M]] [--drafts T[,T2,..]]`.
//!
//! 32 query heads, 8 KV heads, 128 channels; one layer; pages scattered over a pool larger than the L2 cache and rotated; launches
//! replayed from a graph; medians. Each row: the bare pass, with certificates, with block masses on top, that overlapped with the launch ahead, and that behind an
//! append each, as a step has it.
#[path = "../../tests/device_cases/metrics.rs"]
#[allow(dead_code, unreachable_pub, reason = "tests use more of it")]
mod metrics;

mod beside;
mod drafts;

use beside::Beside;
use certkv_codec::Encoder;
use certkv_core::{Geometry, RecordLayout};
use certkv_device::cuda::{DeviceBuffer, Gpu, GpuStream, GraphExec, LaunchOptions, Priority, TimedEvent};
use certkv_kernel::cuda::args::{AttendArgs, Certificate, Element, Strides};
use certkv_kernel::cuda::encode::{AppendArgs, PACK_THREADS, append_flag};
use certkv_kernel::cuda::{Ahead, Arch, Compiler, Kernels, Variant, Verb, launch};
use certkv_testkit::generate::Rng;
use metrics::Metrics;
use rayon::prelude::*;
use std::fmt::Write as _;
use std::process::ExitCode;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const DIM: usize = 128;
const KV_HEADS: usize = 8;
const GROUP: usize = 4;
/// Pages that are really encoded; the rest of the pool repeats them.
const REAL_PAGES: usize = 48;
const POOL_BYTES: usize = 3000 << 20;
/// Bytes that the slices of one graph read together at least, so that nothing stays in the cache.
const COLD_BYTES: usize = 512 << 20;

struct Words(Vec<String>);

impl Words {
    fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().position(|w| w == name).and_then(|i| self.0.get(i + 1)).map(String::as_str)
    }
}

fn size(text: &str) -> usize {
    match text.strip_suffix('K') {
        Some(n) => n.parse::<usize>().unwrap_or(0) * 1024,
        None => text.parse().unwrap_or(0),
    }
}

/// Tokens of each sequence of a shape: `8x32K` is eight of 32K, `8x1K*` is eight of 1K, 2K, 4K, .. 128K. Of `32x8160` each has an open
/// block, as nearly every sequence of a server does.
fn lengths(shape: &str) -> Result<Vec<usize>, Failure> {
    let parsed = shape.split_once('x').map(|(s, c)| (size(s), size(c.trim_end_matches('*')), c.ends_with('*')));
    match parsed {
        Some((seqs @ 1..=MOST_SEQS, context @ 1.., doubles)) => {
            Ok((0..seqs).map(|i| if doubles { context << i } else { context }).collect())
        }
        _ => Err(format!("shape {shape}").into()),
    }
}

/// One format's pool of pages and what a launch needs beside it.
struct Pool {
    layout: RecordLayout,
    page_stride: usize,
    pages: usize,
    _packed: DeviceBuffer,
    _sides: DeviceBuffer,
    _originals: DeviceBuffer,
    base: AttendArgs,
    append: AppendArgs,
    /// Lengths before the tokens that those appends bring, and how many sequences.
    before: DeviceBuffer,
    count: DeviceBuffer,
    lens: DeviceBuffer,
    table: DeviceBuffer,
    promoted: DeviceBuffer,
    _rest: Vec<DeviceBuffer>,
}

const MOST_SEQS: usize = 64;
const SIDES: usize = 4096;

fn upload<T: certkv_device::cuda::Pod>(gpu: &Gpu, stream: &GpuStream, data: &[T]) -> Result<DeviceBuffer, Failure> {
    let buffer = DeviceBuffer::new(gpu, size_of_val(data).max(16))?;
    buffer.write(stream, 0, data)?;
    Ok(buffer)
}

fn zeroed(gpu: &Gpu, stream: &GpuStream, bytes: usize) -> Result<DeviceBuffer, Failure> {
    let buffer = DeviceBuffer::new(gpu, bytes)?;
    buffer.fill(stream, 0, bytes, 0)?;
    Ok(buffer)
}

impl Pool {
    fn new(gpu: &Gpu, stream: &GpuStream, format: &str, ctas: usize) -> Result<Self, Failure> {
        let geometry = Geometry::new(1, GROUP * KV_HEADS, KV_HEADS, DIM)?;
        let layout = RecordLayout::new(&geometry, format.parse()?)?;
        let variant = Variant::new(layout.clone(), GROUP, Arch::of(gpu.info().arch)?)?;
        let count = layout.count();
        let page_stride = KV_HEADS * layout.bytes;
        let pages = POOL_BYTES / page_stride;
        // Keys of a calibration: any will do.
        let coded = Metrics::usual(&layout, KV_HEADS);
        let metrics = upload(gpu, stream, &coded.words().unwrap_or_default())?;
        let records: Vec<Vec<u8>> = (0..REAL_PAGES * KV_HEADS)
            .into_par_iter()
            .map(|i| {
                let mut r = Rng::new(i as u64);
                let mut side = |scale: f64| -> Vec<u16> {
                    (0..count).map(|_| geometry.store.encode16((scale * r.normal()) as f32)).collect()
                };
                let (keys, values) = (side(1.0), side(0.5));
                let (mut record, mut out) = (vec![0; layout.bytes], vec![0; layout.bytes]);
                let metric = coded.head(i % KV_HEADS);
                Encoder::new(&layout).encode_in(metric.as_ref(), &keys, &values, &[0.0; DIM], &mut record)?;
                coded.to_fragment(i % KV_HEADS, &layout, &record, &mut out);
                Ok(out)
            })
            .collect::<Result<_, Failure>>()?;
        let real: Vec<u8> = records.concat();
        let packed = DeviceBuffer::new(gpu, pages * page_stride)?;
        packed.write(stream, 0, &real)?;
        let mut filled = real.len();
        while filled < packed.len() {
            let n = filled.min(packed.len() - filled);
            let source = DeviceBuffer::new(gpu, n)?;
            source.copy_from(stream, 0, &packed, 0, n)?;
            packed.copy_from(stream, filled, &source, 0, n)?;
            stream.synchronize()?;
            filled += n;
        }
        let mut r = Rng::new(9);
        let mut normals = |n: usize, scale: f64| -> Vec<u16> {
            (0..n).map(|_| geometry.store.encode16((scale * r.normal()) as f32)).collect()
        };
        let query = upload(gpu, stream, &normals(MOST_SEQS * KV_HEADS * GROUP * DIM, 1.5))?;
        let originals = upload(gpu, stream, &normals(SIDES * count / 16, 1.0))?;
        let tail = upload(gpu, stream, &normals(MOST_SEQS * KV_HEADS * 2 * count, 1.0))?;
        let norms = zeroed(gpu, stream, MOST_SEQS * launch::row_norm_bytes(KV_HEADS, layout.tokens()))?;
        let step = layout.original_side_bytes() / 16 / 16 * 16;
        let addresses: Vec<u64> = (0..SIDES)
            .flat_map(|i| {
                let at = originals.address()
                    + (i * step % (originals.len() - layout.original_side_bytes())) as u64 / 16 * 16;
                [at, at]
            })
            .collect();
        let sides = upload(gpu, stream, &addresses)?;
        let lens = zeroed(gpu, stream, MOST_SEQS * 4)?;
        let tails = upload(gpu, stream, &(0..MOST_SEQS as u32).collect::<Vec<_>>())?;
        let table = zeroed(gpu, stream, pages * 8)?;
        let heads = MOST_SEQS * KV_HEADS;
        let promoted = zeroed(gpu, stream, pages * KV_HEADS * 4)?;
        let out = zeroed(gpu, stream, heads * GROUP * DIM * 2)?;
        let certificates = zeroed(gpu, stream, heads * GROUP * size_of::<Certificate>())?;
        let masses = zeroed(gpu, stream, (pages + MOST_SEQS) * KV_HEADS * GROUP * 4)?;
        let failures = zeroed(gpu, stream, (1 + heads) * 1024)?;
        let partials = zeroed(gpu, stream, launch::partial_bytes(&variant, ctas, heads))?;
        let counters = zeroed(gpu, stream, heads * 4)?;
        let base = AttendArgs {
            packed: packed.address(),
            page_stride: page_stride as u64,
            head_stride: layout.bytes as u64,
            table: table.address(),
            lens: lens.address(),
            sides: sides.address(),
            tails: tails.address(),
            tail_base: tail.address(),
            tail_stride: (KV_HEADS * 2 * layout.original_side_bytes()) as u64,
            row_norms: norms.address(),
            query: query.address(),
            out: out.address(),
            certificates: certificates.address(),
            masses: masses.address(),
            failures: 0,
            partials: partials.address(),
            counters: counters.address(),
            kv_heads: KV_HEADS as u32,
            query_type: Element::F16 as u32,
            out_type: Element::F16 as u32,
            scale: (DIM as f32).powf(-0.5),
            relative: 0.05,
            metrics: metrics.address(),
            query_strides: Strides::dense(KV_HEADS * GROUP, DIM),
            out_strides: Strides::dense(KV_HEADS * GROUP, DIM),
            ..AttendArgs::default()
        };
        let (before, count, errors) =
            (zeroed(gpu, stream, MOST_SEQS * 4)?, zeroed(gpu, stream, 16)?, zeroed(gpu, stream, MOST_SEQS * 4)?);
        let rows = upload(gpu, stream, &normals(MOST_SEQS * KV_HEADS * DIM, 1.0))?;
        let append = AppendArgs {
            keys: rows.address(),
            values: rows.address(),
            count: count.address(),
            lens: before.address(),
            errors: errors.address(),
            tails: tails.address(),
            tail_base: tail.address(),
            tail_stride: base.tail_stride,
            row_norms: base.row_norms,
            key_strides: Strides::dense(KV_HEADS, DIM),
            value_strides: Strides::dense(KV_HEADS, DIM),
            kv_heads: KV_HEADS as u32,
            key_input: Element::F16 as u32,
            value_input: Element::F16 as u32,
            flags: append_flag::SETTLED,
            ..AppendArgs::default()
        };
        let rest = vec![
            norms,
            rows,
            errors,
            metrics,
            query,
            tail,
            tails,
            out,
            certificates,
            masses,
            failures,
            partials,
            counters,
        ];
        Ok(Self {
            layout,
            page_stride,
            pages,
            _packed: packed,
            _sides: sides,
            _originals: originals,
            base,
            append,
            before,
            count,
            lens,
            table,
            promoted,
            _rest: rest,
        })
    }
}

/// Microseconds per launch of replays of a graph of `launches`.
fn replay(gpu: &Gpu, stream: &GpuStream, exec: &GraphExec, launches: usize) -> Result<Vec<f64>, Failure> {
    let timer = TimedEvent::new(gpu)?;
    let mut times = Vec::new();
    for i in 0..12 {
        timer.start(stream)?;
        // SAFETY: the buffers that the captured launches name outlive this call, which waits for them.
        unsafe { exec.launch(stream)? };
        timer.stop(stream)?;
        stream.synchronize()?;
        if i >= 2 {
            times.push(f64::from(timer.elapsed_ms()?) * 1e3 / launches as f64);
        }
    }
    Ok(times)
}

fn bench(gpu: &Gpu, words: &Words) -> Result<(), Failure> {
    let mut compiler = Compiler::new();
    if let Some(folder) = words.value("--cubins") {
        compiler = compiler.with_ahead(Ahead::Folder(folder.into()));
    }
    if let Some(folder) = words.value("--cache") {
        compiler = compiler.with_cache(folder);
    }
    let arch = Arch::of(gpu.info().arch)?;
    let ctas = gpu.info().multiprocessors as usize;
    let stream = GpuStream::new(gpu, Priority::Normal)?;
    let shapes = words
        .value("--shapes")
        .unwrap_or("1x1K,1x2K,1x4K,1x8K,1x32K,1x128K,8x1K,8x8K,8x32K,8x1K*,8x128K,32x1K,32x8K,32x32K");
    let formats = words.value("--formats").unwrap_or("k8-v4g64-b64,k8-v4g64-b32,k8-v8g64-b64,f16-f16-b16");
    let beside = Beside::asked(words)?;
    let share: f64 = words.value("--promoted").unwrap_or("0").parse()?;
    let mut json = String::from("[");
    let mut csv = String::from(
        "format,shape,promoted,bytes,bare_us,certified_us,masses_us,masses_min_us,overlapped_us,appended_us\n",
    );
    for format in formats.split(',') {
        let pool = Pool::new(gpu, &stream, format, ctas)?;
        let quick = Variant::new(pool.layout.clone(), GROUP, arch)?;
        let cuts = match words.value("--cut").and_then(|c| c.split_once('x')) {
            Some((warps, stages)) => {
                let cut = quick.clone().with_shape(warps.parse()?, stages.parse()?)?;
                [cut.clone(), cut]
            }
            None => [quick.clone(), quick.clone().wide()],
        };
        let variants: Vec<Variant> = cuts.iter().flat_map(|v| [v.clone(), v.clone().uncertified()]).collect();
        let drafted = drafts::asked(words.value("--drafts"), &quick)?;
        let variants = [variants, drafted.clone()].concat();
        let kernels = Kernels::prepare_verbs(gpu, &variants, &[Verb::Attend, Verb::Append, Verb::Gather], &compiler)?;
        for cut in &cuts {
            let info = kernels.get(cut, Verb::Attend)?.info();
            println!(
                "{format}: {} bytes a token and head, {} registers, {} local bytes, {:?}",
                pool.layout.bytes as f64 / pool.layout.tokens() as f64,
                info.registers,
                info.local_bytes,
                cut.shape()
            );
        }
        let b = pool.layout.tokens();
        for shape in shapes.split(',') {
            let lens = lengths(shape)?;
            let (seqs, blocks) = (lens.len(), lens.iter().max().map_or(0, |n| n / b));
            let read: usize = lens.iter().map(|n| n / b).sum();
            let bytes = read * pool.page_stride;
            if seqs * blocks > pool.pages {
                continue;
            }
            let slices = (COLD_BYTES.div_ceil(bytes)).clamp(1, pool.pages / (seqs * blocks));
            // One context may not profit from what another left in the cache; long graphs hide the host.
            let launches = slices.max(8);
            let mut r = Rng::new(5);
            let mut ids: Vec<u32> = (0..pool.pages as u32).collect();
            for i in (1..ids.len()).rev() {
                ids.swap(i, r.below(i + 1));
            }
            ids.truncate(slices * seqs * blocks);
            pool.table.write(&stream, 0, &ids)?;
            pool.lens.write(&stream, 0, &lens.iter().map(|n| *n as u32).collect::<Vec<_>>())?;
            if share > 0.0 {
                let words: Vec<u32> = (0..seqs * KV_HEADS * blocks)
                    .map(|_| if r.chance(share) { 1 + r.below(SIDES) as u32 } else { 0 })
                    .collect();
                pool.promoted.write(&stream, 0, &words)?;
            }
            let certified = &cuts[usize::from(read * KV_HEADS >= quick.wide_from(ctas))];
            let bare = certified.clone().uncertified();
            // Each variant three times, by turns: clocks and neighbours change over a run.
            let mut rounds = Vec::new();
            let before: Vec<u32> = lens.iter().map(|n| *n as u32 - 1).collect();
            pool.before.write(&stream, 0, &before)?;
            pool.count.write(&stream, 0, &[seqs as u32])?;
            let append = kernels.get(certified, Verb::Append)?;
            let order = [
                (&bare, false, false, false),
                (certified, false, false, false),
                (certified, true, false, false),
                (certified, true, true, false),
                (certified, true, true, true),
            ];
            for (variant, masses, programmatic, appends) in order {
                let function = kernels.get(variant, Verb::Attend)?;
                let cut = variant.shape();
                let capture = stream.begin_capture()?;
                for i in 0..launches {
                    let args = AttendArgs {
                        table: pool.table.address() + ((i % slices) * seqs * blocks * 4) as u64,
                        promoted: if share > 0.0 { pool.promoted.address() } else { 0 },
                        masses: if masses { pool.base.masses } else { 0 },
                        seqs: seqs as u32,
                        table_stride: blocks as u32,
                        // As the engine launches it behind an append.
                        settled: u32::from(programmatic),
                        closing: u32::from(appends),
                        ..pool.base
                    };
                    let options = LaunchOptions { programmatic, ..LaunchOptions::default() };
                    if appends {
                        let grid = (seqs * KV_HEADS).min(2 * ctas) as u32;
                        let args = AppendArgs { blocks: 1 + blocks as u32, ..pool.append };
                        // SAFETY: as below.
                        unsafe { append.launch(&stream, grid, PACK_THREADS, 0, &args, options)? };
                    }
                    // SAFETY: every address is that of a live buffer of the size that the kernel's argument documents.
                    unsafe {
                        function.launch(
                            &stream,
                            ctas as u32,
                            cut.threads() as u32,
                            cut.shared as u32,
                            &args,
                            options,
                        )?
                    };
                }
                rounds.push((capture.end()?.instantiate()?, Vec::new()));
            }
            for _ in 0..3 {
                for (exec, times) in &mut rounds {
                    times.extend(replay(gpu, &stream, exec, launches)?);
                }
            }
            let row: Vec<(f64, f64)> = rounds
                .into_iter()
                .map(|(_, mut times)| {
                    times.sort_by(f64::total_cmp);
                    (times[times.len() / 2], times[0])
                })
                .collect();
            let rate = |us: f64| bytes as f64 / us * 1e-3;
            println!(
                "  {shape:>7} {:8.1} MB: bare {:7.1} us, certified {:7.1} us {:5.0} GB/s, with masses {:7.1} (least {:7.1}) us {:5.0} GB/s, overlapped {:7.1} us, behind appends {:7.1} us",
                bytes as f64 * 1e-6,
                row[0].0,
                row[1].0,
                rate(row[1].0),
                row[2].0,
                row[2].1,
                rate(row[2].0),
                row[3].0,
                row[4].0
            );
            let table = |i: usize| pool.table.address() + ((i % slices) * seqs * blocks * 4) as u64;
            let drafted = (&pool, &kernels, &drafted[..]);
            drafts::measure(gpu, &stream, drafted, (&lens, blocks, launches), &table)?;
            if let Some(beside) = &beside {
                let (function, cut) = (kernels.get(certified, Verb::Attend)?, certified.shape());
                let attend = |on: &GpuStream, i: usize, left: u32| -> Result<(), Failure> {
                    let args = AttendArgs {
                        table: pool.table.address() + ((i % slices) * seqs * blocks * 4) as u64,
                        masses: pool.base.masses,
                        seqs: seqs as u32,
                        table_stride: blocks as u32,
                        ..pool.base
                    };
                    let options = LaunchOptions { programmatic: true, ..LaunchOptions::default() };
                    // SAFETY: as above.
                    Ok(unsafe {
                        function.launch(on, ctas as u32 - left, cut.threads() as u32, cut.shared as u32, &args, options)
                    }?)
                };
                let sides = (read * KV_HEADS, pool.layout.original_side_bytes());
                beside.measure(gpu, &stream, kernels.get(certified, Verb::Gather)?, sides, &attend)?;
            }
            let _ = writeln!(
                csv,
                "{format},{shape},{share},{bytes},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3}",
                row[0].0, row[1].0, row[2].0, row[2].1, row[3].0, row[4].0
            );
            let _ = write!(
                json,
                "{}\n{{\"format\":\"{format}\",\"shape\":\"{shape}\",\"promoted\":{share},\"bytes\":{bytes},\"bare_us\":{:.3},\"certified_us\":{:.3},\"masses_us\":{:.3},\"masses_min_us\":{:.3},\"overlapped_us\":{:.3},\"appended_us\":{:.3}}}",
                if json.len() > 1 { "," } else { "" },
                row[0].0,
                row[1].0,
                row[2].0,
                row[2].1,
                row[3].0,
                row[4].0
            );
        }
    }
    if let Some(file) = words.value("--csv") {
        std::fs::write(file, csv)?;
    }
    json.push_str("\n]\n");
    if let Some(file) = words.value("--json") {
        std::fs::write(file, json)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let words = Words(std::env::args().skip(1).collect());
    let gpu = match Gpu::open(0) {
        Ok(gpu) => gpu,
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::from(2);
        }
    };
    match bench(&gpu, &words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
