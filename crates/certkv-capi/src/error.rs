//! The latest error of each thread.
use crate::argument;
use crate::guard::{Failure, guard_quiet};
use crate::status::certkv_status;
use core::cell::RefCell;
use core::ffi::{CStr, c_char};
use core::mem::offset_of;
use std::ffi::CString;

/// What went wrong in the calling thread's latest failed call.
#[repr(C)]
#[derive(Debug)]
pub struct certkv_error_info {
    /// sizeof(certkv_error_info), set by the caller; nothing is written beyond it.
    pub struct_size: u32,
    /// Status of that call; CERTKV_OK if none failed yet.
    pub status: certkv_status,
    /// CUresult behind it; 0 if no CUDA call was.
    pub cuda_result: i32,
    /// 0.
    pub reserved: u32,
    /// Text in English, never NULL. Borrowed: valid until the thread's next call into certkv.
    pub message: *const c_char,
}

#[derive(Debug)]
struct Latest {
    status: certkv_status,
    message: Option<CString>,
    cuda_result: i32,
}

thread_local! {
    static LATEST: RefCell<Latest> = const { RefCell::new(Latest { status: certkv_status::CERTKV_OK, message: None, cuda_result: 0 }) };
}

/// Keeps `failure` for [`certkv_last_error`].
pub(crate) fn remember(failure: Failure) -> certkv_status {
    let (status, cuda_result) = (failure.status, failure.cuda_result);
    let mut text = failure.message.into_bytes();
    text.retain(|byte| *byte != 0);
    // A thread that is ending has no place for it any more.
    let _ = LATEST.try_with(|latest| {
        if let Ok(mut latest) = latest.try_borrow_mut() {
            *latest = Latest { status, message: CString::new(text).ok(), cuda_result };
        }
    });
    status
}

/// Runs `work`, after which the thread's latest failure is what it was.
pub(crate) fn kept(work: impl FnOnce()) {
    let none = || Latest { status: certkv_status::CERTKV_OK, message: None, cuda_result: 0 };
    let before = LATEST.try_with(|latest| latest.replace(none()));
    work();
    if let Ok(before) = before {
        let _ = LATEST.try_with(|latest| latest.replace(before));
    }
}

/// Fills `info` with the calling thread's latest failure. A call that succeeds, and this function, leave it as it is.
/// `info->struct_size` must be set.
///
/// Threads: any, at any time; each thread sees its own errors.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE; `info` is unchanged then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_last_error(info: *mut certkv_error_info) -> certkv_status {
    guard_quiet(|| {
        // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes.
        let size = unsafe { argument::struct_size(info, "info", offset_of!(certkv_error_info, cuda_result))? };
        let (status, message, cuda_result) = LATEST
            .try_with(|latest| {
                let latest = latest.borrow();
                // The text lives until the next failure replaces it.
                (latest.status, latest.message.as_deref().unwrap_or(c"").as_ptr(), latest.cuda_result)
            })
            .unwrap_or((certkv_status::CERTKV_OK, CStr::as_ptr(c""), 0));
        let filled = certkv_error_info { struct_size: size as u32, status, cuda_result, reserved: 0, message };
        // SAFETY: as above; `size` is at most the size of `filled`.
        unsafe { argument::write_prefix(info, &filled, size) };
        Ok(())
    })
}
