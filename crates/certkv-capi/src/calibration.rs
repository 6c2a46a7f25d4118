//! The calibration handle: centres and balance scales of a model's keys, or directions of spherical ones, for formats that code keys by them.
use crate::argument;
use crate::guard::{Failure, guard};
use crate::handle::Registry;
use crate::sealed::{self, Kind};
use crate::status::certkv_status;
use certkv::calibration::{Calibration, CalibrationError};
use certkv::spherical::{self, Codebooks};
use certkv::{Pairing, Tier};
use core::ffi::{c_char, c_void};
use core::mem::offset_of;
use std::sync::Arc;

/// What `certkv calibrate` found of a model's keys: formats such as ctq4 code keys by it, and formats such as s1 by what `certkv calibrate
/// --spherical` found (`config->calibration`). Opaque, and never changed: any number of caches may be made with one.
#[derive(Debug)]
pub struct certkv_calibration {
    _opaque: [u8; 0],
}

/// What a calibration says of itself.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct certkv_calibration_info {
    /// sizeof(certkv_calibration_info), set by the caller; nothing is written beyond it.
    pub struct_size: u32,
    /// Layers of the model that it is of; with the next three what the geometry of a cache has to be.
    pub layers: u32,
    /// Query heads of a layer; 0 for directions, which any number of them meets.
    pub q_heads: u32,
    /// Key/value heads of a layer.
    pub kv_heads: u32,
    /// Channels of a head.
    pub head_dim: u32,
    /// The first so many of them are turned by positions; 0 for directions, as the next three.
    pub rotary: u32,
    /// Channels that are turned together: 0 for halves of these (i and i + rotary / 2), 1 for neighbours (2i and 2i + 1).
    pub interleaved: u32,
    /// 1 if keys are coded around their mean.
    pub centred: u32,
    /// 1 if they are coded in scales that balance them with the queries.
    pub balanced: u32,
    /// 0; for directions 1, 2 or 3: tier b1, b2 or b3, which is that of formats s1, s2 or s3.
    pub tier: u32,
    /// Tokens of the text that was run.
    pub tokens: u64,
    /// Digest of the model: its configuration and weights.
    pub model: [u8; 32],
    /// Digest of the text.
    pub text: [u8; 32],
    /// Digest (BLAKE3) of the file: saved sequences and cached prefixes of its caches depend on it.
    pub digest: [u8; 32],
}

/// What a file holds.
#[derive(Debug)]
pub(crate) enum Found {
    Schemes(Arc<Calibration>),
    Directions(Arc<Codebooks>),
}

impl Found {
    fn from_bytes(bytes: &[u8]) -> Result<Self, CalibrationError> {
        if bytes.starts_with(&spherical::MAGIC) {
            return Ok(Self::Directions(Arc::new(Codebooks::from_bytes(bytes)?)));
        }
        Ok(Self::Schemes(Arc::new(Calibration::from_bytes(bytes)?)))
    }
}

static CALIBRATIONS: Registry<Arc<Found>> = Registry::new(0xa7, "calibration");

/// What a live handle stands for.
pub(crate) fn of(handle: *const certkv_calibration) -> Result<Arc<Found>, Failure> {
    Ok(Arc::clone(&*CALIBRATIONS.get(handle)?))
}

/// Gives out what `bytes` holds, if it is of the model that the caller has.
///
/// # Safety
/// As [`sealed::give`].
unsafe fn give<B: AsRef<[u8]>>(
    model: *const u8,
    calibration: *mut *mut certkv_calibration,
    bytes: impl FnOnce() -> Result<B, Failure>,
) -> Result<(), Failure> {
    let kind = Kind {
        name: "calibration",
        registry: &CALIBRATIONS,
        parse: Found::from_bytes,
        model: |found| match found {
            Found::Schemes(schemes) => schemes.source().model,
            Found::Directions(books) => books.source().model,
        },
    };
    // SAFETY: by the caller's promise.
    unsafe { sealed::give(&kind, model, calibration, bytes) }
}

