//! Work recorded once and run many times.
use super::api::call;
use super::context::Context;
use super::error::CudaError;
use super::order::Touch;
use super::stream::GpuStream;
use certkv_core::fail_point;
use core::fmt;
use core::marker::PhantomData;
use core::ptr;
use cudarc::driver::sys::{CUgraph, CUgraphExec, CUstreamCaptureMode};
use std::sync::Arc;

/// A stream that records its work instead of running it. Dropped without [`Capture::end`], what was recorded is lost and
/// the stream works as before.
#[must_use]
pub struct Capture<'a> {
    stream: &'a GpuStream,
    ended: bool,
    /// A recording ends in the thread where it began.
    not_send: PhantomData<*const ()>,
}

impl GpuStream {
    /// Records what is enqueued from now on. Streams that wait for an event of this one are recorded with it, and must
    /// be joined by an event before the end. The legacy default stream cannot record.
    ///
    /// Calls of *this thread* that may not run during a recording (allocation, synchronisation) fail and spoil it; other
    /// threads are not disturbed.
    ///
    /// # Errors
    /// The driver's.
    pub fn begin_capture(&self) -> Result<Capture<'_>, CudaError> {
        fail_point!("cuda.graph.begin")?;
        let _entered = self.context.enter()?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: a live stream.
        unsafe { call!(self.context.api, cuStreamBeginCapture_v2(self.raw, mode)) }?;
        if let Some(order) = self.context.order.get() {
            order.begin_recording(self.raw.addr());
        }
        Ok(Capture { stream: self, ended: false, not_send: PhantomData })
    }
}

impl Capture<'_> {
    /// Ends the recording.
    ///
    /// # Errors
    /// The driver's, if a call in between spoiled the recording; the stream works as before.
    pub fn end(mut self) -> Result<Graph, CudaError> {
        let graph = self.finish();
        self.ended = graph.is_ok();
        let graph = graph?;
        fail_point!("cuda.graph.end")?;
        Ok(graph)
    }

    fn finish(&self) -> Result<Graph, CudaError> {
        let context = Arc::clone(&self.stream.context);
        let entered = context.enter()?;
        let mut raw = ptr::null_mut();
        let touched = context.order.get().map(|order| order.end_recording(self.stream.raw.addr())).unwrap_or_default();
        // SAFETY: the stream is live and records since `begin_capture`.
        unsafe { call!(context.api, cuStreamEndCapture(self.stream.raw, &raw mut raw)) }?;
        drop(entered);
        if raw.is_null() {
            return Err(CudaError::BadArgument {
                argument: "capture",
                why: "was spoiled by a call that cannot be recorded",
            });
        }
        Ok(Graph { context, raw, touched })
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        /// Of a call that the driver refused for another reason than the recording.
        const TRIES: usize = 4;
        // A stream that went on recording would swallow everything after it. A recording that was spoiled ends with its error.
        for _ in 0..TRIES {
            if self.ended || self.stream.capturing() == Ok(false) {
                break;
            }
            self.ended = self.finish().is_ok();
        }
    }
}

impl fmt::Debug for Capture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("stream", self.stream).finish()
    }
}

/// Recorded work.
pub struct Graph {
    context: Arc<Context>,
    raw: CUgraph,
    /// What its work reads and writes, if the happens-before checker was on.
    touched: Arc<[Touch]>,
}

// SAFETY: a handle without ties to a thread. Not `Sync`: the driver does not lock graphs.
unsafe impl Send for Graph {}

impl Graph {
    /// Nodes: kernels, copies, fills and waits.
    ///
    /// # Errors
    /// The driver's.
    pub fn nodes(&self) -> Result<usize, CudaError> {
        let _entered = self.context.enter()?;
        let mut count = 0;
        // SAFETY: a live graph; a null list asks for the number alone.
        unsafe { call!(self.context.api, cuGraphGetNodes(self.raw, ptr::null_mut(), &raw mut count)) }?;
        Ok(count)
    }

    /// Makes the work ready to run. Costs some us per node; the graph may be dropped afterwards.
    ///
    /// # Errors
    /// The driver's.
    pub fn instantiate(&self) -> Result<GraphExec, CudaError> {
        fail_point!("cuda.graph.instantiate")?;
        let context = Arc::clone(&self.context);
        let entered = context.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: a live graph, and room for one handle.
        unsafe { call!(context.api, cuGraphInstantiateWithFlags(&raw mut raw, self.raw, 0)) }?;
        drop(entered);
        Ok(GraphExec { context, raw, touched: Arc::clone(&self.touched) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by us and destroyed once; instances do not need it.
        self.context.release(|api| unsafe { (api.cuGraphDestroy)(self.raw) });
    }
}

/// Work ready to run. Runs of one instance follow one another, also on different streams.
pub struct GraphExec {
    context: Arc<Context>,
    raw: CUgraphExec,
    /// As in [`Graph`].
    touched: Arc<[Touch]>,
}

// SAFETY: a handle without ties to a thread. Not `Sync`: the driver does not lock graphs.
unsafe impl Send for GraphExec {}

impl GraphExec {
    /// Runs the work on a stream. A few us for the call, about 0.5 us a node on the GPU.
    ///
    /// # Safety
    /// Everything that the recorded calls required is alive and valid until the stream has passed the run: buffers,
    /// pinned and other host memory, modules of the kernels.
    ///
    /// # Errors
    /// [`CudaError::Foreign`] for a stream of another GPU; the driver's.
    pub unsafe fn launch(&self, stream: &GpuStream) -> Result<(), CudaError> {
        fail_point!("cuda.graph.launch")?;
        let _entered = stream.enter_with(&self.context, "graph")?;
        stream.touch(&self.touched)?;
        // SAFETY: both handles are live and of this context; the rest is the caller's contract.
        unsafe { call!(self.context.api, cuGraphLaunch(self.raw, stream.raw)) }
    }

    /// Sends the work to the GPU without running it, so that the first run is as fast as the others.
    ///
    /// # Errors
    /// [`CudaError::Foreign`] for a stream of another GPU; the driver's.
    pub fn upload(&self, stream: &GpuStream) -> Result<(), CudaError> {
        fail_point!("cuda.graph.upload")?;
        let _entered = stream.enter_with(&self.context, "graph")?;
        // SAFETY: both handles are live and of this context.
        unsafe { call!(self.context.api, cuGraphUpload(self.raw, stream.raw)) }
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        // SAFETY: made by us and destroyed once; a run under way is finished by the driver first.
        self.context.release(|api| unsafe { (api.cuGraphExecDestroy)(self.raw) });
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("raw", &self.raw).finish()
    }
}

impl fmt::Debug for GraphExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphExec").field("raw", &self.raw).finish()
    }
}
