//! A piece of work that makes every call of the device layer at least once, and checks what it computed.
use crate::fake_cuda::Fake;
use crate::fake_cuda::sweep::Ran;
use certkv_device::cuda::{
    CopyBatch, CudaError, DeviceBuffer, EventPool, Gpu, GpuStream, LaunchOptions, Module, PinnedBuffer, Priority,
    TimedEvent,
};
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ptr;
use std::sync::atomic::Ordering;

/// Arguments of the kernel `add`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Add {
    data: u64,
    n: u32,
    by: u32,
}

extern "C" fn run_add(arguments: *const c_void) {
    // SAFETY: the fake hands over a copy of the launch's arguments, of the size declared below; its place need not be aligned.
    let Add { data, n, by } = unsafe { arguments.cast::<Add>().read_unaligned() };
    // SAFETY: the launch named a live buffer of at least `n` words, and nothing else runs meanwhile.
    let words = unsafe { std::slice::from_raw_parts_mut(data as *mut u32, n as usize) };
    for word in words {
        *word = word.wrapping_add(by);
    }
}

/// Names the kernels.
pub(crate) fn declare(fake: &Fake) {
    fake.kernel("add", size_of::<Add>(), Some(run_add));
    fake.kernel("idle", 0, None);
}

/// The smallest file that passes for machine code.
fn cubin() -> Vec<u8> {
    let mut file = vec![0u8; 64 + 8 + 64];
    file[..5].copy_from_slice(b"\x7fELF\x02");
    for (at, value) in [(40, 72), (58, 64), (60, 1), (72 + 4, 1), (72 + 24, 64), (72 + 32, 8)] {
        file[at] = value;
    }
    file
}

const WORDS: usize = 1024;
const BYTES: usize = 4 * WORDS;

fn one() -> NonZeroUsize {
    NonZeroUsize::MIN
}

/// Waits for streams before what is declared ahead of it is dropped: what the contracts of enqueued copies ask for, on every path.
struct Settled<'a>(&'a [&'a GpuStream]);

impl Drop for Settled<'_> {
    fn drop(&mut self) {
        for stream in self.0 {
            // A wait that is refused may be asked for again; on a lost context nothing runs.
            (0..8).find(|_| stream.synchronize().map_or_else(|e| e.context_lost(), |()| true));
        }
    }
}

/// All of it on a GPU of its own.
pub(crate) fn run() -> Ran {
    let open = || Ok([Gpu::count().and_then(|_| Gpu::open(0))?, Gpu::open(0)?]);
    let failed = |e: CudaError| (e.to_string(), Some(e));
    match open() {
        Ok([gpu, again]) => {
            let result = all(&gpu, &again).map_err(failed);
            Ran { result, unreleased: gpu.usage().unreleased + again.usage().unreleased }
        }
        Err(error) => Ran { result: Err(failed(error)), unreleased: 0 },
    }
}

/// On two handles of one GPU.
fn all(gpu: &Gpu, again: &Gpu) -> Result<(), CudaError> {
    gpu.check_order();
    assert_eq!(again.info().arch_number(), 90);
    assert!(gpu.memory_info()?.free > 0);
    let [low, work, side] = [
        GpuStream::new(gpu, Priority::Low)?,
        GpuStream::new(gpu, Priority::Normal)?,
        GpuStream::new(again, Priority::High)?,
    ];
    copies(gpu, &work, &side)?;
    batches(gpu, &low)?;
    kernels(gpu, &work)?;
    recordings(gpu, &work, &side)?;
    pointers(gpu, &work)?;
    timed(gpu, &low)?;
    assert!(gpu.order_report().is_some_and(|report| report.unordered == 0));
    Ok(())
}

