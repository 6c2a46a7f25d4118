//! The cache on a GPU: the verbs of [`Cache`](crate::Cache) over kernels of `certkv_kernel::cuda`.
//!
//! Records, tails and tables lie in device memory, originals in pinned host memory that kernels reach. A decode step is
//! enqueued without waiting: [`GpuCache::begin`] sends lengths, tails and new pages, then every layer is an append and a fixed
//! sequence of attention launches, and [`GpuStep::outputs`] or [`GpuStep::certificates`] wait if the host asks. Such a step can
//! be recorded ([`GpuCache::record`], or [`GpuStep::captured`] between the caller's own kernels) and replayed. Longer chunks are attended on the CPU, from originals, or with
//! `GpuConfig::chunk_tokens` on the GPU, which the call waits for; drafts of a few tokens as steps are.
//!
//! ```no_run
//! use certkv::gpu::{Compiler, Gpu, GpuCache, GpuConfig};
//! use certkv::{Chunk, Geometry};
//! let gpu = Gpu::open(0)?;
//! let geometry = Geometry::new(1, 4, 2, 64)?;
//! let mut cache = GpuCache::new(&gpu, &Compiler::new(), GpuConfig::new(geometry, 1024))?;
//! let sequence = cache.create()?;
//! let (k, v, q) = (vec![0.5; 2 * 64], vec![0.25; 2 * 64], vec![0.1; 4 * 64]);
//! let (mut out, mut certificates) = (vec![0.0; 4 * 64], vec![Default::default(); 4]);
//! let mut step = cache.begin(&[Chunk { sequence, tokens: 1 }])?;
//! step.append(0, &k, &v)?;
//! step.attend(0, &q)?;
//! step.outputs(0, &mut out, &mut certificates)?;
//! step.finish()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Where this differs from the CPU: one repair, whose sides come from scratch or over the host's link (of a refinable format behind a
//! correction of the blocks that need their residuals), then the dense rung; what the next step reads exactly is chosen on the device; the canary (math.md (7.4)) is checked
//! for keys read exactly; a record has no seal while it lies on the device; [`Policy::Seed000`](crate::Policy::Seed000), ranking conditions and exploration
//! are refused; certificates count the bytes of passes over records, of residuals that a correction read and of dense heads, not those of promoted
//! blocks, of records that a correction read again and of residuals read in the pass, which [`GpuCache::selection`] counts by layer.

mod cache;
mod calibrated;
mod capture;
mod carry;
mod chunk_rows;
mod config;
mod control;
mod core;
mod device_rows;
mod draft_sections;
mod drafts;
mod erase;
mod events;
mod extend;
mod extended;
mod fixed;
mod forgotten;
mod frames;
mod importance;
mod kit;
mod ladder;
mod learn;
mod leaving;
mod level_probes;
mod level_sizes;
mod levels;
mod lists;
mod mirror;
mod moves;
mod ordered;
mod pages;
mod plan;
mod policy;
mod prefill;
mod prefix;
mod prepare;
mod probe;
mod protected;
mod published;
mod queries;
mod readback;
mod record;
mod refused;
mod result_sections;
mod results;
mod ring;
mod rows;
mod said;
mod save;
mod scrub;
mod sections;
mod sizes;
mod snapshot;
mod spill;
mod step;
mod swap;
mod tolerance;
mod truncate;
mod units;
mod window;

pub use self::cache::GpuCache;
pub use self::capture::GpuCapture;
pub use self::config::{GpuConfig, SCRATCH_SHARE};
pub use self::plan::GpuMachine;
pub use self::prepare::PreparedKernels;
pub use self::published::{CertificateRing, PublishedCertificate, PublishedStep};
pub use self::record::{GpuGraph, LayerIo};
pub use self::step::GpuStep;
pub use certkv_device::cuda::{CudaError, DeviceBuffer, Gpu, GpuStream, TimedEvent};
pub use certkv_device::mailbox::Missed;
pub use certkv_kernel::cuda::args::Element;
pub use certkv_kernel::cuda::select::SelectStats;
pub use certkv_kernel::cuda::tensor::{Rows, Tensor};
pub use certkv_kernel::cuda::{Ahead, Arch, Compiler, PrepareError};
