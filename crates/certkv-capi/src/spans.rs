//! Spans of the engine, as messages of the log.
use crate::log::{self, CERTKV_LOG_DEBUG};
use core::cell::RefCell;
use core::fmt::Write as _;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Once;
use std::time::Instant;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

thread_local! {
    static OPEN: RefCell<Vec<Open>> = const { RefCell::new(Vec::new()) };
}

/// Has spans of moves come here, as many as somebody wants.
pub(crate) fn listen() {
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
    /// Who wants it is not known before it is made: it depends on the cache.
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        let some = *metadata.level() <= Level::DEBUG && log::is_curious();
        if some { Interest::sometimes() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::DEBUG && log::wanted() >= CERTKV_LOG_DEBUG
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(if log::is_curious() { LevelFilter::DEBUG } else { LevelFilter::OFF })
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
        log::say(CERTKV_LOG_DEBUG, || open.text);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}

    fn try_close(&self, span: Id) -> bool {
        Self::with(&span, |open, at| {
            let Open { since, text, .. } = open.swap_remove(at);
            log::say(CERTKV_LOG_DEBUG, || format!("{text} in {} us", since.elapsed().as_micros()));
        });
        true
    }
}