/// Host to device, device to device and back, over two streams.
fn copies(gpu: &Gpu, work: &GpuStream, side: &GpuStream) -> Result<(), CudaError> {
    let events = EventPool::new(gpu, 1)?;
    let (a, b) = (DeviceBuffer::new(gpu, BYTES)?, DeviceBuffer::new(gpu, BYTES)?);
    let mut pinned = PinnedBuffer::new(gpu, 2 * BYTES, one())?;
    let numbers: Vec<u32> = (0..WORDS as u32).collect();
    pinned.copy_in(0, &numbers)?;
    let streams = [work, side];
    let settled = Settled(&streams);
    // SAFETY: `settled` waits for both streams before the pinned memory is dropped; the host leaves it alone until then.
    unsafe { a.write_pinned(work, 0, &pinned, 0, BYTES) }?;
    let mark = work.record(&events)?;
    let more = work.record(&events)?;
    side.wait(&mark)?;
    b.fill(side, 0, BYTES, 0)?;
    b.copy_from(side, 0, &a, 0, BYTES / 2)?;
    // SAFETY: as above.
    unsafe { b.read_pinned(side, 0, &pinned, BYTES, BYTES) }?;
    mark.synchronize()?;
    while !more.passed()? {}
    while !side.idle()? {}
    drop(settled);
    let mut back = vec![0u32; WORDS];
    pinned.copy_out(BYTES, &mut back)?;
    assert_eq!((&back[..WORDS / 2], back[WORDS - 1]), (&numbers[..WORDS / 2], 0));
    assert_eq!(pinned.load(1, Ordering::Acquire)?, 3 << 32 | 2);
    // What waits by itself.
    a.write(work, 0, &numbers[1..])?;
    a.read(work, 0, &mut back[..WORDS - 1])?;
    assert_eq!(back[..WORDS - 1], numbers[1..]);
    drop((mark, more));
    assert_eq!(events.ready(), 2);
    Ok(())
}

/// Many copies in one call, and one by one on a default stream.
fn batches(gpu: &Gpu, stream: &GpuStream) -> Result<(), CudaError> {
    // SAFETY: null is the legacy default stream.
    let default = unsafe { GpuStream::borrow(gpu, ptr::null_mut()) }?;
    // SAFETY: a live stream, which outlives the value.
    let borrowed = unsafe { GpuStream::borrow(gpu, stream.as_raw()) }?;
    let to = DeviceBuffer::new(gpu, BYTES)?;
    let mut from = PinnedBuffer::new(gpu, BYTES, one())?;
    from.copy_in(0, &[7u32; WORDS])?;
    for stream in [&borrowed, &default] {
        to.fill(&borrowed, 0, BYTES, 0)?;
        let streams = [stream, &borrowed];
        let settled = Settled(&streams);
        borrowed.synchronize()?;
        let mut batch = CopyBatch::new(gpu, 2);
        batch.push(&to, 0, &from, 0, 16)?;
        batch.push(&to, BYTES - 16, &from, 64, 16)?;
        // SAFETY: `settled` waits before the pinned memory is dropped.
        unsafe { batch.submit(stream) }?;
        // And back, from where nothing was written.
        batch.clear();
        batch.push_back(&from, BYTES - 32, &to, 16, 16)?;
        // SAFETY: as above.
        unsafe { batch.submit(stream) }?;
        stream.synchronize()?;
        drop(settled);
        let mut returned = [0u32; 8];
        from.copy_out(BYTES - 32, &mut returned)?;
        assert_eq!(returned, [0, 0, 0, 0, 7, 7, 7, 7]);
        let mut back = vec![0u32; WORDS];
        to.read(&borrowed, 0, &mut back)?;
        assert_eq!((back[0], back[3], back[4], back[WORDS - 4], back[WORDS - 1]), (7, 7, 0, 7, 7));
    }
    Ok(())
}

