//! What the library has to say, for the host's own log: one of a cache, or that of the process.
//!
//! A message is made where something happens, in the middle of a call that may hold locks. It waits in a list of its thread and is handed over
//! at the end of the call, when nothing is held. So the host's function may take its own locks and call the library.
//!
//! Whose it is is known where it is made: a call that has found its cache says so for as long as it lasts ([`Sink::hears`]).
use crate::argument;
use crate::error;
use crate::guard::{self, Failure, guard};
use crate::spans;
use crate::status::certkv_status::{self, CERTKV_INVALID_ARGUMENT, CERTKV_NULL_POINTER, CERTKV_ORDER};
use core::cell::{Cell, RefCell};
use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use parking_lot::{Condvar, Mutex};
use std::ffi::CString;
use std::sync::Arc;

/// How much is said. Each level has those before it.
pub type certkv_log_level = i32;
/// Nothing.
pub const CERTKV_LOG_OFF: certkv_log_level = 0;
/// Defects of the library, and calls on what a defect has left behind.
pub const CERTKV_LOG_ERROR: certkv_log_level = 1;
/// Calls that failed by the device, memory, a file or a store.
pub const CERTKV_LOG_WARN: certkv_log_level = 2;
/// Caches that come and go, and what they take.
pub const CERTKV_LOG_INFO: certkv_log_level = 3;
/// Moves (docs/metrics.md), with their numbers and how long they took, and all other calls that failed.
pub const CERTKV_LOG_DEBUG: certkv_log_level = 4;

/// A host's log. `target` is the part of the library that speaks, "certkv" now; `message` is one line of English in UTF-8. Both are borrowed during
/// the call.
///
/// It is called on the thread whose call a message is about, before that call returns, on several threads at once. No lock of the library is held:
/// it may call the library, but for certkv_log_set; what its own calls have to say is not said, and the thread's latest error stays what it was.
/// It must return, by no exception and no longjmp.
pub type certkv_log_callback = Option<
    unsafe extern "C" fn(user: *mut c_void, level: certkv_log_level, target: *const c_char, message: *const c_char),
>;

/// A log of one cache's own (`config->log`): what calls on the cache and its steps have to say is told to it, and not to that of certkv_log_set. Set
/// all of it to 0 bytes, then the fields.
///
/// It is copied: `callback` and `user` must stay until the cache, its steps and the calls on it are over. A call from within a callback of the
/// library is over with the call that it serves.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct certkv_log {
    /// sizeof(certkv_log) of the caller's header.
    pub struct_size: u32,
    /// Up to which level: one of the CERTKV_LOG values. CERTKV_LOG_OFF: of this cache nothing is said.
    pub level: certkv_log_level,
    /// Who is told; NULL only with CERTKV_LOG_OFF.
    pub callback: certkv_log_callback,
    /// Handed to it.
    pub user: *mut c_void,
}

const TARGET: &CStr = c"certkv";

/// Messages of one call at most; of more only the number is said.
const MOST: usize = 64;

/// A host's function.
#[derive(Debug)]
struct Function {
    call: unsafe extern "C" fn(*mut c_void, certkv_log_level, *const c_char, *const c_char),
    user: *mut c_void,
}

// SAFETY: the host's promise: function and pointer are for any thread.
unsafe impl Send for Function {}
// SAFETY: as above, several at once.
unsafe impl Sync for Function {}

impl Function {
    /// # Safety
    /// Function and pointer are still there.
    unsafe fn tell(&self, message: &Message) {
        let Ok(text) = CString::new(message.text.replace(['\0', '\n'], " ")) else { return };
        // SAFETY: by the caller's promise; both texts are C strings that outlive the call.
        unsafe { (self.call)(self.user, message.level, TARGET.as_ptr(), text.as_ptr()) };
    }
}

/// That of the process.
struct Process {
    function: Function,
    epoch: u64,
    /// Threads that are in `function`, or about to.
    inside: AtomicUsize,
}

/// That of a cache.
#[derive(Debug)]
pub(crate) struct Sink {
    /// `None`: nothing is said.
    function: Option<Function>,
    level: certkv_log_level,
}

static PROCESS: Mutex<Option<Arc<Process>>> = Mutex::new(None);
/// A thread has left a sink.
static LEFT: Condvar = Condvar::new();
static LEVEL: AtomicI32 = AtomicI32::new(CERTKV_LOG_OFF);
/// Goes up with every change of the sink: what was said for one is not handed to the next.
static EPOCH: AtomicU64 = AtomicU64::new(0);

/// Caches' own sinks that want spans.
static CURIOUS: AtomicUsize = AtomicUsize::new(0);

/// Who is told.
enum To {
    /// That of the process which was there in this epoch.
    Process(u64),
    Cache(Arc<Sink>),
}

