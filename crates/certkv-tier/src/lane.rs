//! Lanes: copy streams of the tier manager.
use certkv_core::planted;
use certkv_core::sync::Mutex;
use certkv_device::{Copy2d, DeviceError, Dst, Fence, SimDevice, Src, Stream};

/// A stream that only copies. No guard is ever taken on it, so its fences need no care.
#[derive(Debug)]
pub struct Lane {
    device: SimDevice,
    stream: Stream,
    last: Mutex<Option<Fence>>,
}

impl Lane {
    /// A new lane of `device`.
    pub fn new(device: &SimDevice, name: &'static str) -> Self {
        Self { device: device.clone(), stream: device.stream(name), last: Mutex::new(None) }
    }

    /// Name given at creation.
    pub fn name(&self) -> &'static str {
        self.stream.name()
    }

    /// Number of the lane's stream on its device.
    pub(crate) fn index(&self) -> u32 {
        self.stream.index()
    }

    /// Copies enqueued from now on run after `fence` has passed: the source was written, or the destination last read,
    /// before it.
    ///
    /// # Errors
    /// `Foreign`, `Injected`; nothing was enqueued then.
    pub fn wait(&self, fence: &Fence) -> Result<(), DeviceError> {
        self.stream.wait(fence)
    }

    /// Enqueues a copy.
    ///
    /// # Errors
    /// As for [`SimDevice::copy`]; nothing was enqueued then.
    pub fn copy(&self, src: Src<'_>, dst: Dst<'_>) -> Result<(), DeviceError> {
        self.device.copy(&self.stream, src, dst)
    }

    /// Enqueues equal copies at a pitch.
    ///
    /// # Errors
    /// As for [`SimDevice::copy_2d`]; nothing was enqueued then.
    pub fn copy_2d(&self, src: Src<'_>, dst: Dst<'_>, rows: Copy2d) -> Result<(), DeviceError> {
        self.device.copy_2d(&self.stream, src, dst, rows)
    }

    /// A fence behind everything enqueued so far.
    ///
    /// # Errors
    /// The device's reason. Everything enqueued has run then (the only place where a lane waits), so that no copy is
    /// left in flight without a fence; its outcome is unknown.
    pub fn finish(&self) -> Result<Fence, DeviceError> {
        match self.stream.record() {
            Ok(fence) => {
                *self.last.lock() = Some(fence.clone());
                Ok(fence)
            }
            Err(error) => {
                // The outcome of the copies does not matter: the caller counts them all as failed.
                let _ = self.stream.synchronize();
                *self.last.lock() = None;
                Err(error)
            }
        }
    }

    /// The last fence, if work behind it may be in flight: what a page that this lane read must be retired behind.
    pub fn last_fence(&self) -> Option<Fence> {
        if planted!(B5) { None } else { self.last.lock().clone() }
    }

    /// Waits on the host until the lane has run everything.
    ///
    /// # Errors
    /// `CopyFailed` if copies that no fence covers failed; everything has run all the same.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        self.stream.synchronize()
    }
}
