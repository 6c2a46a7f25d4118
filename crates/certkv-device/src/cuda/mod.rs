//! CUDA through the driver API, loaded at run time: a machine without a driver gets a typed error, nothing links to CUDA.
//!
//! - Every call makes the GPU's primary context current and restores the caller's afterwards (two driver calls, well
//!   below a tenth of a launch). No call leaves a trace in the calling thread.
//! - Device memory is an address. Copies and kernels that can reach host memory or any address are `unsafe`; what
//!   they must keep alive until their stream has passed them is in their contract. The rest is checked.
//! - Nothing here orders streams by itself: [`GpuStream::record`] and [`GpuStream::wait`] do. [`Gpu::check_order`] finds where they are missing.
//! - Handles of one GPU are interchangeable between threads; a graph is used by one thread at a time.
//! - Dropping a handle never fails: what the driver would not release is counted in [`Usage::unreleased`].
//!
//! [`nvrtc`] compiles kernels to machine code and needs no GPU.

mod api;
mod batch;
mod buffer;
mod context;
mod cubin;
mod error;
mod event;
mod function;
mod gpu;
mod graph;
mod load;
mod mapping;
mod module;
pub mod nvrtc;
mod order;
mod pinned;
mod pod;
mod pointer;
mod stream;
mod timer;

pub use batch::CopyBatch;
pub use buffer::DeviceBuffer;
pub use context::Usage;
pub use error::{Accessor, CudaError};
pub use event::{Event, EventPool};
pub use function::{Dim3, Function, FunctionInfo, LaunchOptions};
pub use gpu::{Gpu, GpuInfo, MINIMUM_ARCH, MINIMUM_DRIVER, MemoryInfo};
pub use graph::{Capture, Graph, GraphExec};
pub use module::Module;
pub use order::{OrderReport, Touch};
pub use pinned::PinnedBuffer;
pub use pod::Pod;
pub use stream::{GpuStream, Priority};
pub use timer::TimedEvent;
