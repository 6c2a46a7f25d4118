//! Times of the kernels around the decode kernel: `gpu_verbs [--cache FOLDER] [--cubins FOLDER] [--formats a,b] [--packs]`; `--packs`: packing alone.
//!
//! Cold start with cached machine code; steps of one token a sequence, in which blocks fill, of 32 layers (`steps.rs`); packing of many blocks; page-in of
//! scattered blocks from mapped pinned memory; whole pages out and in. 8 KV heads of 128 channels, one layer; launches replayed from a graph; medians.
#[path = "../../tests/device_cases/metrics.rs"]
#[allow(dead_code, unreachable_pub, reason = "tests use more of it")]
mod metrics;
mod steps;

use certkv_core::hash::splitmix64;
use certkv_core::{Geometry, RecordLayout};
use certkv_device::cuda::{DeviceBuffer, Gpu, GpuStream, LaunchOptions, PinnedBuffer, Pod, Priority, TimedEvent};
use certkv_kernel::cuda::encode::{GatherArgs, GatherItem, PACK_THREADS, PackArgs, PackItem, pack_shared};
use certkv_kernel::cuda::swap::{SwapArgs, digest};
use certkv_kernel::cuda::{Ahead, Arch, Compiler, Kernels, Variant, Verb};
use certkv_testkit::generate::Rng;
use metrics::Metrics;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::time::Instant;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const DIM: usize = 128;
const KV_HEADS: usize = 8;
const LAUNCHES: usize = 32;

struct Bench<'a> {
    gpu: &'a Gpu,
    stream: &'a GpuStream,
}

