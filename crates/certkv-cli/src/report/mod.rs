//! Results as data, as a table, and as one self-contained page.
pub mod build;
pub mod data;
pub mod table;

pub use build::build;
pub use data::ReportData;

/// page
pub fn page(_d: &ReportData) -> String {
    String::new()
}
