//! What the library has to say, for the host's own log.
//!
//! A message is made where something happens, in the middle of a call that may hold locks. It waits in a list of its thread and is handed over
//! at the end of the call, when nothing is held. So the host's function may take its own locks and call the library.
use crate::error;
use crate::guard::{self, Failure, guard};
use crate::status::certkv_status::{self, CERTKV_INVALID_ARGUMENT, CERTKV_NULL_POINTER, CERTKV_ORDER};
use core::cell::{Cell, RefCell};
use core::ffi::{CStr, c_char, c_void};
use core::fmt::Write as _;
use core::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use parking_lot::{Condvar, Mutex};
use std::ffi::CString;
use std::sync::{Arc, Once};
use std::time::Instant;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

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

const TARGET: &CStr = c"certkv";

/// Messages of one call at most; of more only the number is said.
const MOST: usize = 64;

struct Sink {
    call: unsafe extern "C" fn(*mut c_void, certkv_log_level, *const c_char, *const c_char),
    user: *mut c_void,
    epoch: u64,
    /// Threads that are in `call`, or about to.
    inside: AtomicUsize,
}

// SAFETY: the host's promise: function and pointer are for any thread.
unsafe impl Send for Sink {}
// SAFETY: as above, several at once.
unsafe impl Sync for Sink {}

static SINK: Mutex<Option<Arc<Sink>>> = Mutex::new(None);
/// A thread has left a sink.
static LEFT: Condvar = Condvar::new();
static LEVEL: AtomicI32 = AtomicI32::new(CERTKV_LOG_OFF);
/// Goes up with every change of the sink: what was said for one is not handed to the next.
static EPOCH: AtomicU64 = AtomicU64::new(0);

struct Message {
    epoch: u64,
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
    static OPEN: RefCell<Vec<Open>> = const { RefCell::new(Vec::new()) };
}

fn telling() -> bool {
    TELLING.try_with(Cell::get).unwrap_or(true)
}

/// Leaves a message for the end of this thread's call. Costs a look at a number where nobody listens that closely.
pub(crate) fn say(level: certkv_log_level, text: impl FnOnce() -> String) {
    // A thread without a call would have nobody to hand it over; none of the library's own says anything.
    if LEVEL.load(Ordering::Relaxed) < level || telling() || !guard::is_inside() {
        return;
    }
    let (epoch, text) = (EPOCH.load(Ordering::Relaxed), text());
    let _ = WAITING.try_with(|waiting| {
        let mut waiting = waiting.borrow_mut();
        if waiting.messages.len() < MOST {
            waiting.messages.push(Message { epoch, level, text })
        } else {
            waiting.more += 1
        }
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
    if LEVEL.load(Ordering::Relaxed) == CERTKV_LOG_OFF || telling() || guard::is_inside() {
        return;
    }
    let taken = WAITING.try_with(|waiting| {
        let mut waiting = waiting.borrow_mut();
        (core::mem::take(&mut waiting.messages), core::mem::take(&mut waiting.more))
    });
    let Ok((messages, more)) = taken else { return };
    if messages.is_empty() {
        return;
    }
    let sink = {
        let sink = SINK.lock();
        let Some(sink) = sink.as_ref() else { return };
        // Under the lock: whoever replaces it waits for us from here on.
        sink.inside.fetch_add(1, Ordering::Relaxed);
        Arc::clone(sink)
    };
    error::kept(|| {
        let _ = TELLING.try_with(|telling| telling.set(true));
        let more = (more > 0).then(|| Message {
            epoch: sink.epoch,
            level: CERTKV_LOG_INFO,
            text: format!("{more} more of this call"),
        });
        for Message { epoch, level, text } in messages.into_iter().chain(more) {
            let Ok(text) = CString::new(text.replace(['\0', '\n'], " ")) else { continue };
            if epoch == sink.epoch {
                // SAFETY: the host's function, with its pointer, for any thread until certkv_log_set has returned, which waits for `inside`;
                // both texts are C strings that outlive the call.
                unsafe { (sink.call)(sink.user, level, TARGET.as_ptr(), text.as_ptr()) };
            }
        }
        let _ = TELLING.try_with(|telling| telling.set(false));
    });
    let _left = SINK.lock();
    sink.inside.fetch_sub(1, Ordering::Relaxed);
    LEFT.notify_all();
}

/// Gives messages of the library, up to `level`, to `callback` from now on, with `user`; NULL or CERTKV_LOG_OFF ends that. One function hears all
/// caches of the process. When the call returns, the function that was there before is on no thread any more and is not called again: it and its
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
        if !(CERTKV_LOG_OFF..=CERTKV_LOG_DEBUG).contains(&level) {
            let why = format!("level = {level}: not a CERTKV_LOG value");
            return Err(Failure::new(CERTKV_INVALID_ARGUMENT, why));
        }
        if telling() {
            return Err(Failure::new(CERTKV_ORDER, "callback: the log cannot be changed from within it"));
        }
        let sink = match callback {
            _ if level == CERTKV_LOG_OFF => None,
            None => return Err(Failure::new(CERTKV_NULL_POINTER, "callback is NULL, and level is not CERTKV_LOG_OFF")),
            Some(call) => Some(Sink { call, user, epoch: 0, inside: AtomicUsize::new(0) }),
        };
        let mut place = SINK.lock();
        LEVEL.store(level, Ordering::Relaxed);
        let epoch = EPOCH.fetch_add(1, Ordering::Relaxed) + 1;
        let before = core::mem::replace(&mut *place, sink.map(|sink| Arc::new(Sink { epoch, ..sink })));
        while let Some(before) = &before
            && before.inside.load(Ordering::Relaxed) > 0
        {
            LEFT.wait(&mut place);
        }
        drop(place);
        listen();
        Ok(())
    })
}

