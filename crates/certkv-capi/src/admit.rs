//! Whether a request would find its pages.
use crate::argument;
use crate::cache::{self, certkv_cache};
use crate::guard::guard;
use crate::sequence::{CERTKV_NO_SEQUENCE, certkv_sequence, id};
use crate::status::certkv_status;
use certkv::Admission;
use core::mem::offset_of;

/// Whether pages suffice.
pub type certkv_verdict = i32;
/// Free pages are enough.
pub const CERTKV_FITS: certkv_verdict = 0;
/// They are, with pages that are given back once work under way has passed them.
pub const CERTKV_FITS_SOON: certkv_verdict = 1;
/// They are, once cached prefixes that nobody uses have gone; a step evicts them by itself.
pub const CERTKV_FITS_AFTER_EVICTION: certkv_verdict = 2;
/// They are not: sequences have to end, to be cut or to be swapped out.
pub const CERTKV_LACKS: certkv_verdict = 3;

/// What a request would find.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct certkv_admission {
    /// sizeof(certkv_admission), set by the caller; nothing is written beyond it.
    pub struct_size: u32,
    /// One of the CERTKV_FITS values, or CERTKV_LACKS.
    pub verdict: certkv_verdict,
    /// Of CERTKV_FITS_AFTER_EVICTION: units of cached prefixes to evict; 0 where pages of windows or of levels alone are short, which the step takes.
    /// Else 0.
    pub units: u64,
    /// Of CERTKV_LACKS: pages that are short, of the class that is short first. Else 0.
    pub pages: u64,
}

impl certkv_admission {
    fn of(found: Admission, struct_size: u32) -> Self {
        let (verdict, units, pages) = match found {
            Admission::Fits => (CERTKV_FITS, 0, 0),
            Admission::FitsSoon => (CERTKV_FITS_SOON, 0, 0),
            Admission::FitsAfterEviction { units } => (CERTKV_FITS_AFTER_EVICTION, units, 0),
            Admission::Lacks { pages, .. } => (CERTKV_LACKS, 0, pages),
        };
        Self { struct_size, verdict, units: units as u64, pages: pages as u64 }
    }
}

/// Whether `tokens` more tokens of `sequence`, or of a new sequence where it is CERTKV_NO_SEQUENCE, would find their pages now; of a
/// sequence that is swapped out, with those of its return. Nothing is reserved: the answer is old as soon as another thread takes pages.
/// `admission`, whose `struct_size` must be set, is filled.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: not allowed.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE, LENGTH (no cache of this configuration
/// would have room), OUT_OF_MEMORY, POISONED; on a GPU BUSY_STEP while a step is open. `admission` is unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_cache_admit(
    cache: *const certkv_cache,
    sequence: certkv_sequence,
    tokens: u64,
    admission: *mut certkv_admission,
) -> certkv_status {
    guard(|| {
        // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes.
        let size = unsafe { argument::struct_size(admission, "admission", offset_of!(certkv_admission, units))? };
        let tokens = usize::try_from(tokens).unwrap_or(usize::MAX);
        let sequence = (sequence != CERTKV_NO_SEQUENCE).then(|| id(sequence));
        let found = cache::with(cache, |held| {
            held.engine.on(|on| on.admit(sequence, tokens), |on| on.admit(sequence, tokens))
        })?;
        let filled = certkv_admission::of(found, size as u32);
        // SAFETY: the struct has `size` bytes, by the caller's promise, and so has `filled`.
        unsafe { argument::write_prefix(admission, &filled, size) };
        Ok(())
    })
}
