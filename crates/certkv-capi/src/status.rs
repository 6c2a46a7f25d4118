//! What every fallible call returns, and how the engine's errors map onto it.
use crate::guard::guard_value;
use certkv::calibration::CalibrationError;
use certkv::gpu::CudaError;
use certkv::store::StoreError;
use certkv::{Error, FetchCause, SaveError};
use certkv_device::DeviceError;
use certkv_page::{PageError, TableError};
use core::ffi::c_char;

/// Result of a call. 0 is success; errors are negative, one range per group: -1 arguments, -100 state, -200 memory,
/// -300 device, -400 panics, -500 files, -600 stores. New values may be added to a group.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum certkv_status {
    /// Success.
    CERTKV_OK = 0,

    /// A pointer that must not be NULL was.
    CERTKV_NULL_POINTER = -1,
    /// A pointer is not aligned for what it points to.
    CERTKV_MISALIGNED = -2,
    /// `struct_size` is impossible, or a newer caller set fields that this library does not know.
    CERTKV_STRUCT_SIZE = -3,
    /// A reserved field is not 0.
    CERTKV_RESERVED = -4,
    /// A value is out of its range; the message names it.
    CERTKV_INVALID_ARGUMENT = -5,
    /// A count does not fit the geometry or the step.
    CERTKV_SHAPE = -6,
    /// A layer outside the geometry.
    CERTKV_LAYER = -7,
    /// NaN or an infinity in keys, values or queries.
    CERTKV_NOT_FINITE = -8,
    /// A finite value that the 16-bit type of the cache cannot hold.
    CERTKV_OVERFLOW = -9,
    /// A format string that is not understood or does not fit the geometry.
    CERTKV_FORMAT = -10,
    /// A policy parameter out of range.
    CERTKV_POLICY = -11,
    /// Not a live handle of this kind: never given out, or destroyed.
    CERTKV_INVALID_HANDLE = -12,
    /// Not a live sequence of this cache: never given out, or released.
    CERTKV_UNKNOWN_SEQUENCE = -13,
    /// Understood, but not offered by this version.
    CERTKV_UNSUPPORTED = -14,
    /// Two buffers overlap, one of which is written.
    CERTKV_OVERLAP = -15,
    /// A length beyond the end of the sequence, or beyond what the cache can hold, or tokens that a layer's window no longer has, or more of
    /// them in one step than its chunk.
    CERTKV_LENGTH = -16,
    /// A block that cannot have a level: there is no such block or level, or no codes of it at that level.
    CERTKV_LEVEL = -17,

    /// The sequence is part of a step that is not over, or named twice in one step.
    CERTKV_BUSY_SEQUENCE = -100,
    /// Another thread is inside a call on the same step.
    CERTKV_BUSY_STEP = -101,
    /// Calls out of order: of a step, or to change the log from within it.
    CERTKV_ORDER = -102,
    /// Attention over no token.
    CERTKV_NO_VISIBLE_TOKEN = -103,
    /// An output that has no finite bound; it was not written.
    CERTKV_UNCERTIFIABLE = -104,
    /// The step's certificates are not in the ring yet.
    CERTKV_NOT_PUBLISHED = -105,
    /// A later step has taken their place in the ring.
    CERTKV_OVERWRITTEN = -106,
    /// The sequence is swapped out: certkv_sequence_swap_in comes first.
    CERTKV_SWAPPED_OUT = -107,
    /// The sequence is not swapped out.
    CERTKV_NOT_SWAPPED_OUT = -108,

    /// The system has no memory.
    CERTKV_OUT_OF_MEMORY = -200,
    /// The cache's pages of one class are used up.
    CERTKV_CAPACITY = -201,
    /// The cache's sequences are used up.
    CERTKV_TOO_MANY_SEQUENCES = -202,
    /// The capacity asked for does not fit a budget.
    CERTKV_BUDGET = -203,

    /// The device refused an operation.
    CERTKV_DEVICE = -300,
    /// Codes of a block are not those that were written: memory was damaged.
    CERTKV_DAMAGED = -301,

    /// A defect of the library was caught. The object is poisoned.
    CERTKV_PANIC = -400,
    /// A defect was caught in an earlier call on this object. It can only be destroyed.
    CERTKV_POISONED = -401,
    /// The library contradicted itself without panicking; please report the message.
    CERTKV_INTERNAL = -402,

    /// A file could not be written or read.
    CERTKV_FILE = -500,
    /// A file is no saved sequence, calibration or scales, or one of another version, model, geometry or format.
    CERTKV_FILE_REFUSED = -501,
    /// A file ends too early, is not what was written, or was written with another key.
    CERTKV_FILE_DAMAGED = -502,

    /// A store failed, or is gone; what is in it may be had later.
    CERTKV_STORE_FAILED = -600,
    /// A store did not answer in time.
    CERTKV_STORE_LATE = -601,
    /// A store has no room.
    CERTKV_STORE_FULL = -602,
    /// A store lost a record that was put there.
    CERTKV_STORE_NOT_FOUND = -603,
    /// What a store gave back is not what was put there.
    CERTKV_STORE_DAMAGED = -604,
}
use certkv_status::*;