struct Message {
    to: To,
    level: certkv_log_level,
    text: String,
}

struct Waiting {
    messages: Vec<Message>,
    more: usize,
}

thread_local! {
    static WAITING: RefCell<Waiting> = const { RefCell::new(Waiting { messages: Vec::new(), more: 0 }) };
    /// The host's function is on this thread's stack.
    static TELLING: Cell<bool> = const { Cell::new(false) };
    /// The sink of the cache that this thread's call is about; `None`: that of the process.
    static OWN: RefCell<Option<Arc<Sink>>> = const { RefCell::new(None) };
    /// Whether there is one, and whether there are messages: what calls look at that have nothing to say.
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
    static IS_WAITING: Cell<bool> = const { Cell::new(false) };
}

/// A call: which cache it is about is its own to say, and the call around it, if there is one, is about what it was about.
pub(crate) struct About(Option<Arc<Sink>>);

impl About {
    pub(crate) fn enter() -> Self {
        Self(about(None))
    }
}

impl Drop for About {
    fn drop(&mut self) {
        about(self.0.take());
    }
}

/// Whom this thread's call tells from now on; who it was.
fn about(sink: Option<Arc<Sink>>) -> Option<Arc<Sink>> {
    if sink.is_none() && !IS_OWN.get() {
        return None;
    }
    IS_OWN.set(sink.is_some());
    OWN.try_with(|own| own.replace(sink)).unwrap_or_default()
}

impl Sink {
    /// The log of a configuration; NULL for that of the process.
    ///
    /// # Safety
    /// `given` is NULL or a struct of its `struct_size` bytes whose function and pointer keep the promises of [`certkv_log`].
    pub(crate) unsafe fn read(given: *const certkv_log) -> Result<Option<Arc<Self>>, Failure> {
        if given.is_null() {
            return Ok(None);
        }
        // SAFETY: by the caller's promise; integers, a pointer and a function that may be NULL, for which zero bits are a value.
        let given = unsafe { argument::read_struct(given, "config->log", size_of::<certkv_log>())? };
        let function = function("config->log->", given.level, given.callback, given.user)?;
        let (curious, level) = (given.level >= CERTKV_LOG_DEBUG, given.level);
        let sink = Arc::new(Self { function, level });
        if curious {
            CURIOUS.fetch_add(1, Ordering::Relaxed);
            spans::listen();
        }
        Ok(Some(sink))
    }

