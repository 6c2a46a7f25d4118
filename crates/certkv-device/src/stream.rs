//! Streams: queues of operations that run in order.
use crate::error::DeviceError;
use crate::fence::Fence;
use crate::sim::SimDevice;
use certkv_core::sync::Arc;
use certkv_core::sync::atomic::AtomicU32;

/// A queue of operations on one device. Operations of one stream run in order; operations of two streams run in any
/// order that fences allow. Clones name the same stream.
#[derive(Debug, Clone)]
pub struct Stream {
    pub(crate) device: SimDevice,
    pub(crate) index: u32,
    pub(crate) name: &'static str,
    /// Guards alive on this stream, counted on checked devices.
    pub(crate) live: Option<Arc<AtomicU32>>,
}

impl Stream {
    /// Name given at creation.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Number of the stream on its device; 0 is the host.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Marks this point of the stream. The fence passes once everything enqueued before it has run.
    ///
    /// # Errors
    /// `GuardsLive` on checked devices; `Injected`. No fence exists then: order what was enqueued by
    /// [`Stream::synchronize`] instead.
    pub fn record(&self) -> Result<Fence, DeviceError> {
        self.device.record(self)
    }

    /// Everything enqueued here from now on runs after `fence` has passed. On the host stream this blocks.
    ///
    /// # Errors
    /// `Foreign`, `Injected`. The wait was not enqueued then.
    pub fn wait(&self, fence: &Fence) -> Result<(), DeviceError> {
        self.device.wait(self, fence)
    }

    /// Runs what is ordered before this point of the stream, and nothing more. Compute that runs on the calling thread
    /// calls this first; taking a guard does it implicitly.
    pub fn sync_point(&self) {
        self.device.drain(self);
    }

    /// Waits on the host until everything enqueued here has run.
    ///
    /// # Errors
    /// `CopyFailed` if copies enqueued since the last fence failed; everything has run all the same. `GuardsLive` on
    /// checked devices.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        self.device.synchronize_stream(self)
    }
}
