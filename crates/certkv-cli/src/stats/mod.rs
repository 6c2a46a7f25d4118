//! Statistics of paired comparisons.
pub mod bootstrap;
pub mod mcnemar;
pub mod quantile;
pub mod wilson;

pub use bootstrap::{Interval, paired_bootstrap};
pub use mcnemar::{Table, mcnemar_exact};
pub use quantile::{Quantiles, quantile};
pub use wilson::wilson;
