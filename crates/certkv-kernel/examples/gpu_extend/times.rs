//! Times of long chunks. The records of one random block are at every page, each page in its own memory.
use super::Failure;
use super::extend_cases::metrics::Metrics;
use certkv_codec::Encoder;
use certkv_core::{Dtype, Geometry, RecordLayout};
use certkv_device::cuda::{DeviceBuffer, Gpu, GpuStream, LaunchOptions, TimedEvent};
use certkv_kernel::cuda::args::{Certificate, Element, Strides};
use certkv_kernel::cuda::extend::{ExtendArgs, chunks_of, relay_bytes};
use certkv_kernel::cuda::{Arch, Compiler, Kernels, Variant, Verb};
use certkv_testkit::generate::Rng;

const DIM: usize = 128;
const KV_HEADS: usize = 8;
const GROUP: usize = 4;

/// Tokens before each chunk, tokens of it, chunks.
pub(crate) const SHAPES: &str = "32768x2048x1,0x2048x1,0x8192x1,0x131072x1,131072x512x1,8192x128x8";

/// A shape as in [`SHAPES`].
fn shape_of(text: &str) -> Result<(usize, usize, usize), Failure> {
    let sizes: Vec<usize> = text.split('x').map(str::parse).collect::<Result<_, _>>()?;
    let [before, tokens, chunks] = sizes[..] else { return Err(format!("--shapes: {text}").into()) };
    Ok((before, tokens, chunks))
}

fn normals(n: usize, seed: u64) -> Vec<u16> {
    let mut r = Rng::new(seed);
    (0..n).map(|_| Dtype::F16.encode16(r.normal() as f32)).collect()
}

/// Products that the chunks need, in units of 10^12 operations.
fn tera(before: usize, tokens: usize, chunks: usize) -> f64 {
    let seen = before as f64 * tokens as f64 + tokens as f64 * (tokens as f64 + 1.0) / 2.0;
    4.0 * DIM as f64 * (KV_HEADS * GROUP * chunks) as f64 * seen * 1e-12
}

pub(crate) fn print<'a>(
    gpu: &Gpu,
    stream: &GpuStream,
    compiler: &Compiler,
    formats: impl Iterator<Item = &'a str>,
    shapes: &str,
) -> Result<(), Failure> {
    let shapes = shapes.split(',').map(shape_of).collect::<Result<Vec<_>, _>>()?;
    let arch = Arch::of(gpu.info().arch)?;
    println!(
        "{:28} {:>8} {:>7} {:>6} {:>12} {:>10} {:>12} {:>10}",
        "format", "before", "tokens", "chunks", "us", "TFLOP/s", "certified us", "TFLOP/s"
    );
    for format in formats {
        let parts: Vec<&str> = format.split('+').collect();
        let of = |format: &&str| -> Result<Variant, Failure> {
            let layout = RecordLayout::new(&Geometry::new(1, GROUP * KV_HEADS, KV_HEADS, DIM)?, format.parse()?)?;
            Ok(Variant::new(layout, GROUP, arch)?)
        };
        let variants = parts.iter().map(of).collect::<Result<Vec<_>, _>>()?;
        let kernels = Kernels::prepare_verbs(gpu, &variants, &[Verb::Extend], compiler)?;
        for &(before, tokens, chunks) in &shapes {
            let us =
                [false, true].map(|certify| time(gpu, stream, &kernels, &variants, (before, tokens, chunks), certify));
            let [plain, certified] = us;
            let (plain, certified, tera) = (plain?, certified?, tera(before, tokens, chunks));
            println!(
                "{format:28} {before:8} {tokens:7} {chunks:6} {plain:12.1} {:10.1} {certified:12.1} {:10.1}",
                tera / plain * 1e6,
                tera / certified * 1e6
            );
        }
    }
    Ok(())
}

/// Memory, and a launch over the records in it.
type Level = (Vec<DeviceBuffer>, ExtendArgs);

