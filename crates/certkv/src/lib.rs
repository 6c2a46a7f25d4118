//! Certified, paged, compressed KV cache for LLM decode attention.
//!
//! A [`Cache`] stores keys and values of many sequences in compressed pages and keeps the 16-bit originals beside them.
//! Each step appends new tokens and attends: decode attention is computed directly on the codes, and every output comes
//! with a [`Certificate`], an upper bound on its distance from attention over the originals. Over tolerance, the step
//! reads just enough blocks exactly to come back under, and in the last resort returns dense attention.
//!
//! ```
//! use certkv::{Cache, Chunk, Config, Geometry};
//! let geometry = Geometry::new(1, 4, 2, 64)?;
//! let cache = Cache::new(Config::new(geometry, 1024))?;
//! let sequence = cache.create()?;
//! let (k, v, q) = (vec![0.5; 2 * 64], vec![0.25; 2 * 64], vec![0.1; 4 * 64]);
//! let (mut out, mut certificates) = (vec![0.0; 4 * 64], vec![Default::default(); 4]);
//! let mut step = cache.begin(&[Chunk { sequence, tokens: 1 }])?;
//! step.append(0, &k, &v)?;
//! step.attend(0, &q, &mut out, &mut certificates)?;
//! step.finish()?;
//! assert!(certificates.iter().all(|c| c.bound() < 1e-3));
//! # Ok::<(), certkv::Error>(())
//! ```
//!
//! What is certified: the distance to attention in exact real arithmetic over the stored 16-bit originals, arithmetic of
//! the kernel included. What is not: what another kernel would return, and what the model makes of the difference.
#![forbid(unsafe_code)]
#![allow(clippy::neg_cmp_op_on_partial_ord, reason = "!(bound <= tol) is how NaN fails closed")]

mod append;
mod attend;
mod cache;
mod calibrated;
mod centre;
mod config;
mod counters;
mod erase;
mod error;
mod events;
mod fixed;
pub mod gpu;
mod group;
mod levels;
mod memory;
mod moves;
mod plan;
mod prefix;
mod protection;
#[cfg(feature = "metrics")]
mod publish;
mod save;
mod scrub;
pub mod seal;
mod sequence;
mod sizes;
mod snapshot;
mod spill;
mod step;
mod swap;
mod tolerance;
mod truncate;
mod work;

pub use cache::{Cache, Chunk};
pub use calibrated::{calibration_digest, codebooks_digest};
pub use certkv_bound::{BytesRead, Cause, Certificate, Rung, Status};
/// The rule and the plans of [`BoundBudget`].
pub use certkv_control::bound_budget;
/// What calibrations are read from files with, and the heads and model that they are checked against.
pub use certkv_control::calibration;
/// The gate over blocks whose rank is in danger, which SmartKV and retention can have.
pub use certkv_control::danger;
pub use certkv_control::policy::{Certified, Policy, Seed000};
/// The rule of [`Retention`], and what decides by it.
pub use certkv_control::retention;
/// Fixed scales: what [`Config::scales`] takes, and what reads them from a file.
pub use certkv_control::scales;
/// The rule and the decisions of [`SmartKv`].
pub use certkv_control::smartkv;
/// Codebooks of spherical keys: what [`Config::codebooks`] takes, and what trains them and reads them from a file.
pub use certkv_control::spherical;
pub use certkv_core::Histogram;
pub use certkv_core::budget::{ByClass, CLASSES, Class, POOLS, Pool};
pub use certkv_core::{
    Dtype, Format, FormatError, Geometry, GeometryError, GroupCode, KeyFormat, Pairing, RecordLayout, Refine,
    SequenceId, Tier, ValueFormat,
};
pub use certkv_device::{CheckReport, HostMemory, Mode, SimOptions};
/// Which machine code runs on a CPU: docs/support.md, Machines.
pub use certkv_kernel::Arch as CpuArch;
pub use certkv_page::prefix::{
    Admission, BlockKey, Cached, EventKind, EventsRead, Mark, NotYet, PrefixEvent, PrefixEvents, PrefixSecret,
    PrefixStats, Prompt, Stop, Watermarks,
};
pub use certkv_page::{Counts, Window};
pub use certkv_tier::spill::records::RecordStats;
/// Tier-3: stores of pages outside the process.
pub use certkv_tier::store;
pub use certkv_tier::{Occupancy, ScratchStats};
pub use config::{Config, DEFAULT_FORMAT, default_format};
pub use counters::{Moves, Outputs};
pub use error::Error;
pub use group::Side;
pub use levels::{
    BoundBudget, Control, ControlEntry, Controlled, Level, LevelPlan, Measure, Planned, Retention, Scored, SmartKv,
};
pub use memory::MemoryUse;
pub use moves::{MoveEvent, MoveEvents, MoveKind};
pub use plan::{Plan, PoolPlan, Requests, RequestsPlan};
pub use prefix::{CachedPrefix, Eviction, PrefixConfig, PrefixScope, PrefixUnit, PublishedPrefix};
pub use protection::Protection;
pub use save::{SaveError, SaveScope};
pub use scrub::{Damage, Fault, Scrub, Scrubbed};
pub use snapshot::{ClassUse, PageUse, PoolUse, PrefixUse, ScratchUse, Snapshot};
pub use spill::{FetchCause, FetchError, Prefetched, Spill, SpillUse};
pub use step::Step;
pub use tolerance::Tolerance;
