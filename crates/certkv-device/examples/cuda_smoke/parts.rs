//! The parts of the smoke test. Each returns a note, or what went wrong.
use super::Bench;
use super::context::watch;
use certkv_core::fail;
use certkv_device::cuda::{
    CopyBatch, CudaError, DeviceBuffer, Event, EventPool, Function, Gpu, GpuStream, LaunchOptions, Module,
    PinnedBuffer, Pod, Priority, TimedEvent,
};
use std::fmt::Debug;
use std::num::NonZeroUsize;
use std::time::Duration;

type Outcome = Result<String, String>;
/// A part and its name.
pub(crate) type Part = (&'static str, fn(&Bench) -> Outcome);

/// All parts but the one that destroys the context.
pub(crate) const PARTS: &[Part] = &[
    ("copies of every width", widths),
    ("fill and device copies", fills),
    ("ranges and empty buffers are refused", ranges),
    ("out of memory is typed", out_of_memory),
    ("pinned memory, both ways", pinned),
    ("kernels: facts, shared memory, sizes", kernels),
    ("launch options", launch_options),
    ("events order streams", events),
    ("graphs: capture, replay, spoiled", graphs),
    ("batch copies", batches),
    ("borrowed and foreign streams", streams),
    ("pointers of a caller", pointers),
    ("every fault point fails cleanly", faults),
];

#[derive(Clone, Copy)]
#[repr(C)]
struct ScaleArgs {
    data: u64,
    factor: f32,
    n: u32,
}

/// Arguments of `copy`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CopyArgs {
    /// Source, 4-byte words.
    pub(crate) from: u64,
    /// Destination.
    pub(crate) to: u64,
    /// Words.
    pub(crate) n: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct SpinArgs {
    flag: u64,
    nanoseconds: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct WordArgs {
    out: u64,
}

/// A watched call whose error ends the part.
fn ok<T>(what: &str, call: impl FnOnce() -> Result<T, CudaError>) -> Result<T, String> {
    watch(what, call).map_err(|e| format!("{what}: {e}"))
}

/// A watched call that must fail as `expected` tells.
fn refused<T: Debug>(
    what: &str,
    call: impl FnOnce() -> Result<T, CudaError>,
    expected: impl FnOnce(&CudaError) -> bool,
) -> Result<(), String> {
    match watch(what, call) {
        Err(error) if expected(&error) => Ok(()),
        other => Err(format!("{what}: {other:?}")),
    }
}

fn same<T: PartialEq + Debug>(what: &str, found: &[T], expected: &[T]) -> Result<(), String> {
    match found.iter().zip(expected).position(|(a, b)| a != b) {
        None if found.len() == expected.len() => Ok(()),
        None => Err(format!("{what}: {} for {} items", found.len(), expected.len())),
        Some(i) => Err(format!("{what}: item {i} is {:?}, not {:?}", found[i], expected[i])),
    }
}

fn stream(bench: &Bench) -> Result<GpuStream, String> {
    ok("stream", || GpuStream::new(&bench.gpu, Priority::Normal))
}

fn buffer(bench: &Bench, bytes: usize) -> Result<DeviceBuffer, String> {
    ok("buffer", || DeviceBuffer::new(&bench.gpu, bytes))
}

fn function(bench: &Bench, name: &str) -> Result<Function, String> {
    ok("function", || bench.module.function(name))
}

fn threads(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap_or(NonZeroUsize::MIN)
}

/// Launches with arguments of which the part keeps everything alive until it synchronises.
fn launch<T: Copy>(f: &Function, s: &GpuStream, grid: u32, args: &T, options: LaunchOptions) -> Result<(), String> {
    // SAFETY: the structs above are the kernels' own; buffers outlive the synchronisation that every part ends with.
    ok("launch", || unsafe { f.launch(s, grid, 256, 0, args, options) })
}

fn widths(bench: &Bench) -> Outcome {
    fn one<T: Pod + PartialEq + Debug>(d: &DeviceBuffer, s: &GpuStream, from: &[T]) -> Result<(), String> {
        let mut back = from.to_vec();
        back.reverse();
        let offset = size_of::<T>() * 3;
        ok("write", || d.write(s, offset, from))?;
        ok("read", || d.read(s, offset, &mut back))?;
        same(std::any::type_name::<T>(), &back, from)
    }
    let (s, d) = (stream(bench)?, buffer(bench, 1 << 20)?);
    let n = 10_007usize;
    one(&d, &s, &(0..n).map(|i| (i * 31) as u8).collect::<Vec<_>>())?;
    one(&d, &s, &(0..n).map(|i| (i * 1031) as u16).collect::<Vec<_>>())?;
    one(&d, &s, &(0..n).map(|i| (i as u32).wrapping_mul(2_654_435_761)).collect::<Vec<_>>())?;
    one(&d, &s, &(0..n).map(|i| (i as f32).sqrt()).collect::<Vec<_>>())?;
    ok("read of nothing", || d.read::<u8>(&s, 1 << 20, &mut []))?;
    Ok(format!("{d:?}"))
}

fn fills(bench: &Bench) -> Outcome {
    let (s, a, b) = (stream(bench)?, buffer(bench, 4096)?, buffer(bench, 4096)?);
    ok("fill", || a.fill(&s, 0, 4096, 1))?;
    ok("fill", || a.fill(&s, 100, 50, 9))?;
    ok("fill", || b.fill(&s, 0, 4096, 2))?;
    ok("copy", || b.copy_from(&s, 10, &a, 90, 100))?;
    let mut expected = vec![2u8; 4096];
    expected[10..110].fill(1);
    expected[20..70].fill(9);
    let mut found = vec![0u8; 4096];
    ok("read", || b.read(&s, 0, &mut found))?;
    same("fill and copy", &found, &expected)?;
    refused("overlap", || a.copy_from(&s, 50, &a, 100, 51), |e| matches!(e, CudaError::BadArgument { .. }))?;
    ok("neighbours", || a.copy_from(&s, 50, &a, 100, 50))?;
    ok("sync", || s.synchronize())?;
    Ok(String::new())
}

fn ranges(bench: &Bench) -> Outcome {
    let (s, d) = (stream(bench)?, buffer(bench, 100)?);
    let past = |e: &CudaError| matches!(e, CudaError::OutOfRange { len: 100, .. });
    refused("write", || d.write(&s, 90, &[0u32; 3]), past)?;
    refused("read", || d.read(&s, usize::MAX, &mut [0u8; 2]), past)?;
    refused("fill", || d.fill(&s, 101, 0, 0), past)?;
    refused("address", || d.address_of(60, 41), past)?;
    refused("empty", || DeviceBuffer::new(&bench.gpu, 0), |e| matches!(e, CudaError::BadArgument { .. }))?;
    let cut = &bench.cubin[..bench.cubin.len() - 1];
    refused("cut cubin", || Module::load(&bench.gpu, cut), |e| matches!(e, CudaError::BadArgument { .. }))?;
    refused("no kernel", || bench.module.function("absent"), |e| matches!(e, CudaError::Call { code: 500, .. }))?;
    Ok(String::new())
}

fn out_of_memory(bench: &Bench) -> Outcome {
    let before = bench.gpu.usage();
    let bytes = 1 << 46;
    refused("device", || DeviceBuffer::new(&bench.gpu, bytes), |e| *e == CudaError::OutOfDeviceMemory { bytes })?;
    for bytes in [0, 1 << 50, usize::MAX] {
        let typed = |e: &CudaError| matches!(e, CudaError::OutOfPinnedMemory { bytes: b, .. } if *b == bytes);
        refused("pinned", || PinnedBuffer::new(&bench.gpu, bytes, threads(1)), typed)?;
    }
    let memory = ok("memory", || bench.gpu.memory_info())?;
    if bench.gpu.usage() != before {
        return Err(format!("left behind: {:?}", bench.gpu.usage()));
    }
    Ok(format!("{} of {} MiB free", memory.free >> 20, memory.total >> 20))
}

fn pinned(bench: &Bench) -> Outcome {
    let (bytes, s) = ((8 << 20) + 12, stream(bench)?);
    let mut from = ok("pin", || PinnedBuffer::new(&bench.gpu, bytes, threads(4)))?;
    let into = ok("pin", || PinnedBuffer::new(&bench.gpu, bytes, threads(4)))?;
    let d = buffer(bench, bytes)?;
    let words: Vec<u32> = (0..bytes as u32 / 4).map(|i| i ^ 0xabcd).collect();
    ok("copy in", || from.copy_in(0, &words))?;
    // SAFETY: both pinned buffers live and are left alone until the synchronisation.
    ok("to device", || unsafe { d.write_pinned(&s, 0, &from, 0, bytes) })?;
    // SAFETY: as above.
    ok("from device", || unsafe { d.read_pinned(&s, 4, &into, 8, bytes - 8) })?;
    ok("sync", || s.synchronize())?;
    let mut back = vec![0u32; words.len()];
    ok("copy out", || into.copy_out(0, &mut back))?;
    same("through the device", &back[2..], &words[1..words.len() - 1])?;
    // A kernel reads the one and writes the other in place.
    let args = CopyArgs { from: from.device_address(), to: into.device_address(), n: words.len() as u64 };
    launch(&function(bench, "copy")?, &s, 32, &args, LaunchOptions::default())?;
    ok("sync", || s.synchronize())?;
    ok("copy out", || into.copy_out(0, &mut back))?;
    same("by a kernel", &back, &words)?;
    let past = |e: &CudaError| matches!(e, CudaError::OutOfRange { .. });
    refused("past the end", || from.copy_in(bytes - 3, &[0u32]), past)?;
    // SAFETY: the call is refused before anything is enqueued.
    refused("past the end", || unsafe { d.write_pinned(&s, 0, &from, 8, bytes) }, past)?;
    Ok(format!("{from:?}"))
}

fn kernels(bench: &Bench) -> Outcome {
    let (s, d, info) = (stream(bench)?, buffer(bench, 4096)?, bench.gpu.info());
    let scale = function(bench, "scale")?;
    let data: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    ok("write", || d.write(&s, 0, &data))?;
    launch(&scale, &s, 4, &ScaleArgs { data: d.address(), factor: 2.5, n: 999 }, LaunchOptions::default())?;
    let mut back = vec![0f32; 1000];
    ok("read", || d.read(&s, 0, &mut back))?;
    let expected: Vec<f32> = data.iter().enumerate().map(|(i, x)| if i < 999 { x * 2.5 } else { *x }).collect();
    same("scale", &back, &expected)?;

    refused(
        "other struct",
        // SAFETY: refused before it runs.
        || unsafe { scale.launch(&s, 1, 1, 0, &0u64, LaunchOptions::default()) },
        |e| *e == CudaError::ArgumentSize { given: 8, needs: 16 },
    )?;
    let many = bench.module.function("two_parameters");
    refused("two parameters", || many, |e| matches!(e, CudaError::BadArgument { argument: "kernel", .. }))?;
    let nothing = function(bench, "nothing")?;
    launch(&nothing, &s, 1, &(), LaunchOptions::default())?;
    refused(
        "too many threads",
        // SAFETY: refused before it runs.
        || unsafe { nothing.launch(&s, 1, 2048, 0, &(), LaunchOptions::default()) },
        |e| matches!(e, CudaError::Call { code: 1, .. }),
    )?;

    // A module of its own: the leave for more shared memory stays with the function.
    let module = ok("module", || Module::load(&bench.gpu, &bench.cubin))?;
    let shared = ok("function", || module.function("shared_words"))?;
    let bytes = info.shared_per_block as u32;
    let args = WordArgs { out: d.address() };
    // SAFETY: `out` is a word of a live buffer.
    let run = |bytes| unsafe { shared.launch(&s, [1, 1, 1], [256, 1, 1], bytes, &args, LaunchOptions::default()) };
    refused("shared memory without leave", || run(bytes), |e| matches!(e, CudaError::Call { code: 1, .. }))?;
    ok("leave", || shared.set_max_dynamic_shared(bytes as usize))?;
    ok("fill", || d.fill(&s, 0, 4, 0))?;
    ok("shared memory", || run(bytes))?;
    let mut words = [0u32];
    ok("read", || d.read(&s, 0, &mut words))?;
    same("words of shared memory", &words, &[bytes / 4])?;
    let fit = ok("occupancy", || shared.blocks_per_multiprocessor(256, bytes as usize))?;
    let fit_plain = ok("occupancy", || scale.blocks_per_multiprocessor(256, 0))?;
    if fit != 1 || fit_plain < 2 {
        return Err(format!("occupancy {fit} and {fit_plain}"));
    }
    Ok(format!("{:?}, {fit_plain} blocks of 256", scale.info()))
}

fn launch_options(bench: &Bench) -> Outcome {
    let (s, d) = (stream(bench)?, buffer(bench, 8)?);
    let (spin, dependent) = (function(bench, "spin")?, function(bench, "dependent")?);
    let mut words = [0u32; 2];
    ok("write", || d.write(&s, 0, &[0u32, 0]))?;
    for _ in 0..4 {
        launch(&spin, &s, 1, &SpinArgs { flag: d.address(), nanoseconds: 50_000 }, LaunchOptions::default())?;
        let programmatic = LaunchOptions { programmatic: true, cluster: None };
        launch(&dependent, &s, 1, &WordArgs { out: d.address() }, programmatic)?;
    }
    ok("read", || d.read(&s, 0, &mut words))?;
    // ((((0 + 1) 2 + 1) 2 + 1) 2 + 1) 2
    same("programmatic", &words[..1], &[30])?;
    let clusters = function(bench, "cluster_blocks")?;
    let four = LaunchOptions { programmatic: false, cluster: Some(4) };
    if bench.gpu.info().arch.0 < 9 {
        return Ok("no clusters on this GPU".to_owned());
    }
    launch(&clusters, &s, 8, &WordArgs { out: d.address() }, four)?;
    ok("read", || d.read(&s, 0, &mut words))?;
    same("blocks in a cluster", &words[..1], &[4])?;
    let args = WordArgs { out: d.address() };
    refused(
        "a grid of broken clusters",
        // SAFETY: refused before it runs.
        || unsafe { clusters.launch(&s, 6, 32, 0, &args, four) },
        |e| matches!(e, CudaError::Call { .. }),
    )?;
    Ok("programmatic and clusters".to_owned())
}

fn events(bench: &Bench) -> Outcome {
    let pool = ok("pool", || EventPool::new(&bench.gpu, 2))?;
    let (a, b, d) = (stream(bench)?, ok("stream", || GpuStream::new(&bench.gpu, Priority::High))?, buffer(bench, 8)?);
    let spin = function(bench, "spin")?;
    ok("fill", || d.fill(&a, 0, 8, 0))?;
    let zeroed = ok("record", || a.record(&pool))?;
    ok("wait", || b.wait(&zeroed))?;
    launch(&spin, &a, 1, &SpinArgs { flag: d.address(), nanoseconds: 20_000_000 }, LaunchOptions::default())?;
    let spun = ok("record", || a.record(&pool))?;
    let early = (ok("passed", || spun.passed())?, ok("idle", || a.idle())?);
    ok("wait", || b.wait(&spun))?;
    // The wait is for the mark: dropping the event and using it again must not matter.
    drop(spun);
    let again: Event = ok("record", || b.record(&pool))?;
    ok("copy", || d.copy_from(&b, 4, &d, 0, 4))?;
    let mut words = [0u32; 2];
    ok("read", || d.read(&b, 0, &mut words))?;
    same("a copy behind a kernel of another stream", &words, &[1, 1])?;
    ok("synchronize", || again.synchronize())?;
    if early != (false, false) || !ok("passed", || again.passed())? || !ok("idle", || b.idle())? {
        return Err(format!("passed and idle: {early:?} during the kernel"));
    }
    drop((again, zeroed));
    let timer = ok("timer", || TimedEvent::new(&bench.gpu))?;
    ok("start", || timer.start(&a))?;
    launch(&spin, &a, 1, &SpinArgs { flag: d.address(), nanoseconds: 2_000_000 }, LaunchOptions::default())?;
    ok("stop", || timer.stop(&a))?;
    let ms = ok("elapsed", || timer.elapsed_ms())?;
    if !(1.9..20.0).contains(&ms) || pool.ready() != 2 {
        return Err(format!("{ms} ms for a kernel of 2 ms; {} events made", pool.ready()));
    }
    Ok(format!("{ms:.3} ms for a kernel of 2 ms"))
}

fn graphs(bench: &Bench) -> Outcome {
    let (s, other, d) = (stream(bench)?, stream(bench)?, buffer(bench, 8)?);
    let pool = ok("pool", || EventPool::new(&bench.gpu, 0))?;
    let spin = function(bench, "spin")?;
    ok("write", || d.write(&s, 0, &[0u32, 0]))?;
    let capture = ok("begin", || s.begin_capture())?;
    for at in 0..3 {
        let flag = d.address() + 4 * (at % 2);
        launch(&spin, &s, 1, &SpinArgs { flag, nanoseconds: 0 }, LaunchOptions::default())?;
    }
    // A second stream joins the recording and leaves it.
    let fork = ok("record", || s.record(&pool))?;
    ok("wait", || other.wait(&fork))?;
    launch(&spin, &other, 1, &SpinArgs { flag: d.address(), nanoseconds: 0 }, LaunchOptions::default())?;
    let join = ok("record", || other.record(&pool))?;
    ok("wait", || s.wait(&join))?;
    if !ok("capturing", || s.capturing())? || !ok("capturing", || other.capturing())? {
        return Err("a recording stream does not say so".to_owned());
    }
    let graph = ok("end", || capture.end())?;
    let nodes = ok("nodes", || graph.nodes())?;
    let exec = ok("instantiate", || graph.instantiate())?;
    drop(graph);
    let mut words = [7u32; 2];
    ok("read", || d.read(&s, 0, &mut words))?;
    same("a recording does not run", &words, &[0, 0])?;
    ok("upload", || exec.upload(&s))?;
    for _ in 0..5 {
        // SAFETY: buffer and module live until the read below has waited.
        ok("launch", || unsafe { exec.launch(&s) })?;
    }
    ok("read", || d.read(&s, 0, &mut words))?;
    same("five runs", &words, &[15, 5])?;
    // An abandoned recording and a spoiled one leave the stream usable.
    drop(ok("begin", || s.begin_capture())?);
    let spoiled = ok("begin", || s.begin_capture())?;
    refused("synchronize", || s.synchronize(), |e| matches!(e, CudaError::Call { code: 900..=908, .. }))?;
    refused("end", || spoiled.end(), |e| matches!(e, CudaError::Call { code: 900..=908, .. }))?;
    ok("read", || d.read(&s, 0, &mut words))?;
    same("after them", &words, &[15, 5])?;
    if nodes != 4 || ok("capturing", || s.capturing())? {
        return Err(format!("{nodes} nodes"));
    }
    Ok(format!("{nodes} nodes"))
}

fn batches(bench: &Bench) -> Outcome {
    let (run, count) = (1000usize, 500usize);
    let (s, d) = (stream(bench)?, buffer(bench, run * count)?);
    let mut from = ok("pin", || PinnedBuffer::new(&bench.gpu, 2 * run * count, threads(2)))?;
    let bytes: Vec<u8> = (0..2 * run * count).map(|i| (i / 7) as u8).collect();
    ok("copy in", || from.copy_in(0, &bytes))?;
    let mut batch = watch("batch", || CopyBatch::new(&bench.gpu, count));
    let source = |i: usize| (i * 37 % count) * 2 * run + i % 9;
    for i in 0..count {
        ok("push", || batch.push(&d, i * run, &from, source(i), run))?;
    }
    let expected: Vec<u8> = (0..count).flat_map(|i| bytes[source(i)..source(i) + run].iter().copied()).collect();
    let mut found = vec![0u8; run * count];
    // SAFETY: buffers and list live until each read has waited; nothing writes the source.
    ok("submit", || unsafe { batch.submit(&s) })?;
    ok("read", || d.read(&s, 0, &mut found))?;
    same("a batch", &found, &expected)?;
    // SAFETY: null is the legacy default stream.
    let legacy = ok("borrow", || unsafe { GpuStream::borrow(&bench.gpu, std::ptr::null_mut()) })?;
    ok("fill", || d.fill(&legacy, 0, run * count, 0))?;
    // SAFETY: as above.
    ok("submit", || unsafe { batch.submit(&legacy) })?;
    ok("read", || d.read(&legacy, 0, &mut found))?;
    same("one by one", &found, &expected)?;
    let capture = ok("begin", || s.begin_capture())?;
    ok("fill", || d.fill(&s, 0, run * count, 0))?;
    // SAFETY: as above, for the one run below.
    ok("submit", || unsafe { batch.submit(&s) })?;
    let exec = ok("end", || capture.end()?.instantiate())?;
    // SAFETY: as above.
    ok("launch", || unsafe { exec.launch(&s) })?;
    ok("read", || d.read(&s, 0, &mut found))?;
    same("recorded", &found, &expected)?;
    refused(
        "past the end",
        || batch.push(&d, 1, &from, 0, run * count),
        |e| matches!(e, CudaError::OutOfRange { .. }),
    )?;
    batch.clear();
    // SAFETY: no copies.
    ok("empty", || unsafe { batch.submit(&s) })?;
    Ok(format!("{count} runs of {run} bytes"))
}

fn streams(bench: &Bench) -> Outcome {
    let (s, d) = (stream(bench)?, buffer(bench, 16)?);
    // SAFETY: the stream outlives the borrow.
    let borrowed = ok("borrow", || unsafe { GpuStream::borrow(&bench.gpu, s.as_raw()) })?;
    let mut words = [0u32; 4];
    ok("write", || d.write(&borrowed, 0, &[1u32, 2, 3, 4]))?;
    drop(borrowed);
    ok("read", || d.read(&s, 0, &mut words))?;
    same("a borrowed stream", &words, &[1, 2, 3, 4])?;
    refused(
        "foreign",
        // SAFETY: the foreign context and its stream live until the program ends.
        || unsafe { GpuStream::borrow(&bench.gpu, bench.foreign.stream.cast()) },
        |e| *e == CudaError::ForeignStream,
    )?;
    // A second open shares the primary context: its handles work together with ours.
    let again = ok("open", || Gpu::open(bench.gpu.info().ordinal))?;
    let theirs = ok("stream", || GpuStream::new(&again, Priority::Low))?;
    ok("read", || d.read(&theirs, 0, &mut words))?;
    let bad = Gpu::open(u32::MAX).map(|_| ());
    refused("no such GPU", || bad, |e| matches!(e, CudaError::NoDevice { .. }))?;
    watch("drops", || drop((theirs, again, s, d)));
    Ok(String::new())
}

fn pointers(bench: &Bench) -> Outcome {
    let d = buffer(bench, 64)?;
    let host = ok("pin", || PinnedBuffer::new(&bench.gpu, 64, threads(1)))?;
    let plain = [0u64; 4];
    let check = |address, needs| bench.gpu.check_device_pointer("q", address, needs);
    ok("device", || check(d.address(), 16))?;
    ok("inside", || check(d.address() + 8, 8))?;
    refused("aligned", || check(d.address() + 8, 16), |e| matches!(e, CudaError::Misaligned { needs: 16, .. }))?;
    let wrong = |kind: &'static str| move |e: &CudaError| matches!(e, CudaError::WrongMemorySpace { argument: "q", found } if found.contains(kind));
    refused("null", || check(0, 16), wrong("null"))?;
    refused("pinned", || check(host.as_ptr().addr() as u64, 16), wrong("pinned host memory"))?;
    refused("plain", || check(plain.as_ptr().addr() as u64, 8), wrong("not an address"))?;
    Ok(String::new())
}

/// One of everything that can fail.
fn everything(bench: &Bench) -> Result<(), CudaError> {
    let gpu = Gpu::open(bench.gpu.info().ordinal)?;
    let s = GpuStream::new(&gpu, Priority::Normal)?;
    let other = GpuStream::new(&gpu, Priority::Normal)?;
    let d = DeviceBuffer::new(&bench.gpu, 4096)?;
    let from = PinnedBuffer::new(&bench.gpu, 4096, NonZeroUsize::MIN)?;
    let pool = EventPool::new(&gpu, 0)?;
    let nothing = Module::load(&gpu, &bench.cubin)?.function("nothing")?;
    // Declared last and so dropped first: the work is done before the pinned memory goes, whatever failed.
    let _idle = Idle(&s);
    d.write(&s, 0, &[1u8; 64])?;
    d.fill(&s, 0, 64, 1)?;
    let mut batch = CopyBatch::new(&gpu, 1);
    batch.push(&d, 0, &from, 0, 64)?;
    // SAFETY: the buffers outlive `_idle`, which waits.
    unsafe { batch.submit(&s) }?;
    // SAFETY: it touches nothing.
    unsafe { nothing.launch(&s, 1, 1, 0, &(), LaunchOptions::default()) }?;
    let event = s.record(&pool)?;
    other.wait(&event)?;
    event.synchronize()?;
    let capture = s.begin_capture()?;
    // SAFETY: it touches nothing.
    unsafe { nothing.launch(&s, 1, 1, 0, &(), LaunchOptions::default()) }?;
    let exec = capture.end()?.instantiate()?;
    exec.upload(&s)?;
    // SAFETY: it touches nothing.
    unsafe { exec.launch(&s) }?;
    s.synchronize()
}

/// Waits for a stream when dropped.
struct Idle<'a>(&'a GpuStream);

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        while !matches!(self.0.idle(), Ok(true) | Err(_)) {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

fn faults(bench: &Bench) -> Outcome {
    let before = bench.gpu.usage();
    fail::arm(None);
    ok("without a fault", || everything(bench))?;
    let hits = fail::hits();
    for nth in 1..=hits {
        fail::arm(Some(nth));
        let result = watch("fault", || everything(bench));
        let fired = fail::fired();
        fail::arm(None);
        match (&result, fired) {
            (Err(CudaError::Injected(fault)), Some(point)) if fault.point == point => {}
            _ => return Err(format!("fault {nth} ({fired:?}): {result:?}")),
        }
        if bench.gpu.usage() != before {
            return Err(format!("fault {nth} ({fired:?}) left {:?}", bench.gpu.usage()));
        }
    }
    ok("after them", || everything(bench))?;
    if hits < 15 { Err(format!("{hits} faults only")) } else { Ok(format!("{hits} faults")) }
}

/// A kernel that writes outside of any memory: the error names the code, and the context says that it is lost.
pub(crate) fn stray_kernel(bench: &Bench) -> Outcome {
    let s = stream(bench)?;
    let args = WordArgs { out: 0x10 };
    let stray = function(bench, "dependent")?;
    // SAFETY: none: this is the failure under test, in the last act of the program.
    ok("launch", || unsafe { stray.launch(&s, 1, 32, 0, &args, LaunchOptions::default()) })?;
    match s.synchronize() {
        Err(error) if error.context_lost() => {
            let later = DeviceBuffer::new(&bench.gpu, 16).map(|d| d.len());
            if later.as_ref().is_err_and(CudaError::context_lost) {
                Ok(error.to_string())
            } else {
                Err(format!("{later:?}"))
            }
        }
        other => Err(format!("{other:?}")),
    }
}
