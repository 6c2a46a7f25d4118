//! The version that the caller runs against.
use crate::guard::guard_value;
use core::ffi::{CStr, c_char};

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"",
};

/// Decimal digits of `text`, evaluated when the crate is compiled.
const fn number(text: &str) -> u32 {
    let (bytes, mut at, mut value) = (text.as_bytes(), 0, 0);
    while at < bytes.len() {
        value = value * 10 + (bytes[at] - b'0') as u32;
        at += 1;
    }
    value
}

const NUMBER: u32 = number(env!("CARGO_PKG_VERSION_MAJOR")) * 1_000_000
    + number(env!("CARGO_PKG_VERSION_MINOR")) * 1_000
    + number(env!("CARGO_PKG_VERSION_PATCH"));

/// Version of the library that is running, as CERTKV_VERSION_STRING. Static memory: never freed.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: safe.
/// Errors: none.
#[unsafe(no_mangle)]
pub extern "C" fn certkv_version() -> *const c_char {
    guard_value(c"".as_ptr(), || VERSION.as_ptr())
}

/// Version of the library that is running, as CERTKV_VERSION_NUMBER: major * 1000000 + minor * 1000 + patch.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: safe.
/// Errors: none.
#[unsafe(no_mangle)]
pub extern "C" fn certkv_version_number() -> u32 {
    guard_value(0, || NUMBER)
}