fn kernels(gpu: &Gpu, stream: &GpuStream) -> Result<(), CudaError> {
    let module = Module::load(gpu, &cubin())?;
    let (add, idle) = (module.function("add")?, module.function("idle")?);
    drop(module);
    add.set_max_dynamic_shared(100 << 10)?;
    add.prefer_shared_memory()?;
    assert!(add.blocks_per_multiprocessor(256, 0)? > 0);
    let data = DeviceBuffer::new(gpu, BYTES)?;
    data.fill(stream, 0, BYTES, 0)?;
    let arguments = Add { data: data.address(), n: WORDS as u32, by: 5 };
    let clustered = LaunchOptions { programmatic: true, cluster: Some(2) };
    for (options, shared) in [(LaunchOptions::default(), 0), (clustered, 64 << 10)] {
        // SAFETY: the twin of the kernel's parameter; the buffer lives until the stream was waited for below.
        unsafe { add.launch(stream, 4, [32, 2, 1], shared, &arguments, options) }?;
    }
    // SAFETY: a kernel without arguments that touches nothing.
    unsafe { idle.launch(stream, 1, 1, 0, &(), LaunchOptions::default()) }?;
    let mut back = vec![0u32; WORDS];
    data.read(stream, 0, &mut back)?;
    assert!(back.iter().all(|x| *x == 10));
    Ok(())
}

/// A recording over two streams, run twice; one that is given up.
fn recordings(gpu: &Gpu, work: &GpuStream, side: &GpuStream) -> Result<(), CudaError> {
    let events = EventPool::new(gpu, 0)?;
    let (a, b) = (DeviceBuffer::new(gpu, BYTES)?, DeviceBuffer::new(gpu, BYTES)?);
    let pinned = PinnedBuffer::new(gpu, BYTES, one())?;
    let streams = [work, side];
    let _settled = Settled(&streams);
    b.fill(work, 0, BYTES, 0)?;
    let capture = work.begin_capture()?;
    let recorded = (|| {
        a.fill(work, 0, BYTES, 3)?;
        let fork = work.record(&events)?;
        side.wait(&fork)?;
        assert!(side.capturing()?);
        b.copy_from(side, 0, &a, 0, BYTES / 2)?;
        let mut batch = CopyBatch::new(gpu, 1);
        batch.push(&b, BYTES / 2, &pinned, 0, 64)?;
        // SAFETY: `_settled` waits for the runs before the pinned memory is dropped.
        unsafe { batch.submit(side) }?;
        let join = side.record(&events)?;
        work.wait(&join)
    })();
    // Streams that were not joined spoil the recording: its error is the later one.
    let ended = capture.end();
    recorded?;
    let graph = ended?;
    assert_eq!(graph.nodes()?, 3);
    let run = graph.instantiate()?;
    drop(graph);
    run.upload(work)?;
    for _ in 0..2 {
        b.fill(work, 0, BYTES, 0)?;
        // SAFETY: the buffers live until `_settled` has waited.
        unsafe { run.launch(work) }?;
    }
    let mut back = vec![0u8; BYTES];
    b.read(work, 0, &mut back)?;
    assert!(back[..BYTES / 2].iter().all(|x| *x == 3) && back[BYTES / 2..].iter().all(|x| *x == 0));
    let given_up = work.begin_capture()?;
    a.fill(work, 0, BYTES, 9)?;
    drop(given_up);
    a.read(work, 0, &mut back)?;
    assert!(back.iter().all(|x| *x == 3), "what was given up did not run, and the stream works again");
    Ok(())
}

fn pointers(gpu: &Gpu, stream: &GpuStream) -> Result<(), CudaError> {
    let (device, pinned) = (DeviceBuffer::new(gpu, 256)?, PinnedBuffer::new(gpu, 256, one())?);
    gpu.check_device_pointer("device", device.address(), 256)?;
    match gpu.check_device_pointer("pinned", pinned.device_address(), 16) {
        Err(CudaError::WrongMemorySpace { found: "pinned host memory", .. }) => {}
        other => return other.and(Err(CudaError::ForeignStream)),
    }
    stream.synchronize()
}

fn timed(gpu: &Gpu, stream: &GpuStream) -> Result<(), CudaError> {
    let timer = TimedEvent::new(gpu)?;
    timer.start(stream)?;
    timer.stop(stream)?;
    assert!(timer.elapsed_ms()? >= 0.0);
    Ok(())
}