/// Has spans of moves come here, as many as the level wants.
fn listen() {
    static LISTENING: Once = Once::new();
    // This copy of the library has its own `tracing`, whose listener is nobody else's to set.
    LISTENING.call_once(|| drop(tracing::subscriber::set_global_default(Spans)));
    tracing::callsite::rebuild_interest_cache();
}

/// A span that is not over.
struct Open {
    id: u64,
    since: Instant,
    text: String,
}

impl Visit for Open {
    fn record_u64(&mut self, field: &Field, value: u64) {
        // Writing to a string does not fail.
        let _ = write!(self.text, " {}={value}", field.name());
    }
    fn record_debug(&mut self, field: &Field, value: &dyn core::fmt::Debug) {
        let _ = write!(self.text, " {}={value:?}", field.name());
    }
}

/// Makes a message of every span that ends. All of them begin and end on one thread.
struct Spans;

impl Spans {
    fn with(id: &Id, work: impl FnOnce(&mut Vec<Open>, usize)) {
        let _ = OPEN.try_with(|open| {
            let mut open = open.borrow_mut();
            let at = open.iter().rposition(|open| open.id == id.into_u64());
            at.map(|at| work(&mut open, at))
        });
    }
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::DEBUG && LEVEL.load(Ordering::Relaxed) >= CERTKV_LOG_DEBUG
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let all = LEVEL.load(Ordering::Relaxed) >= CERTKV_LOG_DEBUG;
        Some(if all { LevelFilter::DEBUG } else { LevelFilter::OFF })
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut open = Open { id, since: Instant::now(), text: span.metadata().name().to_owned() };
        span.record(&mut open);
        let _ = OPEN.try_with(|all| all.borrow_mut().push(open));
        Id::from_u64(id)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        Self::with(span, |open, at| values.record(&mut open[at]));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut open = Open { id: 0, since: Instant::now(), text: event.metadata().name().to_owned() };
        event.record(&mut open);
        say(CERTKV_LOG_DEBUG, || open.text);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}

    fn try_close(&self, span: Id) -> bool {
        Self::with(&span, |open, at| {
            let Open { since, text, .. } = open.swap_remove(at);
            say(CERTKV_LOG_DEBUG, || format!("{text} in {} us", since.elapsed().as_micros()));
        });
        true
    }
}