impl certkv_status {
    /// All values, for the name table.
    const ALL: [Self; 44] = [
        CERTKV_OK,
        CERTKV_NULL_POINTER,
        CERTKV_MISALIGNED,
        CERTKV_STRUCT_SIZE,
        CERTKV_RESERVED,
        CERTKV_INVALID_ARGUMENT,
        CERTKV_SHAPE,
        CERTKV_LAYER,
        CERTKV_NOT_FINITE,
        CERTKV_OVERFLOW,
        CERTKV_FORMAT,
        CERTKV_POLICY,
        CERTKV_INVALID_HANDLE,
        CERTKV_UNKNOWN_SEQUENCE,
        CERTKV_UNSUPPORTED,
        CERTKV_OVERLAP,
        CERTKV_LENGTH,
        CERTKV_LEVEL,
        CERTKV_BUSY_SEQUENCE,
        CERTKV_BUSY_STEP,
        CERTKV_ORDER,
        CERTKV_NO_VISIBLE_TOKEN,
        CERTKV_UNCERTIFIABLE,
        CERTKV_NOT_PUBLISHED,
        CERTKV_OVERWRITTEN,
        CERTKV_SWAPPED_OUT,
        CERTKV_NOT_SWAPPED_OUT,
        CERTKV_OUT_OF_MEMORY,
        CERTKV_CAPACITY,
        CERTKV_TOO_MANY_SEQUENCES,
        CERTKV_BUDGET,
        CERTKV_DEVICE,
        CERTKV_DAMAGED,
        CERTKV_PANIC,
        CERTKV_POISONED,
        CERTKV_INTERNAL,
        CERTKV_FILE,
        CERTKV_FILE_REFUSED,
        CERTKV_FILE_DAMAGED,
        CERTKV_STORE_FAILED,
        CERTKV_STORE_LATE,
        CERTKV_STORE_FULL,
        CERTKV_STORE_NOT_FOUND,
        CERTKV_STORE_DAMAGED,
    ];

