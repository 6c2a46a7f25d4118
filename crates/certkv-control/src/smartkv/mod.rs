//! SmartKV: how many bits each item (a token or a block) of a layer is worth, from attention that it got: math.md (9.6) to (9.15).
//!
//! [`Importance`] turns the attention of each step into scores, [`Hysteresis`] says which items may change, [`WidthAllocator`] spends the
//! budget, [`kl`], [`moved`] and [`interval`] say when to do it again. [`Controller`] is all of it for one layer.
mod controller;
mod drift;
mod few;
mod hysteresis;
mod importance;
mod widths;

pub use controller::{Apart, Controller, Decision, Drift, Needs, Rule, Told, Trigger};
pub use drift::{interval, kl, moved};
pub use hysteresis::Hysteresis;
pub use importance::{Importance, ImportanceRule};
pub use widths::{Items, Ladder, WidthAllocator, Widths};