/// Reads a calibration from a file of `certkv calibrate`, with `--spherical` or without. `path` is UTF-8, ends with a 0 byte and has at most 4095 others. `model`: 32 bytes, the
/// digest of the model whose keys these will be, which the file has to name; NULL for that of any model. Both are borrowed during the call.
/// `*calibration` is filled; the caller ends it with certkv_calibration_destroy.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER, MISALIGNED, INVALID_ARGUMENT (`path`), FILE (it could not be read), FILE_REFUSED (it is no calibration, or one of another
/// version or model), FILE_DAMAGED (it is cut, longer, or not what was written). `*calibration` is NULL if it can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_calibration_open(
    path: *const c_char,
    model: *const u8,
    calibration: *mut *mut certkv_calibration,
) -> certkv_status {
    guard(|| {
        // SAFETY: the caller gives NULL or a C string, NULL or 32 bytes, and NULL or a variable.
        unsafe { give(model, calibration, || sealed::read_file(&argument::path(path)?)) }
    })
}

/// As certkv_calibration_open from the `n_bytes` bytes of such a file, borrowed during the call.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER, MISALIGNED, INVALID_ARGUMENT (`bytes` beyond memory), FILE_REFUSED (no calibration, or one of another version or model),
/// FILE_DAMAGED (cut, longer, or not what was written). `*calibration` is NULL if it can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_calibration_read(
    bytes: *const c_void,
    n_bytes: u64,
    model: *const u8,
    calibration: *mut *mut certkv_calibration,
) -> certkv_status {
    guard(|| {
        let bytes = || {
            argument::not_null(bytes, "bytes")?;
            // SAFETY: the caller gives `n_bytes` bytes.
            unsafe { argument::slice(bytes.cast::<u8>(), n_bytes, "bytes") }
        };
        // SAFETY: the caller gives NULL or 32 bytes, and NULL or a variable.
        unsafe { give(model, calibration, bytes) }
    })
}

/// Fills `*info`, whose `struct_size` must be set, with what a calibration says of itself.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, INVALID_HANDLE; `*info` is unchanged then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_calibration_describe(
    calibration: *const certkv_calibration,
    info: *mut certkv_calibration_info,
) -> certkv_status {
    guard(|| {
        // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes.
        let size = unsafe { argument::struct_size(info, "info", offset_of!(certkv_calibration_info, rotary))? };
        let calibration = of(calibration)?;
        let small =
            |n: usize| u32::try_from(n).map_err(|_| argument::invalid(format!("calibration: {n} is too large")));
        let (shape, source, digest, rest) = match &*calibration {
            Found::Schemes(schemes) => {
                let (heads, rule) = (schemes.heads(), schemes.rule());
                let rest = certkv_calibration_info {
                    q_heads: small(heads.q_heads)?,
                    rotary: small(heads.rotary)?,
                    interleaved: u32::from(heads.pairing == Pairing::Interleaved),
                    centred: u32::from(rule.centred),
                    balanced: u32::from(rule.balanced),
                    ..Default::default()
                };
                let shape = (heads.layers, heads.kv_heads, heads.head_dim);
                (shape, schemes.source(), certkv::calibration_digest(schemes), rest)
            }
            Found::Directions(books) => {
                let heads = books.heads();
                let tier = Tier::ALL.iter().position(|tier| *tier == books.tier()).map_or(0, |at| at as u32 + 1);
                let shape = (heads.layers, heads.kv_heads, heads.head_dim);
                let rest = certkv_calibration_info { tier, ..Default::default() };
                (shape, books.source(), certkv::codebooks_digest(books), rest)
            }
        };
        let filled = certkv_calibration_info {
            struct_size: size as u32,
            layers: small(shape.0)?,
            kv_heads: small(shape.1)?,
            head_dim: small(shape.2)?,
            tokens: source.tokens,
            model: source.model,
            text: source.text,
            digest,
            ..rest
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
pub unsafe extern "C" fn certkv_calibration_destroy(calibration: *mut certkv_calibration) -> certkv_status {
    guard(|| if calibration.is_null() { Ok(()) } else { CALIBRATIONS.remove(calibration).map(drop) })
}
