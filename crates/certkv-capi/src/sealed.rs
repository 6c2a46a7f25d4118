//! Handles of what the program writes to files and nobody changes: calibrations, fixed scales.
use crate::argument;
use crate::guard::Failure;
use crate::handle::Registry;
use crate::status::{self, certkv_status::CERTKV_FILE};
use certkv::calibration::CalibrationError;
use core::ptr;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

/// One kind of file.
pub(crate) struct Kind<T: 'static> {
    /// What it is called, and the out parameter, too.
    pub(crate) name: &'static str,
    pub(crate) registry: &'static Registry<Arc<T>>,
    pub(crate) parse: fn(&[u8]) -> Result<T, CalibrationError>,
    /// Digest of the model that one is of.
    pub(crate) model: fn(&T) -> [u8; 32],
}

impl<T> Kind<T> {
    /// A failure, by the name that this has in C.
    pub(crate) fn refused(&self, error: &CalibrationError) -> Failure {
        let text = error.to_string();
        let why = text.split_once(": ").map_or(&text[..], |(_, why)| why);
        Failure::new(status::of_calibration(error), format!("{}: {why}", self.name))
    }
}

/// A larger file is none: 4096 layers of 1024 heads do not come near.
const MOST_BYTES: u64 = 1 << 32;

pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |why: String| Failure::new(CERTKV_FILE, format!("path {}: {why}", path.display()));
    let refused = |e: std::io::Error| failed(e.to_string());
    let file = File::open(path).map_err(refused)?;
    let about = file.metadata().map_err(refused)?;
    if !about.is_file() || about.len() > MOST_BYTES {
        return Err(failed(format!("not a file of at most {MOST_BYTES} bytes")));
    }
    let mut bytes = Vec::new();
    // A file that grows meanwhile is cut, and then has a wrong length.
    file.take(MOST_BYTES).read_to_end(&mut bytes).map_err(refused)?;
    Ok(bytes)
}

/// Gives out what `bytes` holds, if it is of the model that the caller has.
///
/// # Safety
/// `model` is NULL or has 32 bytes, and `out` is NULL or a variable that may be written.
pub(crate) unsafe fn give<T, H, B: AsRef<[u8]>>(
    kind: &Kind<T>,
    model: *const u8,
    out: *mut *mut H,
    bytes: impl FnOnce() -> Result<B, Failure>,
) -> Result<(), Failure> {
    argument::aligned(out, kind.name)?;
    // SAFETY: not NULL and aligned; the caller gives a variable of this type.
    unsafe { out.write(ptr::null_mut()) };
    // SAFETY: by the caller's promise.
    let model = if model.is_null() { None } else { Some(unsafe { argument::key(model, "model")? }) };
    let read = (kind.parse)(bytes()?.as_ref()).map_err(|e| kind.refused(&e))?;
    if model.is_some_and(|model| (kind.model)(&read) != model) {
        return Err(kind.refused(&CalibrationError::OtherModel));
    }
    let handle = kind.registry.insert(Arc::new(Arc::new(read)));
    // SAFETY: as above.
    unsafe { out.write(handle) };
    Ok(())
}
