//! The handle of fixed scales: magnitudes of a model's keys and values, for formats with one scale per block.
use crate::argument;
use crate::guard::{Failure, guard};
use crate::handle::Registry;
use crate::sealed::{self, Kind};
use crate::status::certkv_status;
use certkv::Geometry;
use certkv::scales::{ScaleHeads, Scales};
use core::ffi::{c_char, c_void};
use core::mem::offset_of;
use std::sync::Arc;

/// What `certkv calibrate --scales` found: sides with one scale per block (p8, e4m3g64) take theirs from it (`config->scales`). Opaque, and never
/// changed: any number of caches may be made with one.
#[derive(Debug)]
pub struct certkv_scales {
    _opaque: [u8; 0],
}

/// What scales say of themselves.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct certkv_scales_info {
    /// sizeof(certkv_scales_info), set by the caller; nothing is written beyond it.
    pub struct_size: u32,
    /// Layers of the model that they are of; with the next two what the geometry of a cache has to be.
    pub layers: u32,
    /// Key/value heads of a layer.
    pub kv_heads: u32,
    /// Channels of a head.
    pub head_dim: u32,
    /// So many elements in a hundred are within them; 100 for all that were seen.
    pub percentile: f64,
    /// Tokens of the text that was run.
    pub tokens: u64,
    /// Digest of the model: its configuration and weights.
    pub model: [u8; 32],
    /// Digest of the text.
    pub text: [u8; 32],
}

static SCALES: Registry<Arc<Scales>> = Registry::new(0xa9, "scales");
const KIND: Kind<Scales> =
    Kind { name: "scales", registry: &SCALES, parse: Scales::from_bytes, model: |scales| scales.source().model };

/// What a configuration's handle stands for, if it is of this geometry.
pub(crate) fn of(handle: *const certkv_scales, geometry: &Geometry) -> Result<Arc<Scales>, Failure> {
    let scales = Arc::clone(&*SCALES.get(handle)?);
    let g = geometry;
    let wanted = ScaleHeads { layers: g.layers, kv_heads: g.kv_heads, head_dim: g.head_dim };
    let named = |failure: Failure| Failure { message: format!("config->{}", failure.message), ..failure };
    scales.heads().check_for(&wanted).map_err(|e| named(KIND.refused(&e)))?;
    Ok(scales)
}

/// Reads fixed scales from a file of `certkv calibrate --scales`. `path` is UTF-8, ends with a 0 byte and has at most 4095 others. `model`: 32 bytes,
/// the digest of the model whose keys and values these will be, which the file has to name; NULL for that of any model. Both are borrowed during the
/// call. `*scales` is filled; the caller ends it with certkv_scales_destroy.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER, MISALIGNED, INVALID_ARGUMENT (`path`), FILE (it could not be read), FILE_REFUSED (it holds no scales, or those of another
/// version or model), FILE_DAMAGED (it is cut, longer, or not what was written). `*scales` is NULL if it can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_scales_open(
    path: *const c_char,
    model: *const u8,
    scales: *mut *mut certkv_scales,
) -> certkv_status {
    guard(|| {
        // SAFETY: the caller gives NULL or a C string, NULL or 32 bytes, and NULL or a variable.
        unsafe { sealed::give(&KIND, model, scales, || sealed::read_file(&argument::path(path)?)) }
    })
}

/// As certkv_scales_open from the `n_bytes` bytes of such a file, borrowed during the call.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER, MISALIGNED, INVALID_ARGUMENT (`bytes` beyond memory), FILE_REFUSED (no scales, or those of another version or model),
/// FILE_DAMAGED (cut, longer, or not what was written). `*scales` is NULL if it can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_scales_read(
    bytes: *const c_void,
    n_bytes: u64,
    model: *const u8,
    scales: *mut *mut certkv_scales,
) -> certkv_status {
    guard(|| {
        let bytes = || {
            argument::not_null(bytes, "bytes")?;
            // SAFETY: the caller gives `n_bytes` bytes.
            unsafe { argument::slice(bytes.cast::<u8>(), n_bytes, "bytes") }
        };
        // SAFETY: the caller gives NULL or 32 bytes, and NULL or a variable.
        unsafe { sealed::give(&KIND, model, scales, bytes) }
    })
}

/// Fills `*info`, whose `struct_size` must be set, with what scales say of themselves.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, INVALID_HANDLE; `*info` is unchanged then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_scales_describe(
    scales: *const certkv_scales,
    info: *mut certkv_scales_info,
) -> certkv_status {
    guard(|| {
        // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes.
        let size = unsafe { argument::struct_size(info, "info", offset_of!(certkv_scales_info, percentile))? };
        let scales = SCALES.get(scales)?;
        let (heads, source) = (scales.heads(), scales.source());
        let filled = certkv_scales_info {
            struct_size: size as u32,
            // Heads that were checked are small.
            layers: heads.layers as u32,
            kv_heads: heads.kv_heads as u32,
            head_dim: heads.head_dim as u32,
            percentile: scales.percentile(),
            tokens: source.tokens,
            model: source.model,
            text: source.text,
        };
        // SAFETY: as above, and `filled` has no fewer bytes.
        unsafe { argument::write_prefix(info, &filled, size) };
        Ok(())
    })
}

/// Ends a handle. NULL is allowed. Caches that were made with it keep what they need.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: safe.
/// Errors: INVALID_HANDLE, for one that is destroyed already; nothing happened then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_scales_destroy(scales: *mut certkv_scales) -> certkv_status {
    guard(|| if scales.is_null() { Ok(()) } else { SCALES.remove(scales).map(drop) })
}
