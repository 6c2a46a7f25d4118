//! The calling thread's current context, looked at from outside of the library.
use cudarc::driver::sys::{self, CUcontext, CUresult, CUstream};
use std::cell::RefCell;
use std::ptr;

thread_local! {
    static CHANGES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn current() -> CUcontext {
    let mut now = ptr::null_mut();
    // SAFETY: the driver is loaded and initialised; points to a handle.
    let code = unsafe { sys::cuCtxGetCurrent(&raw mut now) };
    assert_eq!(code, CUresult::CUDA_SUCCESS);
    now
}

/// Runs a call and notes it if the current context is another afterwards.
pub(crate) fn watch<T>(what: &str, call: impl FnOnce() -> T) -> T {
    let before = current();
    let result = call();
    if current() != before {
        CHANGES.with_borrow_mut(|c| c.push(what.to_owned()));
    }
    result
}

/// What [`watch`] noted, forgotten afterwards.
pub(crate) fn take_changes() -> String {
    CHANGES.with_borrow_mut(|c| std::mem::take(c).join("; "))
}

/// A context of the same GPU that is not its primary one, with a stream.
pub(crate) struct Foreign {
    context: CUcontext,
    /// A stream of that context.
    pub(crate) stream: CUstream,
}

impl Foreign {
    /// Makes it and leaves no context current.
    pub(crate) fn new(ordinal: u32) -> Self {
        let (mut context, mut stream) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the driver is initialised and has the device; both point to handles.
        let codes = unsafe {
            [
                sys::cuCtxCreate_v4(&raw mut context, ptr::null_mut(), 0, ordinal as i32),
                sys::cuStreamCreate(&raw mut stream, 1),
                sys::cuCtxSetCurrent(ptr::null_mut()),
            ]
        };
        assert_eq!(codes, [CUresult::CUDA_SUCCESS; 3]);
        Self { context, stream }
    }

    /// Makes it current in this thread, or no context.
    pub(crate) fn make_current(&self, yes: bool) {
        // SAFETY: a live context, or none.
        let code = unsafe { sys::cuCtxSetCurrent(if yes { self.context } else { ptr::null_mut() }) };
        assert_eq!(code, CUresult::CUDA_SUCCESS);
    }
}