    const fn name(self) -> &'static core::ffi::CStr {
        match self {
            CERTKV_OK => c"CERTKV_OK",
            CERTKV_NULL_POINTER => c"CERTKV_NULL_POINTER",
            CERTKV_MISALIGNED => c"CERTKV_MISALIGNED",
            CERTKV_STRUCT_SIZE => c"CERTKV_STRUCT_SIZE",
            CERTKV_RESERVED => c"CERTKV_RESERVED",
            CERTKV_INVALID_ARGUMENT => c"CERTKV_INVALID_ARGUMENT",
            CERTKV_SHAPE => c"CERTKV_SHAPE",
            CERTKV_LAYER => c"CERTKV_LAYER",
            CERTKV_NOT_FINITE => c"CERTKV_NOT_FINITE",
            CERTKV_OVERFLOW => c"CERTKV_OVERFLOW",
            CERTKV_FORMAT => c"CERTKV_FORMAT",
            CERTKV_POLICY => c"CERTKV_POLICY",
            CERTKV_INVALID_HANDLE => c"CERTKV_INVALID_HANDLE",
            CERTKV_UNKNOWN_SEQUENCE => c"CERTKV_UNKNOWN_SEQUENCE",
            CERTKV_UNSUPPORTED => c"CERTKV_UNSUPPORTED",
            CERTKV_OVERLAP => c"CERTKV_OVERLAP",
            CERTKV_LENGTH => c"CERTKV_LENGTH",
            CERTKV_LEVEL => c"CERTKV_LEVEL",
            CERTKV_BUSY_SEQUENCE => c"CERTKV_BUSY_SEQUENCE",
            CERTKV_BUSY_STEP => c"CERTKV_BUSY_STEP",
            CERTKV_ORDER => c"CERTKV_ORDER",
            CERTKV_NO_VISIBLE_TOKEN => c"CERTKV_NO_VISIBLE_TOKEN",
            CERTKV_UNCERTIFIABLE => c"CERTKV_UNCERTIFIABLE",
            CERTKV_NOT_PUBLISHED => c"CERTKV_NOT_PUBLISHED",
            CERTKV_OVERWRITTEN => c"CERTKV_OVERWRITTEN",
            CERTKV_SWAPPED_OUT => c"CERTKV_SWAPPED_OUT",
            CERTKV_NOT_SWAPPED_OUT => c"CERTKV_NOT_SWAPPED_OUT",
            CERTKV_OUT_OF_MEMORY => c"CERTKV_OUT_OF_MEMORY",
            CERTKV_CAPACITY => c"CERTKV_CAPACITY",
            CERTKV_TOO_MANY_SEQUENCES => c"CERTKV_TOO_MANY_SEQUENCES",
            CERTKV_BUDGET => c"CERTKV_BUDGET",
            CERTKV_DEVICE => c"CERTKV_DEVICE",
            CERTKV_DAMAGED => c"CERTKV_DAMAGED",
            CERTKV_PANIC => c"CERTKV_PANIC",
            CERTKV_POISONED => c"CERTKV_POISONED",
            CERTKV_INTERNAL => c"CERTKV_INTERNAL",
            CERTKV_FILE => c"CERTKV_FILE",
            CERTKV_FILE_REFUSED => c"CERTKV_FILE_REFUSED",
            CERTKV_FILE_DAMAGED => c"CERTKV_FILE_DAMAGED",
            CERTKV_STORE_FAILED => c"CERTKV_STORE_FAILED",
            CERTKV_STORE_LATE => c"CERTKV_STORE_LATE",
            CERTKV_STORE_FULL => c"CERTKV_STORE_FULL",
            CERTKV_STORE_NOT_FOUND => c"CERTKV_STORE_NOT_FOUND",
            CERTKV_STORE_DAMAGED => c"CERTKV_STORE_DAMAGED",
        }
    }
}

/// Name of a status, as `"CERTKV_OK"`; `"CERTKV_?"` for a number that is none. Static memory: never freed.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: safe.
/// Errors: none.
#[unsafe(no_mangle)]
pub extern "C" fn certkv_status_name(status: i32) -> *const c_char {
    guard_value(c"CERTKV_?".as_ptr(), || {
        certkv_status::ALL.iter().find(|s| **s as i32 == status).map_or(c"CERTKV_?", |s| s.name()).as_ptr()
    })
}

