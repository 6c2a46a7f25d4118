//! Results as data, as a table, and as one self-contained page.
pub mod build;
pub mod data;
pub mod figure;
pub mod page;
pub mod svg;
pub mod sweep;
pub mod table;

pub use build::build;
pub use data::ReportData;
pub use page::page;
