//! C ABI of certkv, on host memory or a GPU. The header `include/certkv.h` is generated from this crate.
//!
//! Every export is one call of `guard::guard` (or `guard_value` for those that cannot fail), so that no panic crosses
//! into C. Handles are numbers of a registry dressed as pointers and are never dereferenced: a stale, foreign or
//! made-up handle is a status, not undefined behaviour. What cannot be checked is whether a caller's *data* pointer
//! really has the size that came with it.
#![allow(non_camel_case_types, reason = "types bear the names they have in C")]
#![allow(clippy::missing_safety_doc, reason = "the contract of each export is written for C callers")]

mod admit;
mod allocator;
mod argument;
mod bound_budget;
mod cache;
mod calibration;
mod callbacks;
mod capture;
mod certificate;
mod config;
mod control;
mod control_log;
mod engine;
mod error;
mod events;
mod guard;
mod handle;
mod kept;
mod level;
mod log;
mod machine;
mod metrics;
mod moves;
mod numbers;
mod offload;
mod owned;
mod parameters;
mod plan;
mod prefetch;
mod prefix;
mod records;
mod retention;
mod ring;
mod rows;
mod save;
mod scales;
mod scrub;
mod sealed;
mod sequence;
mod snapshot;
mod spans;
mod statistics;
mod status;
mod step;
mod stepping;
mod store;
mod swap;
mod tensor;
mod tolerance;
mod version;
mod window;

pub use admit::*;
pub use allocator::certkv_allocator;
pub use bound_budget::*;
pub use cache::{certkv_cache, certkv_cache_create, certkv_cache_destroy};
pub use calibration::*;
pub use callbacks::{
    CERTKV_ITEM_DONE, CERTKV_ITEM_FAILED, CERTKV_ITEM_FULL, CERTKV_ITEM_NOT_FOUND, CERTKV_ITEM_TOO_LARGE,
    certkv_get_item, certkv_item_result, certkv_key_item, certkv_put_item, certkv_store_callbacks, certkv_store_key,
};
pub use capture::*;
pub use certificate::*;
pub use config::*;
pub use control::*;
pub use control_log::*;
pub use error::{certkv_error_info, certkv_last_error};
pub use events::*;
pub use level::{
    certkv_level, certkv_sequence_change_head_level, certkv_sequence_change_level, certkv_sequence_head_level,
    certkv_sequence_level, certkv_sequence_set_levels,
};
pub use log::{
    CERTKV_LOG_DEBUG, CERTKV_LOG_ERROR, CERTKV_LOG_INFO, CERTKV_LOG_OFF, CERTKV_LOG_WARN, certkv_log,
    certkv_log_callback, certkv_log_level, certkv_log_set,
};
pub use machine::*;
pub use metrics::certkv_cache_metrics;
pub use moves::*;
pub use offload::*;
pub use plan::*;
pub use prefetch::*;
pub use prefix::*;
pub use retention::*;
pub use ring::*;
pub use save::{certkv_save_scope, certkv_sequence_restore, certkv_sequence_save};
pub use scales::{
    certkv_scales, certkv_scales_describe, certkv_scales_destroy, certkv_scales_info, certkv_scales_open,
    certkv_scales_read,
};
pub use scrub::*;
pub use sequence::*;
pub use snapshot::*;
pub use statistics::{certkv_cache_memory, certkv_memory};
pub use status::{certkv_status, certkv_status_name};
pub use step::*;
pub use store::*;
pub use swap::*;
pub use tensor::{certkv_step_append_tensors, certkv_step_attend_tensors, certkv_tensor};
pub use tolerance::*;
pub use version::{certkv_version, certkv_version_number};
pub use window::certkv_window;