    /// This thread's call is about the cache of this sink: what it has to say is told to it.
    pub(crate) fn hears(sink: &Option<Arc<Self>>) {
        if sink.is_some() {
            about(sink.clone());
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if self.level >= CERTKV_LOG_DEBUG {
            CURIOUS.fetch_sub(1, Ordering::Relaxed);
            spans::listen();
        }
    }
}

/// What a host asks for, whose arguments have names that begin with `owner`.
fn function(
    owner: &str,
    level: certkv_log_level,
    callback: certkv_log_callback,
    user: *mut c_void,
) -> Result<Option<Function>, Failure> {
    if !(CERTKV_LOG_OFF..=CERTKV_LOG_DEBUG).contains(&level) {
        let why = format!("{owner}level = {level}: not a CERTKV_LOG value");
        return Err(Failure::new(CERTKV_INVALID_ARGUMENT, why));
    }
    match callback {
        _ if level == CERTKV_LOG_OFF => Ok(None),
        None => {
            let why = format!("{owner}callback is NULL, and level is not CERTKV_LOG_OFF");
            Err(Failure::new(CERTKV_NULL_POINTER, why))
        }
        Some(call) => Ok(Some(Function { call, user })),
    }
}

/// Up to which level this thread's call is listened to.
pub(crate) fn wanted() -> certkv_log_level {
    // A thread without a call would have nobody to hand it over; none of the library's own says anything.
    if telling() || !guard::is_inside() {
        return CERTKV_LOG_OFF;
    }
    let own = OWN.try_with(|own| own.borrow().as_ref().map(|sink| sink.level)).unwrap_or(Some(CERTKV_LOG_OFF));
    own.unwrap_or_else(|| LEVEL.load(Ordering::Relaxed))
}

/// Whether some call may be listened to as closely as spans go.
pub(crate) fn is_curious() -> bool {
    LEVEL.load(Ordering::Relaxed) >= CERTKV_LOG_DEBUG || CURIOUS.load(Ordering::Relaxed) > 0
}

fn telling() -> bool {
    TELLING.try_with(Cell::get).unwrap_or(true)
}

/// Leaves a message for the end of this thread's call. Costs a look at a number where nobody listens that closely.
pub(crate) fn say(level: certkv_log_level, text: impl FnOnce() -> String) {
    if wanted() < level {
        return;
    }
    let own = OWN.try_with(|own| own.borrow().clone()).unwrap_or_default();
    let to = own.map_or_else(|| To::Process(EPOCH.load(Ordering::Relaxed)), To::Cache);
    let message = Message { to, level, text: text() };
    IS_WAITING.set(true);
    let _ = WAITING.try_with(|waiting| {
        let mut waiting = waiting.borrow_mut();
        if waiting.messages.len() < MOST { waiting.messages.push(message) } else { waiting.more += 1 }
    });
}

/// A call has failed.
pub(crate) fn failed(failure: &Failure) {
    let level = match failure.status as i32 {
        ..=-500 | -399..=-300 | -200 => CERTKV_LOG_WARN,
        -499..=-400 => CERTKV_LOG_ERROR,
        _ => CERTKV_LOG_DEBUG,
    };
    say(level, || format!("{:?}: {}", failure.status, failure.message));
}

/// Hands over what this thread has to say: it holds nothing, and no call of it is under way.
pub(crate) fn hand_over() {
    if !IS_WAITING.get() || telling() || guard::is_inside() {
        return;
    }
    IS_WAITING.set(false);
    let taken = WAITING.try_with(|waiting| {
        let mut waiting = waiting.borrow_mut();
        (core::mem::take(&mut waiting.messages), core::mem::take(&mut waiting.more))
    });
    let Ok((mut messages, more)) = taken else { return };
    if let Some(last) = messages.last().filter(|_| more > 0) {
        let to = match &last.to {
            To::Process(epoch) => To::Process(*epoch),
            To::Cache(sink) => To::Cache(Arc::clone(sink)),
        };
        messages.push(Message { to, level: CERTKV_LOG_INFO, text: format!("{more} more of this call") });
    }
    let process = messages.iter().any(|message| matches!(message.to, To::Process(_))).then(enter_process).flatten();
    error::kept(|| {
        let _ = TELLING.try_with(|telling| telling.set(true));
        for message in &messages {
            let function = match &message.to {
                To::Process(epoch) => {
                    process.as_ref().filter(|process| process.epoch == *epoch).map(|process| &process.function)
                }
                To::Cache(sink) => sink.function.as_ref(),
            };
            if let Some(function) = function {
                // SAFETY: the host's promise. That of the process is there until certkv_log_set has returned, which waits for `inside`; a cache's as
                // long as a call on it is under way, and one is.
                unsafe { function.tell(message) };
            }
        }
        let _ = TELLING.try_with(|telling| telling.set(false));
    });
    if let Some(process) = process {
        let _left = PROCESS.lock();
        process.inside.fetch_sub(1, Ordering::Relaxed);
        LEFT.notify_all();
    }
}

/// The process's sink, which is not replaced until [`Process::inside`] says so.
fn enter_process() -> Option<Arc<Process>> {
    let process = PROCESS.lock();
    // Under the lock: whoever replaces it waits for us from here on.
    let process = process.as_ref()?;
    process.inside.fetch_add(1, Ordering::Relaxed);
    Some(Arc::clone(process))
}

/// Gives messages of the library, up to `level`, to `callback` from now on, with `user`; NULL or CERTKV_LOG_OFF ends that. One function hears all
/// caches of the process but those with a log of their own (`config->log`). When the call returns, the function that was there before is on no thread any more and is not called again: it and its
/// `user` may go. Without a function nothing is made for it.
///
/// Threads: any, at any time, but not from within a callback. Waits for the threads that are in the function that goes.
/// Stream: none.
/// Capture: safe.
/// Errors: INVALID_ARGUMENT (`level` is no CERTKV_LOG value), NULL_POINTER (`callback` is NULL and `level` is not CERTKV_LOG_OFF), ORDER (from within a
/// callback). Nothing changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_log_set(
    level: certkv_log_level,
    callback: certkv_log_callback,
    user: *mut c_void,
) -> certkv_status {
    guard(|| {
        let function = function("", level, callback, user)?;
        if telling() {
            return Err(Failure::new(CERTKV_ORDER, "callback: the log cannot be changed from within it"));
        }
        let mut place = PROCESS.lock();
        LEVEL.store(level, Ordering::Relaxed);
        let epoch = EPOCH.fetch_add(1, Ordering::Relaxed) + 1;
        let made = function.map(|function| Arc::new(Process { function, epoch, inside: AtomicUsize::new(0) }));
        let before = core::mem::replace(&mut *place, made);
        while let Some(before) = &before
            && before.inside.load(Ordering::Relaxed) > 0
        {
            LEFT.wait(&mut place);
        }
        drop(place);
        spans::listen();
        Ok(())
    })
}
