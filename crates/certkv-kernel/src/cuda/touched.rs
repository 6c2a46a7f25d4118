//! What a launch reads and writes.
use super::queue::{Queue, Span, Tensor};
use certkv_device::cuda::{CudaError, Touch};

/// Most arguments of one launch that name memory.
const MOST: usize = 40;

/// Memory that the arguments of one launch name: each is checked to hold what the kernel needs of it, and all of it is told to the
/// happens-before checker. The whole of what an argument names counts, as tables in device memory say which part is used.
pub(super) struct Touched {
    list: [Touch; MOST],
    count: usize,
}

impl Touched {
    pub(super) fn new() -> Self {
        Self { list: [Touch::read(0, 0); MOST], count: 0 }
    }

    fn push(&mut self, touch: Touch) {
        if let Some(place) = self.list.get_mut(self.count) {
            *place = touch;
            self.count += 1;
        }
        debug_assert!(self.count < MOST, "a launch with more arguments than are told");
    }

    /// The address of what the kernel only reads.
    pub(super) fn reads(&mut self, span: Span<'_>, argument: &'static str, needs: usize) -> Result<u64, CudaError> {
        let address = span.holding(argument, needs)?;
        self.push(Touch::read(address, span.bytes()));
        Ok(address)
    }

    /// The address of what it may write.
    pub(super) fn writes(&mut self, span: Span<'_>, argument: &'static str, needs: usize) -> Result<u64, CudaError> {
        let address = span.holding(argument, needs)?;
        self.push(Touch::write(address, span.bytes()));
        Ok(address)
    }

    /// The same for an argument that may be left out, as address 0.
    pub(super) fn may_read(
        &mut self,
        span: Option<Span<'_>>,
        argument: &'static str,
        needs: usize,
    ) -> Result<u64, CudaError> {
        span.map_or(Ok(0), |s| self.reads(s, argument, needs))
    }

    /// The same.
    pub(super) fn may_write(
        &mut self,
        span: Option<Span<'_>>,
        argument: &'static str,
        needs: usize,
    ) -> Result<u64, CudaError> {
        span.map_or(Ok(0), |s| self.writes(s, argument, needs))
    }

    /// The address of pages of which tables say which are used: whoever writes the tables tells the checker.
    pub(super) fn names(&mut self, span: Span<'_>, argument: &'static str, needs: usize) -> Result<u64, CudaError> {
        span.holding(argument, needs)
    }

    /// Elements that the kernel reads.
    pub(super) fn takes(&mut self, t: Tensor<'_>, argument: &'static str, needs: usize) -> Result<u64, CudaError> {
        let address = t.holding(argument, needs)?;
        self.push(Touch::read(address, needs * t.element().bytes()));
        Ok(address)
    }

    /// Elements that it writes.
    pub(super) fn gives(&mut self, t: Tensor<'_>, argument: &'static str, needs: usize) -> Result<u64, CudaError> {
        let address = t.holding(argument, needs)?;
        self.push(Touch::write(address, needs * t.element().bytes()));
        Ok(address)
    }

    /// Tells the checker. Before the launch.
    pub(super) fn tell(&self, queue: &Queue) -> Result<(), CudaError> {
        queue.stream().touch(&self.list[..self.count])
    }
}
