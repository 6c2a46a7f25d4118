//! Where the bundled model and prompts lie.
use crate::error::CliError;
use std::path::{Path, PathBuf};

/// The `assets` folder: `given`, or the one of the source tree that this program was built from, or `./assets`.
///
/// # Errors
/// [`CliError::Input`] when none of them holds the reference model.
pub fn locate(given: Option<&Path>) -> Result<PathBuf, CliError> {
    let candidates = match given {
        Some(folder) => vec![folder.to_owned()],
        None => vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets"), PathBuf::from("assets")],
    };
    for folder in &candidates {
        if folder.join("ref-d128/config.json").is_file() {
            return Ok(folder.clone());
        }
    }
    let looked: Vec<String> = candidates.iter().map(|c| c.display().to_string()).collect();
    Err(CliError::input(format!("assets: no ref-d128/config.json in {}; give --assets DIR", looked.join(" or "))))
}
