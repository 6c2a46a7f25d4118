//! What a launch reads and writes.
use super::args::Strides;
use super::queue::{Queue, Span};
use super::tensor::Tensor;
use certkv_device::cuda::{CudaError, Touch};

/// Memory that the arguments of one launch name: each is checked to hold what the kernel needs of it, and all of it is told to the
/// happens-before checker. The whole of what an argument names counts, as tables in device memory say which part is used.
pub(super) struct Touched {
    /// `None`: the checker is off, and nothing is kept.
    list: Option<Vec<Touch>>,
}

impl Touched {
    pub(super) fn on(queue: &Queue) -> Self {
        Self { list: queue.gpu().checks_order().then(Vec::new) }
    }

    fn note(&mut self, touch: Touch) -> u64 {
        self.list.iter_mut().for_each(|list| list.push(touch));
        touch.address
    }

    /// The address of what the kernel only reads.
    pub(super) fn reads(&mut self, span: Span<'_>, argument: &'static str, needs: usize) -> Result<u64, CudaError> {
        Ok(self.note(Touch::read(span.holding(argument, needs)?, span.bytes())))
    }

    /// The address of what it may write.
    pub(super) fn writes(&mut self, span: Span<'_>, argument: &'static str, needs: usize) -> Result<u64, CudaError> {
        Ok(self.note(Touch::write(span.holding(argument, needs)?, span.bytes())))
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

    /// Rows of `[tokens, heads, channels]` that the kernel reads, and where they are.
    pub(super) fn takes_rows(
        &mut self,
        t: Tensor<'_>,
        argument: &'static str,
        shape: [usize; 3],
    ) -> Result<(u64, Strides), CudaError> {
        self.rows(t, argument, shape, Touch::read)
    }

    /// Rows that it writes. What lies between them counts as written.
    pub(super) fn gives_rows(
        &mut self,
        t: Tensor<'_>,
        argument: &'static str,
        shape: [usize; 3],
    ) -> Result<(u64, Strides), CudaError> {
        self.rows(t, argument, shape, Touch::write)
    }

    fn rows(
        &mut self,
        t: Tensor<'_>,
        argument: &'static str,
        shape: [usize; 3],
        touch: fn(u64, usize) -> Touch,
    ) -> Result<(u64, Strides), CudaError> {
        let (address, strides, extent) = t.holding_rows(argument, shape)?;
        Ok((self.note(touch(address, extent * t.element().bytes())), strides))
    }

    /// Tells the checker. Before the launch.
    pub(super) fn tell(&self, queue: &Queue) -> Result<(), CudaError> {
        self.list.as_deref().map_or(Ok(()), |list| queue.stream().touch(list))
    }
}
