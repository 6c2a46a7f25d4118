//! Fences: points of a stream that others wait for.
use crate::error::DeviceError;
use crate::sim::{Completion, SimDevice};
use certkv_core::sync::Arc;

/// A point in a stream. It must be waited for or kept with what it protects; dropping it loses the order.
#[must_use = "a fence orders nothing until someone waits for it"]
#[derive(Debug, Clone)]
pub struct Fence {
    pub(crate) device: SimDevice,
    pub(crate) stamp: u64,
    /// `None` on an eager, unchecked device, where every fence has passed when it is recorded.
    pub(crate) completion: Option<Arc<Completion>>,
}

impl Fence {
    /// Whether everything before the fence has run, successfully or not: its memory is no longer in use.
    /// Does not block; asking often enough sees it pass.
    pub fn passed(&self) -> bool {
        self.device.poll(self)
    }

    /// As [`Fence::passed`], and whether the copies before it succeeded.
    ///
    /// # Errors
    /// `CopyFailed`: the fence has passed, and copies enqueued on its stream since the stream's fence before it failed.
    pub fn completed(&self) -> Result<bool, DeviceError> {
        if self.passed() { self.device.outcome(self).map(|()| true) } else { Ok(false) }
    }

    /// Waits on the host until the fence has passed.
    ///
    /// # Errors
    /// As for [`Fence::completed`]; the fence has passed all the same.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        self.device.finish(self);
        self.device.outcome(self)
    }

    /// Number of the fence, increasing over all fences of a device: for owners that keep an integer and ask
    /// [`SimDevice::passed`]. Stamps of different streams need not pass in order.
    pub fn stamp(&self) -> u64 {
        self.stamp
    }
}
