//! What a calibration remembers of the model and the text: digests of their bytes.
use crate::model::{ModelError, weights::weight_files};
use std::path::Path;

/// Digest of the files of a model folder that decide what it computes: configuration, weights and what its tokens are, each behind its length.
///
/// # Errors
/// [`ModelError`] naming the file that cannot be read.
pub fn model_digest(folder: &Path) -> Result<[u8; 32], ModelError> {
    let mut hasher = blake3::Hasher::new();
    let mut files = vec![folder.join("config.json")];
    files.extend(weight_files(folder)?);
    // Models of bytes have none.
    files.extend(Some(folder.join("tokenizer.json")).filter(|path| path.exists()));
    for path in files {
        let refuse = |source| ModelError::Read { path: path.clone(), source };
        let file = std::fs::File::open(&path).map_err(refuse)?;
        hasher.update(&file.metadata().map_err(refuse)?.len().to_le_bytes());
        hasher.update_reader(file).map_err(refuse)?;
    }
    Ok(hasher.finalize().into())
}

/// Digest of the bytes that were read, part by part.
pub fn text_digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize().into()
}
