//! The one wrapper around every export: a panic becomes a status, and nothing is printed.
use crate::error::remember;
use crate::log::{self, About};
use crate::numbers::Usual;
use crate::status::{self, certkv_status};
use certkv::gpu::CudaError;
use certkv_core::fail::InjectedFault;
use certkv_core::{fail_point, planted};
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicBool, Ordering};
use std::any::Any;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Once;

/// A status on its way to the caller, with its text.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: certkv_status,
    pub(crate) message: String,
    /// CUresult behind it, or 0.
    pub(crate) cuda_result: i32,
}

impl Failure {
    pub(crate) fn new(status: certkv_status, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), cuda_result: 0 }
    }
}

/// The engine's text, with fields of a configuration by the names that they have in C.
fn in_c(error: &certkv::Error) -> String {
    use certkv::{Class, Error};
    match error {
        Error::Config { field, why } => format!("config->{}: {why}", field_in_c(field)),
        // Of nothing but a configuration.
        Error::Geometry(e) => format!("config->{e}"),
        Error::Calibration(e) => format!("config->{e}"),
        Error::Format(e) => format!("config->format: {e}"),
        Error::Budget(e) => {
            let field = match e.class {
                Class::Packed | Class::Scratch | Class::Tables => "device_budget",
                Class::Host => "host_budget",
                Class::Disk => "spill_budget",
            };
            format!("config->{field}: {e}")
        }
        other => other.to_string(),
    }
}

/// The field of certkv_config that a field of the engine's configuration comes from.
fn field_in_c(field: &str) -> &str {
    match field {
        "formats" => "format",
        "prefixes" => "prefix_units",
        "prefix_watermarks" => "prefix_low",
        "codebooks" => "calibration",
        "control.retention" => "retention",
        "control.budget" => "bound_budget",
        "protection" | "protection.sinks" => "protect_sinks",
        "protection.recent" => "protect_recent",
        "spill" => "spill_store",
        same => same,
    }
}

impl From<certkv::Error> for Failure {
    fn from(error: certkv::Error) -> Self {
        let cuda_result = match &error {
            certkv::Error::Gpu(CudaError::Call { code, .. } | CudaError::OutOfPinnedMemory { code, .. }) => *code,
            _ => 0,
        };
        Self { cuda_result, ..Self::new(status::of(&error), in_c(&error)) }
    }
}

thread_local! {
    /// Guarded calls on this thread's stack.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Where the panic was that this thread is unwinding from.
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps panics of guarded calls, and of the kernels' worker threads, off the terminal: the caller's error stream is
/// not ours. Other panics go to the hook that was there.
fn quiet_panics() {
    static INSTALLED: Once = Once::new();
    // The hook cannot be replaced while a panic is under way; some later call does it.
    if std::thread::panicking() {
        return;
    }
    INSTALLED.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
            let inside = DEPTH.try_with(Cell::get).unwrap_or(0) > 0;
            let worker = || std::thread::current().name().is_some_and(|name| name.starts_with("certkv-"));
            if inside {
                let place = info.location().map(ToString::to_string).unwrap_or_default();
                let _ = PLACE.try_with(|at| at.replace(place));
            } else if !worker() {
                previous(info);
            }
        }));
    });
}

/// Raises this thread's depth while it lives.
struct Inside;

impl Inside {
    fn enter() -> Self {
        let _ = DEPTH.try_with(|depth| depth.set(depth.get() + 1));
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = DEPTH.try_with(|depth| depth.set(depth.get().saturating_sub(1)));
    }
}

fn describe(payload: &(dyn Any + Send)) -> Failure {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    let place = PLACE.try_with(RefCell::take).unwrap_or_default();
    Failure::new(certkv_status::CERTKV_PANIC, format!("defect in certkv at {place}: {text}"))
}

/// A defect where a test asked for one.
fn defect_if_armed(point: Result<(), InjectedFault>) {
    if let Err(defect) = point {
        panic!("{defect}");
    }
}

/// Runs the body of an export, with numbers as Rust has them. Unwind safety: whoever runs on an object marks it with [`Poison`], so that what a panic
/// left half done is never looked at again.
fn catch<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    quiet_panics();
    let _inside = Inside::enter();
    let _usual = Usual::enter();
    let work = || {
        defect_if_armed(fail_point!("capi.export"));
        work()
    };
    if planted!(B24) {
        return work();
    }
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| Err(describe(&*payload)))
}

