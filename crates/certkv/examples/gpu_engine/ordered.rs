//! The happens-before checker on real streams: orders that are missing, which the GPU mostly forgives and the checker must not.
use crate::world::Failure;
use certkv::gpu::Gpu;
use certkv_device::cuda::{CudaError, DeviceBuffer, EventPool, GpuStream, PinnedBuffer, Priority};
use core::num::NonZeroUsize;

/// Missing orders that were found, each of them right again with its order, and how many were tried.
pub(crate) fn planted(gpu: &Gpu) -> Result<(usize, usize), Failure> {
    const BYTES: usize = 4096;
    let (one, two) = (GpuStream::new(gpu, Priority::Normal)?, GpuStream::new(gpu, Priority::Normal)?);
    let events = EventPool::new(gpu, 2)?;
    let buffer = DeviceBuffer::new(gpu, BYTES)?;
    let pinned = PinnedBuffer::new(gpu, BYTES, NonZeroUsize::MIN)?;
    let found = |result: Result<(), CudaError>| usize::from(matches!(result, Err(CudaError::Unordered { .. })));
    let mut caught = 0;

    // A page is written on one stream and used on another.
    buffer.fill(&one, 0, BYTES, 1)?;
    caught += found(buffer.fill(&two, BYTES / 2, 16, 2));
    two.wait(&one.record(&events)?)?;
    buffer.fill(&two, BYTES / 2, 16, 2)?;

    // A copy to the host is read before its end.
    // SAFETY: the buffers outlive the streams' work, which is waited for below; what the host reads too early, it does not read: the checker
    // refuses.
    unsafe { buffer.read_pinned(&two, 0, &pinned, 0, BYTES) }?;
    let mut bytes = [0u8; 64];
    caught += found(pinned.copy_out(0, &mut bytes));
    two.synchronize()?;
    pinned.copy_out(0, &mut bytes)?;

    // A staging place is filled again while a copy may still read it.
    // SAFETY: as above.
    unsafe { buffer.write_pinned(&one, 0, &pinned, 0, BYTES) }?;
    // SAFETY: this thread alone uses the buffer; the checker refuses before the copy.
    caught += found(unsafe { pinned.copy_in_shared(BYTES - 64, &bytes) });
    let mark = one.record(&events)?;
    mark.synchronize()?;
    // SAFETY: as above, and the copy has passed.
    unsafe { pinned.copy_in_shared(BYTES - 64, &bytes) }?;

    // A recording runs beside work that it was not told to wait for.
    let capture = one.begin_capture()?;
    buffer.fill(&one, 0, BYTES, 3)?;
    let graph = capture.end()?.instantiate()?;
    buffer.fill(&two, 0, 16, 4)?;
    // SAFETY: the buffer outlives the streams' work, which is waited for below.
    caught += found(unsafe { graph.launch(&one) });
    one.wait(&two.record(&events)?)?;
    // SAFETY: as above.
    unsafe { graph.launch(&one) }?;
    one.synchronize()?;
    two.synchronize()?;
    Ok((caught, 4))
}