impl Bench<'_> {
    fn upload<T: Pod>(&self, data: &[T]) -> Result<DeviceBuffer, Failure> {
        let buffer = DeviceBuffer::new(self.gpu, size_of_val(data).max(16))?;
        buffer.write(self.stream, 0, data)?;
        Ok(buffer)
    }

    fn zeroed(&self, bytes: usize) -> Result<DeviceBuffer, Failure> {
        let buffer = DeviceBuffer::new(self.gpu, bytes)?;
        buffer.fill(self.stream, 0, bytes, 0)?;
        Ok(buffer)
    }

    /// Median microseconds of one of the launches that `enqueue` makes, replayed from a graph of [`LAUNCHES`].
    fn time(&self, enqueue: impl FnMut(usize) -> Result<(), Failure>) -> Result<f64, Failure> {
        self.time_of(LAUNCHES, enqueue)
    }

    /// The same of a graph of `count`.
    fn time_of(&self, count: usize, mut enqueue: impl FnMut(usize) -> Result<(), Failure>) -> Result<f64, Failure> {
        let capture = self.stream.begin_capture()?;
        for i in 0..count {
            enqueue(i)?;
        }
        let exec = capture.end()?.instantiate()?;
        let timer = TimedEvent::new(self.gpu)?;
        let mut times = Vec::new();
        for i in 0..22 {
            timer.start(self.stream)?;
            // SAFETY: the buffers that the captured launches name outlive this call, which waits for them.
            unsafe { exec.launch(self.stream)? };
            timer.stop(self.stream)?;
            self.stream.synchronize()?;
            if i >= 2 {
                times.push(f64::from(timer.elapsed_ms()?) * 1e3 / count as f64);
            }
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
}

fn normals(n: usize) -> Vec<u16> {
    let mut r = Rng::new(3);
    (0..n).map(|_| certkv_core::Dtype::F16.encode16(r.normal() as f32)).collect()
}

fn pack(bench: &Bench<'_>, kernels: &Kernels, variant: &Variant, blocks: usize) -> Result<(), Failure> {
    let layout = variant.layout();
    let side = layout.original_side_bytes();
    let metrics = bench.upload(&Metrics::usual(layout, KV_HEADS).words().unwrap_or_default())?;
    let originals = bench.upload(&normals(blocks * side))?;
    let records = bench.zeroed(blocks * layout.bytes)?;
    let centre = bench.zeroed(DIM * 4)?;
    let items: Vec<u64> = (0..blocks as u64)
        .flat_map(|i| {
            let keys = originals.address() + i * 2 * side as u64;
            let record = records.address() + i * layout.bytes as u64;
            PackItem { keys, values: keys + side as u64, centre: centre.address(), record }.words()
        })
        .collect();
    let (items, count, status) = (bench.upload(&items)?, bench.upload(&[blocks as u32])?, bench.zeroed(16)?);
    let args = PackArgs {
        items: items.address(),
        count: count.address(),
        status: status.address(),
        order: 1,
        kv_heads: KV_HEADS as u32,
        metrics: metrics.address(),
        ..PackArgs::default()
    };
    let function = kernels.get(variant, Verb::Pack)?;
    let grid = (2 * blocks).min(2 * bench.gpu.info().multiprocessors as usize) as u32;
    let us = bench.time(|_| {
        // SAFETY: every address is that of a live buffer of the size that the kernel's argument documents.
        unsafe {
            function.launch(bench.stream, grid, PACK_THREADS, pack_shared(layout), &args, LaunchOptions::default())?;
        }
        Ok(())
    })?;
    let bytes = (blocks * 2 * side) as f64;
    println!("pack, {blocks:5} blocks: {us:.1} us, {:.0} GB/s of originals", bytes / us * 1e-3);
    Ok(())
}

fn page_in(bench: &Bench<'_>, kernels: &Kernels, variant: &Variant, bytes: usize, ctas: u32) -> Result<(), Failure> {
    let pieces = (32 << 20) / bytes;
    let pool = 1usize << 30;
    let threads = NonZeroUsize::new(16).unwrap_or(NonZeroUsize::MIN);
    let host = PinnedBuffer::new(bench.gpu, pool, threads)?;
    let device = bench.zeroed(pieces * bytes)?;
    let mut r = Rng::new(1);
    let items: Vec<u64> = (0..pieces)
        .flat_map(|i| {
            let from = host.device_address() + (r.below(pool / bytes) * bytes) as u64;
            let item = GatherItem { from, to: device.address() + (i * bytes) as u64, bytes: bytes as u64, mark: 0 };
            [item.from, item.to, item.bytes, item.mark]
        })
        .collect();
    let (items, count) = (bench.upload(&items)?, bench.upload(&[pieces as u32])?);
    let args = GatherArgs { items: items.address(), count: count.address(), ..GatherArgs::default() };
    let function = kernels.get(variant, Verb::Gather)?;
    let us = bench.time(|_| {
        // SAFETY: every address is that of a live buffer of the size that the kernel's argument documents.
        unsafe { function.launch(bench.stream, ctas, 512, 0, &args, LaunchOptions::default())? };
        Ok(())
    })?;
    println!(
        "page-in, {pieces} pieces of {:2} KiB by {ctas} CTAs: {:.1} GB/s",
        bytes >> 10,
        (pieces * bytes) as f64 / us * 1e-3
    );
    Ok(())
}

/// Pages of records between device and pinned memory; contents and digests are compared once.
fn swap(bench: &Bench<'_>, kernels: &Kernels, variant: &Variant, ctas: u32) -> Result<(), Failure> {
    let bytes = KV_HEADS * variant.layout().bytes;
    let pages = (64 << 20) / bytes;
    let threads = NonZeroUsize::new(16).unwrap_or(NonZeroUsize::MIN);
    let host = PinnedBuffer::new(bench.gpu, pages * bytes, threads)?;
    let contents: Vec<u32> = (0..(pages * bytes / 4) as u64).map(|i| splitmix64(i) as u32).collect();
    let device = bench.upload(&contents)?;
    let digests = bench.zeroed(8 * pages)?;
    let function = kernels.get(variant, Verb::Swap)?;
    // Scattered on the device.
    let place = |page: usize| (page * 7919 % pages) * bytes;
    for out in [true, false] {
        let items: Vec<u64> = (0..pages)
            .flat_map(|i| {
                let inside = device.address() + place(i) as u64;
                let outside = host.device_address() + (i * bytes) as u64;
                let (from, to) = if out { (inside, outside) } else { (outside, inside) };
                [from, to, bytes as u64, digests.address() + 8 * i as u64]
            })
            .collect();
        let list = bench.upload(&items)?;
        let args = SwapArgs { items: list.address(), count: pages as u32, unused: 0 };
        let us = bench.time(|_| {
            // SAFETY: every address is that of a live buffer of the size that the kernel's argument documents.
            unsafe { function.launch(bench.stream, ctas, 512, 0, &args, LaunchOptions::default())? };
            Ok(())
        })?;
        let mut found = vec![0u64; pages];
        digests.read(bench.stream, 0, &mut found)?;
        let (mut page, mut wrong) = (vec![0u32; bytes / 4], 0);
        for (i, found) in found.into_iter().enumerate() {
            if out {
                host.copy_out(i * bytes, &mut page)?;
            } else {
                device.read(bench.stream, place(i), &mut page)?;
            }
            let raw: Vec<u8> = page.iter().flat_map(|word| word.to_le_bytes()).collect();
            wrong += usize::from(page != contents[place(i) / 4..][..bytes / 4] || found != digest(&raw));
        }
        println!(
            "swap {:3}, {pages} pages of {bytes} bytes by {ctas:2} CTAs: {:.1} GB/s, {wrong} wrong",
            if out { "out" } else { "in" },
            (pages * bytes) as f64 / us * 1e-3
        );
    }
    Ok(())
}

fn packs(bench: &Bench<'_>, kernels: &Kernels, variant: &Variant) -> Result<(), Failure> {
    [64, 4096].into_iter().try_for_each(|blocks| pack(bench, kernels, variant, blocks))
}

fn all(words: &[String]) -> Result<(), Failure> {
    let value = |name: &str| words.iter().position(|w| w == name).and_then(|i| words.get(i + 1));
    let mut compiler = Compiler::new();
    if let Some(folder) = value("--cubins") {
        compiler = compiler.with_ahead(Ahead::Folder(folder.into()));
    }
    if let Some(folder) = value("--cache") {
        compiler = compiler.with_cache(folder);
    }
    let start = Instant::now();
    let gpu = Gpu::open(0)?;
    let opened = start.elapsed();
    let geometry = Geometry::new(1, 4 * KV_HEADS, KV_HEADS, DIM)?;
    let arch = Arch::of(gpu.info().arch)?;
    let mut variants = Vec::new();
    for format in value("--formats").map_or("k8-v4g64-b64,k8-v4g64-b64-r8.4", |f| f).split(',') {
        variants.push((format, Variant::new(RecordLayout::new(&geometry, format.parse()?)?, 4, arch)?));
    }
    if words.iter().any(|w| w == "--packs") {
        let stream = GpuStream::new(&gpu, Priority::Normal)?;
        let bench = Bench { gpu: &gpu, stream: &stream };
        for (format, variant) in &variants {
            println!("{format}");
            let kernels = Kernels::prepare_verbs(&gpu, core::slice::from_ref(variant), &[Verb::Pack], &compiler)?;
            packs(&bench, &kernels, variant)?;
        }
        return Ok(());
    }
    let all: Vec<Variant> = variants.iter().flat_map(|(_, v)| [v.clone(), v.clone().wide()]).collect();
    for pass in ["first", "cached"] {
        let start = Instant::now();
        let kernels = Kernels::prepare(&gpu, &all, &compiler)?;
        let ms = start.elapsed().as_secs_f64() * 1e3;
        println!(
            "prepare, {pass}: {ms:.1} ms for {} kernels (open {:.0} ms)",
            kernels.report().len(),
            opened.as_secs_f64() * 1e3
        );
    }
    let kernels = Kernels::prepare(&gpu, &all, &compiler)?;
    let stream = GpuStream::new(&gpu, Priority::Normal)?;
    let bench = Bench { gpu: &gpu, stream: &stream };
    for (format, variant) in &variants {
        println!("{format}");
        for seqs in [1, 8, 32] {
            steps::steps(&bench, &kernels, variant, seqs)?;
        }
        packs(&bench, &kernels, variant)?;
    }
    let variant = &variants[0].1;
    for (bytes, ctas) in [(4096, 32), (4096, 8), (8192, 16), (8192, 8), (16384, 8), (32768, 4)] {
        page_in(&bench, &kernels, variant, bytes, ctas)?;
    }
    for ctas in [8, 16, 32, 64] {
        swap(&bench, &kernels, variant, ctas)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match all(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::from(if e.is::<certkv_device::cuda::CudaError>() { 2 } else { 1 })
        }
    }
}