/// The status of an error of the engine.
pub(crate) fn of(error: &Error) -> certkv_status {
    match error {
        Error::Geometry(_) | Error::Config { .. } => CERTKV_INVALID_ARGUMENT,
        Error::Calibration(error) => of_calibration(error),
        Error::Format(_) => CERTKV_FORMAT,
        Error::Budget(_) => CERTKV_BUDGET,
        Error::UnknownSequence(_) => CERTKV_UNKNOWN_SEQUENCE,
        Error::BusySequence(_) => CERTKV_BUSY_SEQUENCE,
        Error::TooManySequences { .. } => CERTKV_TOO_MANY_SEQUENCES,
        Error::CapacityExhausted { .. } => CERTKV_CAPACITY,
        Error::Length { .. }
        | Error::TooLong { .. }
        | Error::WindowPassed { .. }
        | Error::Gone { .. }
        | Error::LongChunk { .. } => CERTKV_LENGTH,
        Error::Shortened { cause, .. } => of(cause),
        Error::SwappedOut => CERTKV_SWAPPED_OUT,
        Error::NotSwappedOut => CERTKV_NOT_SWAPPED_OUT,
        Error::Damaged { .. } => CERTKV_DAMAGED,
        Error::Save(SaveError::Io { .. }) => CERTKV_FILE,
        Error::Save(SaveError::Truncated { .. } | SaveError::Damaged { .. } | SaveError::Malformed { .. }) => {
            CERTKV_FILE_DAMAGED
        }
        Error::Save(_) => CERTKV_FILE_REFUSED,
        Error::Fetch(error) => of_fetch(&error.cause),
        Error::Layer { .. } => CERTKV_LAYER,
        Error::Shape { .. } => CERTKV_SHAPE,
        Error::NonFinite { .. } => CERTKV_NOT_FINITE,
        Error::Overflow { .. } => CERTKV_OVERFLOW,
        Error::Order { .. } => CERTKV_ORDER,
        Error::NoVisibleToken => CERTKV_NO_VISIBLE_TOKEN,
        Error::Policy(_) => CERTKV_POLICY,
        Error::Level { .. } => CERTKV_LEVEL,
        Error::Uncertifiable { .. } => CERTKV_UNCERTIFIABLE,
        Error::OutOfMemory { .. }
        | Error::Device(DeviceError::OutOfMemory { .. } | DeviceError::ArenaSize { .. })
        | Error::Page(PageError::OutOfMemory { .. })
        | Error::Table(TableError::OutOfMemory { .. })
        | Error::Gpu(CudaError::OutOfDeviceMemory { .. } | CudaError::OutOfPinnedMemory { .. }) => CERTKV_OUT_OF_MEMORY,
        Error::Gpu(CudaError::Misaligned { .. }) => CERTKV_MISALIGNED,
        Error::Gpu(CudaError::WrongMemorySpace { .. }) => CERTKV_INVALID_ARGUMENT,
        Error::Device(_) | Error::Gpu(_) | Error::Kernels(_) => CERTKV_DEVICE,
        // Codec, kernel, page, table and control errors have no cause in a caller's arguments: those were checked.
        _ => CERTKV_INTERNAL,
    }
}

/// The status of a calibration that was not read, or is not that of a cache.
pub(crate) fn of_calibration(error: &CalibrationError) -> certkv_status {
    use CalibrationError::{Checksum, Field, Magic, Number, OtherHeads, OtherModel, Trailing, Truncated, Version};
    match error {
        Magic | Version { .. } | OtherHeads { .. } | OtherModel => CERTKV_FILE_REFUSED,
        Truncated { .. } | Trailing { .. } | Checksum | Field { .. } | Number { .. } => CERTKV_FILE_DAMAGED,
        // Of making one.
        _ => CERTKV_INTERNAL,
    }
}

/// The status of originals that could not be read.
fn of_fetch(cause: &FetchCause) -> certkv_status {
    match cause {
        FetchCause::Store(error) => of_store(error),
        FetchCause::Late { .. } => CERTKV_STORE_LATE,
        FetchCause::NoRoom => CERTKV_CAPACITY,
        FetchCause::Device(_) => CERTKV_DEVICE,
        _ => CERTKV_INTERNAL,
    }
}

