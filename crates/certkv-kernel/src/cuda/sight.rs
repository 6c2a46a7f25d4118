//! Sliding windows with sinks, as a launch is told of them. Which blocks that leaves, the kernels see from the lengths
//! (`kernels/window.cuh`): lengths are in device memory, so that a recorded launch stays right while sequences grow.
use super::variant::Variant;
use certkv_device::cuda::CudaError;

/// What queries see in layers with a sliding window: that at position `p` sees token `t` if `t < sinks` or `t + tokens > p`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sight {
    /// Newest tokens, its own among them: at least 1.
    pub tokens: u32,
    /// First tokens of the sequence.
    pub sinks: u32,
}

/// Window and sinks of a launch, where its variant has them.
pub(super) fn sight_of(variant: &Variant, sight: Option<Sight>) -> Result<[u32; 2], CudaError> {
    let wrong = |why| Err(CudaError::BadArgument { argument: "sight", why });
    match (variant.is_windowed(), sight) {
        (false, None) => Ok([0; 2]),
        (true, Some(Sight { tokens: 0, .. })) => wrong("a window of no token"),
        (true, Some(Sight { tokens, sinks })) => Ok([tokens, sinks]),
        (true, None) => wrong("none, of a variant with windows"),
        (false, Some(_)) => wrong("of a variant without windows"),
    }
}