/// The levels' blocks, as many of each, page after page in memory of their own.
fn level(
    gpu: &Gpu,
    stream: &GpuStream,
    variant: &Variant,
    (before, tokens, chunks): (usize, usize, usize),
    (number, levels): (usize, usize),
) -> Result<(Level, usize), Failure> {
    let l = variant.layout();
    let b = l.tokens();
    let upload = |bytes: &[u8]| upload(gpu, stream, bytes);
    let sequences = (0..chunks as u32).map(|row| (row, before as u32, tokens as u32));
    let (mut list, tiles, staged) = chunks_of(&variant.extend_shape(), b, sequences);
    let own = (before / b + levels - 1 - number) / levels;
    let last = number + 1 == levels;
    list.iter_mut().for_each(|chunk| (chunk.coded, chunk.to) = (own as u32, if last { u32::MAX } else { 0 }));
    let pages = (own * chunks).max(1);
    let (keys, values) = (normals(b * DIM, 1), normals(b * DIM, 2));
    let mut record = vec![0; l.bytes];
    let mut fragment = vec![0; l.bytes];
    let metrics = Metrics::usual(l, KV_HEADS);
    let mut page = Vec::new();
    if l.format.key.is_exact() || l.format.value.is_exact() {
        // Rows in any order are as good.
        record[l.key_codes.clone()].copy_from_slice(&words(&keys)[..l.key_codes.len()]);
        record[l.value_codes.clone()].copy_from_slice(&words(&values)[..l.value_codes.len()]);
        page = record.repeat(KV_HEADS);
    } else {
        for head in 0..KV_HEADS {
            Encoder::new(l).encode_in(metrics.head(head).as_ref(), &keys, &values, &[0.0; DIM], &mut record)?;
            metrics.to_fragment(head, l, &record, &mut fragment);
            page.extend(&fragment);
        }
    }
    let packed = DeviceBuffer::new(gpu, pages * page.len())?;
    for at in 0..pages {
        packed.write(stream, at * page.len(), &page)?;
    }
    let table = upload(&(0..pages as u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>())?;
    let told = metrics.words().map(|words| upload(&words.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<_>>()));
    let told = told.transpose()?;
    let listed = upload(&list.iter().flat_map(|c| c.words()).flat_map(u32::to_le_bytes).collect::<Vec<_>>())?;
    let args = ExtendArgs {
        chunks: listed.address(),
        packed: packed.address(),
        page_stride: page.len() as u64,
        head_stride: l.bytes as u64,
        table: table.address(),
        chunk_count: chunks as u32,
        tiles,
        kv_heads: KV_HEADS as u32,
        table_stride: own as u32,
        query_type: Element::F16 as u32,
        scale: (DIM as f32).powf(-0.5),
        relative: 0.05,
        query_strides: Strides::dense(KV_HEADS * GROUP, DIM),
        out_strides: Strides::dense(KV_HEADS * GROUP, DIM),
        metrics: told.as_ref().map_or(0, DeviceBuffer::address),
        part: u32::from(number > 0) | u32::from(!last) << 1,
        ..ExtendArgs::default()
    };
    let memory = [packed, table, listed].into_iter().chain(told).collect();
    Ok(((memory, args), staged as usize))
}

fn words(x: &[u16]) -> Vec<u8> {
    x.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn upload(gpu: &Gpu, stream: &GpuStream, bytes: &[u8]) -> Result<DeviceBuffer, Failure> {
    let buffer = DeviceBuffer::new(gpu, bytes.len().max(16))?;
    buffer.write(stream, 0, bytes)?;
    Ok(buffer)
}

fn time(
    gpu: &Gpu,
    stream: &GpuStream,
    kernels: &Kernels,
    variants: &[Variant],
    shape: (usize, usize, usize),
    certify: bool,
) -> Result<f64, Failure> {
    let (_, tokens, chunks) = shape;
    let b = variants[0].layout().tokens();
    let mut levels = Vec::new();
    let mut staged = 0;
    for (number, variant) in variants.iter().enumerate() {
        let (level, blocks) = level(gpu, stream, variant, shape, (number, variants.len()))?;
        levels.push(level);
        staged = blocks;
    }
    let side = words(&normals(b * DIM, 3));
    let block = side.repeat(2 * KV_HEADS);
    let staging = DeviceBuffer::new(gpu, staged * block.len())?;
    for at in 0..staged {
        staging.write(stream, at * block.len(), &block)?;
    }
    let rows = tokens * chunks * KV_HEADS * GROUP;
    let mut queries = normals(DIM * 4096, 4);
    queries = queries.into_iter().cycle().take(rows * DIM).collect();
    let query = upload(gpu, stream, &words(&queries))?;
    let out = DeviceBuffer::new(gpu, rows * DIM * 2)?;
    let sums = DeviceBuffer::new(gpu, if variants.len() > 1 { rows * DIM * 4 } else { 16 })?;
    let certificates = DeviceBuffer::new(gpu, rows * size_of::<Certificate>())?;
    let kept = DeviceBuffer::new(gpu, relay_bytes(tokens * chunks, KV_HEADS * GROUP))?;
    let launch = || -> Result<(), Failure> {
        for ((_, args), variant) in levels.iter().zip(variants) {
            let args = ExtendArgs {
                staged: staging.address(),
                staged_stride: block.len() as u64,
                query: query.address(),
                out: out.address(),
                sums: sums.address(),
                out_type: Element::F16 as u32,
                certificates: if certify { certificates.address() } else { 0 },
                kept: kept.address(),
                ..*args
            };
            let (function, shape) = (kernels.get(variant, Verb::Extend)?, variant.extend_shape());
            let (ctas, threads) = (args.tiles * args.kv_heads, shape.threads() as u32);
            // SAFETY: every address is that of a live buffer of the size the kernel's argument documents.
            unsafe { function.launch(stream, ctas, threads, shape.shared as u32, &args, LaunchOptions::default()) }?;
        }
        Ok(())
    };
    let timer = TimedEvent::new(gpu)?;
    let mut times = Vec::new();
    for i in 0..12 {
        timer.start(stream)?;
        launch()?;
        timer.stop(stream)?;
        stream.synchronize()?;
        if i >= 2 {
            times.push(f64::from(timer.elapsed_ms()?) * 1e3);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
