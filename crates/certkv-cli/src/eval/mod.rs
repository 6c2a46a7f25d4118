//! Runs a model's answers and text through several caches and measures what each gives and costs.
pub mod backend;
pub mod compare;
pub mod fake;
pub mod gather;
pub mod mode;
pub mod oracle;
pub mod outcome;
pub mod per_head;
pub mod probe;
pub mod run;
pub mod score;

pub use backend::{Backend, Engine, Footprint};
pub use gather::Gathered;
pub use mode::{Mode, Policy};
pub use outcome::{ModeOutcome, Outcome, Trial};
pub use per_head::PerHead;
pub use run::{Models, Plan, Work, run};
