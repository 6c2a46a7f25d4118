//! Prompts with known answers, and held-out text.
pub mod error;
pub mod prompt;
pub mod reader;
pub mod select;
pub mod text;

pub use error::TaskError;
pub use prompt::Prompt;
pub use select::Selection;
pub use text::Window;
