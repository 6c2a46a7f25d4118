//! What the calls cost, as the median of several rounds.
use super::Bench;
use super::parts::CopyArgs;
use certkv_device::cuda::{
    CopyBatch, CudaError, DeviceBuffer, EventPool, GpuStream, LaunchOptions, PinnedBuffer, Priority, TimedEvent,
};
use std::num::NonZeroUsize;
use std::time::Instant;

/// Median time of one of `n` calls in us, over 21 rounds.
fn median_us(
    n: u32,
    mut call: impl FnMut() -> Result<(), CudaError>,
    mut after: impl FnMut() -> Result<(), CudaError>,
) -> Result<f64, CudaError> {
    let mut rounds = Vec::new();
    for _ in 0..21 {
        let start = Instant::now();
        for _ in 0..n {
            call()?;
        }
        rounds.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(n));
        after()?;
    }
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[10])
}

/// Lines of a table.
pub(crate) fn measure(bench: &Bench) -> Result<Vec<String>, CudaError> {
    let gpu = &bench.gpu;
    let s = GpuStream::new(gpu, Priority::Normal)?;
    let pool = EventPool::new(gpu, 1)?;
    let nothing = bench.module.function("nothing")?;
    let mut lines = Vec::new();
    let mut line = |name: &str, us: f64| lines.push(format!("COST {name:<44} {us:9.3} us"));

    line("capture query (push, query, pop)", median_us(2000, || s.capturing().map(drop), || Ok(()))?);
    line("record from the pool", median_us(500, || s.record(&pool).map(drop), || s.synchronize())?);
    let event = s.record(&pool)?;
    line("wait for an event", median_us(500, || s.wait(&event), || s.synchronize())?);
    line("ask whether an event passed", median_us(500, || event.passed().map(drop), || Ok(()))?);
    // SAFETY: the kernel touches nothing.
    let launch = |options| unsafe { nothing.launch(&s, 1, 32, 0, &(), options) };
    line("launch", median_us(500, || launch(LaunchOptions::default()), || s.synchronize())?);
    let programmatic = LaunchOptions { programmatic: true, cluster: None };
    line("launch, programmatic", median_us(500, || launch(programmatic), || s.synchronize())?);
    line(
        "launch and synchronize",
        median_us(200, || launch(LaunchOptions::default()).and_then(|()| s.synchronize()), || Ok(()))?,
    );
    let capture = s.begin_capture()?;
    for _ in 0..200 {
        launch(LaunchOptions::default())?;
    }
    let exec = capture.end()?.instantiate()?;
    // SAFETY: the kernels touch nothing.
    line("graph of 200 kernels: call", median_us(20, || unsafe { exec.launch(&s) }, || s.synchronize())?);
    let timer = TimedEvent::new(gpu)?;
    timer.start(&s)?;
    for _ in 0..20 {
        // SAFETY: as above.
        unsafe { exec.launch(&s) }?;
    }
    timer.stop(&s)?;
    line("graph of 200 kernels: a node on the GPU", f64::from(timer.elapsed_ms()?) * 1e3 / 4000.0);
    let mut buffers = Vec::with_capacity(32);
    line("allocate 2 MiB", {
        let start = Instant::now();
        for _ in 0..32 {
            buffers.push(DeviceBuffer::new(gpu, 2 << 20)?);
        }
        start.elapsed().as_secs_f64() * 1e6 / 32.0
    });
    let start = Instant::now();
    buffers.clear();
    line("free 2 MiB", start.elapsed().as_secs_f64() * 1e6 / 32.0);

    const GIB: usize = 1 << 30;
    let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let start = Instant::now();
    let host = PinnedBuffer::new(gpu, GIB, cores)?;
    line(&format!("pin 1 GiB with {cores} threads"), start.elapsed().as_secs_f64() * 1e6);
    let d = DeviceBuffer::new(gpu, GIB)?;
    line("check a caller's pointer", median_us(500, || gpu.check_device_pointer("q", d.address(), 16), || Ok(()))?);
    let timed = |work: &dyn Fn() -> Result<(), CudaError>| -> Result<f64, CudaError> {
        work()?;
        timer.start(&s)?;
        work()?;
        timer.stop(&s)?;
        Ok(f64::from(timer.elapsed_ms()?) * 1e3)
    };
    // SAFETY: both buffers live until the timer has waited; the host leaves them alone.
    let us = timed(&|| unsafe { d.write_pinned(&s, 0, &host, 0, GIB) })?;
    line(&format!("copy 1 GiB to the GPU ({:.1} GB/s)", GIB as f64 / us / 1e3), us);
    // SAFETY: as above.
    let us = timed(&|| unsafe { d.read_pinned(&s, 0, &host, 0, GIB) })?;
    line(&format!("copy 1 GiB from the GPU ({:.1} GB/s)", GIB as f64 / us / 1e3), us);
    let copy = bench.module.function("copy")?;
    let args = CopyArgs { from: host.device_address(), to: d.address(), n: GIB as u64 / 4 };
    // SAFETY: as above; the arguments are the kernel's own and name whole buffers.
    let us = timed(&|| unsafe { copy.launch(&s, 132, 512, 0, &args, LaunchOptions::default()) })?;
    line(&format!("a kernel reads 1 GiB of the host ({:.1} GB/s)", GIB as f64 / us / 1e3), us);
    let mut batch = CopyBatch::new(gpu, 128);
    for i in 0..128 {
        batch.push(&d, i * 4096, &host, i * 65_536, 4096)?;
    }
    // SAFETY: as above.
    line("batch of 128 copies of 4 KiB: call", median_us(4, || unsafe { batch.submit(&s) }, || s.synchronize())?);
    // As originals of a block leave, in 32 layers.
    const BLOCK: usize = 256 << 10;
    let mut batch = CopyBatch::new(gpu, 32);
    for i in 0..32 {
        batch.push_back(&host, i * 8 * BLOCK, &d, i * 3 * BLOCK, BLOCK)?;
    }
    let each = || {
        // SAFETY: as above.
        (0..32).try_for_each(|i| unsafe { d.read_pinned(&s, i * 3 * BLOCK, &host, i * 8 * BLOCK, BLOCK) })
    };
    line("32 copies of 256 KiB from the GPU: calls", median_us(4, each, || s.synchronize())?);
    // SAFETY: as above.
    line("the same in a batch: call", median_us(4, || unsafe { batch.submit(&s) }, || s.synchronize())?);
    let us = timed(&|| (0..20).try_for_each(|_| each()))? / 20.0;
    line("32 copies of 256 KiB from the GPU: on the GPU", us);
    let batch = core::cell::RefCell::new(batch);
    // SAFETY: as above.
    let us = timed(&|| (0..20).try_for_each(|_| unsafe { batch.borrow_mut().submit(&s) }))? / 20.0;
    line("the same in a batch: on the GPU", us);
    Ok(lines)
}
