//! Geometry, number formats, record layouts, ids, budgets and the sync facade of certkv.
//!
//! This crate decides nothing and computes no attention: it holds the words that every other crate shares, so that a
//! layout, a rounding rule or an error is described once. See `docs/math.md` for the equations cited here.
#![forbid(unsafe_code)]

pub mod budget;
pub mod dtype;
pub mod fail;
pub mod format;
pub mod fragment;
pub mod geometry;
pub mod hash;
pub mod histogram;
pub mod id;
pub mod layout;
mod page_code;
pub mod pairing;
pub mod plant;
mod reserve;
pub mod round;
pub mod rows;
pub mod summary;
pub mod sync;
mod tier;
pub mod tiles;
pub mod trace;

pub use budget::{BudgetExceeded, Class, Ledger};
pub use dtype::{Dtype, nonfinite_at};
pub use fail::InjectedFault;
pub use format::{Format, FormatError, GroupCode, KeyFormat, Refine, TURBO_BITS, ValueFormat};
pub use geometry::{Geometry, GeometryError};
pub use histogram::{Histogram, SharedHistogram};
pub use id::{LayerId, PageId, SequenceId};
pub use layout::RecordLayout;
pub use page_code::PageCode;
pub use pairing::{Pairing, UnknownPairing};
pub use reserve::{OutOfMemory, reserve_total, try_collect, try_filled, try_resize};
pub use summary::{ErrorSummary, RefinedSummary};
pub use tier::{Tier, UnknownTier};