/// Whether a guarded call is under way on this thread.
pub(crate) fn is_inside() -> bool {
    DEPTH.try_with(Cell::get).unwrap_or(0) > 0
}

/// For exports that return a status.
pub(crate) fn guard(work: impl FnOnce() -> Result<(), Failure>) -> certkv_status {
    let done = {
        let _inside = Inside::enter();
        let _about = About::enter();
        catch(work).inspect_err(log::failed)
    };
    let status = match done {
        Ok(()) => certkv_status::CERTKV_OK,
        Err(failure) => remember(failure),
    };
    log::hand_over();
    status
}

/// For the export that reports errors: its own failures do not replace the one it is asked for.
pub(crate) fn guard_quiet(work: impl FnOnce() -> Result<(), Failure>) -> certkv_status {
    catch(work).map_or_else(|failure| failure.status, |()| certkv_status::CERTKV_OK)
}

/// For exports that cannot fail; `otherwise` is what a defect returns.
pub(crate) fn guard_value<T>(otherwise: T, work: impl FnOnce() -> T) -> T {
    catch(|| Ok(work())).unwrap_or(otherwise)
}

/// Set once a panic passed through a call on the object.
#[derive(Debug, Default)]
pub(crate) struct Poison(AtomicBool);

impl Poison {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Refuses a poisoned object.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if !self.is_set() {
            return Ok(());
        }
        Err(Failure::new(certkv_status::CERTKV_POISONED, "a defect was caught in an earlier call; destroy the object"))
    }

    /// Runs `work`; the flag is set if it panics.
    pub(crate) fn watch<T>(&self, work: impl FnOnce() -> T) -> T {
        struct Armed<'p>(&'p Poison, bool);
        impl Drop for Armed<'_> {
            fn drop(&mut self) {
                if self.1 {
                    self.0.0.store(true, Ordering::Release);
                }
            }
        }
        let mut armed = Armed(self, true);
        defect_if_armed(fail_point!("capi.object"));
        let result = work();
        armed.1 = false;
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{certkv_error_info, certkv_last_error};
    use core::ffi::CStr;
    use core::ptr;

    fn last() -> (certkv_status, String) {
        let size = size_of::<certkv_error_info>() as u32;
        let mut info = certkv_error_info {
            struct_size: size,
            status: certkv_status::CERTKV_OK,
            cuda_result: 9,
            reserved: 9,
            message: ptr::null(),
        };
        // SAFETY: `info` is a struct of its own size; the message is valid until the next call.
        let message = unsafe {
            assert_eq!(certkv_last_error(&mut info), certkv_status::CERTKV_OK);
            CStr::from_ptr(info.message).to_str().unwrap().to_owned()
        };
        assert_eq!((info.cuda_result, info.reserved), (0, 0));
        (info.status, message)
    }

    #[test]
    fn a_panic_is_a_status_that_names_its_place() {
        let at = line!() + 1;
        assert_eq!(guard(|| panic!("planted {}", 7)), certkv_status::CERTKV_PANIC);
        let (status, message) = last();
        assert_eq!(status, certkv_status::CERTKV_PANIC);
        assert!(message.contains("planted 7") && message.contains(&format!("guard.rs:{at}")), "{message}");
        assert_eq!(guard_value(5, || panic!("planted")), 5);
        assert_eq!(DEPTH.get(), 0);
        // Success keeps the record, so that a caller may clean up before it asks.
        assert_eq!(guard(|| Ok(())), certkv_status::CERTKV_OK);
        assert_eq!(last().0, certkv_status::CERTKV_PANIC);
    }

    #[test]
    fn a_panic_poisons_what_it_passed_through() {
        let poison = Poison::default();
        assert_eq!(poison.watch(|| 3), 3);
        assert!(poison.check().is_ok());
        assert_eq!(guard(|| poison.watch(|| panic!("planted"))), certkv_status::CERTKV_PANIC);
        assert_eq!(poison.check().unwrap_err().status, certkv_status::CERTKV_POISONED);
    }

    #[test]
    fn errors_belong_to_their_thread() {
        assert_eq!(guard(|| Err(Failure::new(certkv_status::CERTKV_SHAPE, "one\0two"))), certkv_status::CERTKV_SHAPE);
        let other = std::thread::spawn(last).join().unwrap();
        assert_eq!(other, (certkv_status::CERTKV_OK, String::new()));
        assert_eq!(last(), (certkv_status::CERTKV_SHAPE, "onetwo".to_owned()));
    }
}