/// The status of a record that was not put, or not had.
pub(crate) fn of_store(error: &StoreError) -> certkv_status {
    match error {
        StoreError::NotFound { .. } => CERTKV_STORE_NOT_FOUND,
        StoreError::Full { .. } => CERTKV_STORE_FULL,
        // A record longer than any that was put.
        StoreError::Corrupt { .. } | StoreError::TooLarge { .. } => CERTKV_STORE_DAMAGED,
        _ => CERTKV_STORE_FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::CStr;

    #[test]
    fn memory_is_told_apart_from_the_device() {
        let memory = DeviceError::OutOfMemory { name: "host", bytes: 1 };
        assert_eq!(of(&Error::Device(memory)), CERTKV_OUT_OF_MEMORY);
        assert_eq!(of(&Error::Table(TableError::OutOfMemory { what: "a table" })), CERTKV_OUT_OF_MEMORY);
        let cut = Error::Shortened {
            len: 32,
            cause: Box::new(Error::Device(DeviceError::OutOfMemory { name: "host", bytes: 1 })),
        };
        assert_eq!(of(&cut), CERTKV_OUT_OF_MEMORY);
        let gpu = [
            (CudaError::OutOfPinnedMemory { bytes: 1, call: "mmap", code: 12 }, CERTKV_OUT_OF_MEMORY),
            (CudaError::Misaligned { argument: "keys", address: 8, needs: 16 }, CERTKV_MISALIGNED),
            (CudaError::WrongMemorySpace { argument: "keys", found: "on the host" }, CERTKV_INVALID_ARGUMENT),
            (CudaError::NoDriver, CERTKV_DEVICE),
        ];
        for (error, status) in gpu {
            assert_eq!(of(&Error::Gpu(error)), status);
        }
    }

    #[test]
    fn swaps_and_files_have_statuses_of_their_own() {
        use certkv::seal::SealError;
        let damaged = Error::Damaged { layer: 1, block: 2, why: SealError::Another };
        for (error, status) in [
            (Error::SwappedOut, CERTKV_SWAPPED_OUT),
            (Error::NotSwappedOut, CERTKV_NOT_SWAPPED_OUT),
            (damaged, CERTKV_DAMAGED),
        ] {
            assert_eq!(of(&error), status);
        }
        let text = || "x".to_owned();
        for (error, status) in [
            (SaveError::Io { kind: std::io::ErrorKind::NotFound, text: text() }, CERTKV_FILE),
            (SaveError::NotASequence, CERTKV_FILE_REFUSED),
            (SaveError::Version { found: 2, known: 1 }, CERTKV_FILE_REFUSED),
            (SaveError::Differs { what: text(), file: text(), here: text() }, CERTKV_FILE_REFUSED),
            (SaveError::Truncated { section: "state" }, CERTKV_FILE_DAMAGED),
            (SaveError::Damaged { section: "state" }, CERTKV_FILE_DAMAGED),
            (SaveError::Malformed { section: "state", why: "x" }, CERTKV_FILE_DAMAGED),
        ] {
            assert_eq!(of(&Error::Save(error)), status);
        }
    }

    #[test]
    fn stores_are_told_apart_from_what_they_hold() {
        use certkv::seal::SealError as Changed;
        use certkv::store::{SealError, StoreKey};
        use certkv::{FetchError, SaveError};
        let key = StoreKey([7; 32]);
        let store = |error| FetchCause::Store(error);
        let causes = [
            (store(StoreError::NotFound { key }), CERTKV_STORE_NOT_FOUND),
            (store(StoreError::Full { key, bytes: 1, free: None }), CERTKV_STORE_FULL),
            (store(StoreError::Corrupt { key, reason: SealError::NotAPage }), CERTKV_STORE_DAMAGED),
            (store(StoreError::TooLarge { key, bytes: 2, limit: 1 }), CERTKV_STORE_DAMAGED),
            (store(StoreError::unavailable(key, "gone")), CERTKV_STORE_FAILED),
            (store(StoreError::Panicked { key }), CERTKV_STORE_FAILED),
            (store(StoreError::Closed { key }), CERTKV_STORE_FAILED),
            (FetchCause::Late { after: core::time::Duration::from_secs(1) }, CERTKV_STORE_LATE),
            (FetchCause::NoRoom, CERTKV_CAPACITY),
            (FetchCause::Device(DeviceError::OutOfMemory { name: "host", bytes: 1 }), CERTKV_DEVICE),
        ];
        for (cause, status) in causes {
            assert_eq!(of(&Error::Fetch(FetchError { sequence: None, layer: 0, block: 0, cause })), status);
        }
        // Neither is damage of a page in memory, nor of a file.
        assert_eq!(of(&Error::Damaged { layer: 0, block: 0, why: Changed::Another }), CERTKV_DAMAGED);
        assert_eq!(of(&Error::Save(SaveError::Damaged { section: "state" })), CERTKV_FILE_DAMAGED);
    }

    #[test]
    fn every_status_has_its_own_number_and_name() {
        for (at, status) in certkv_status::ALL.iter().enumerate() {
            assert_eq!(status.name().to_str().unwrap(), format!("{status:?}"));
            assert!(certkv_status::ALL[..at].iter().all(|s| *s as i32 != *status as i32));
            // SAFETY: the function returns static strings.
            let name = unsafe { CStr::from_ptr(certkv_status_name(*status as i32)) };
            assert_eq!(name, status.name());
        }
        for number in [1, -18, i32::MIN, i32::MAX] {
            // SAFETY: as above.
            assert_eq!(unsafe { CStr::from_ptr(certkv_status_name(number)) }, c"CERTKV_?");
        }
    }
}
