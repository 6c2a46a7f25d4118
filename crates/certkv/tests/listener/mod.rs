//! A subscriber that keeps the spans of the library.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// A span.
#[derive(Debug, Default, Clone)]
pub(crate) struct Seen {
    pub(crate) name: &'static str,
    pub(crate) values: BTreeMap<&'static str, u64>,
    entered: usize,
    left: usize,
    closed: bool,
}

impl Visit for Seen {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.values.insert(field.name(), value);
    }
    fn record_debug(&mut self, field: &Field, _: &dyn std::fmt::Debug) {
        panic!("{field} is not a number");
    }
}

/// Keeps every span.
#[derive(Debug, Default, Clone)]
pub(crate) struct Listener(Arc<Mutex<Vec<Seen>>>);

impl Listener {
    fn with(&self, id: &Id, change: impl FnOnce(&mut Seen)) {
        change(&mut self.0.lock().unwrap()[id.into_u64() as usize - 1]);
    }

    /// Of a name, oldest first.
    pub(crate) fn spans(&self, name: &str) -> Vec<Seen> {
        self.0.lock().unwrap().iter().filter(|seen| seen.name == name).cloned().collect()
    }

    /// Fields of the first span of each name, each of which was entered, left and closed once.
    pub(crate) fn names(&self) -> BTreeMap<String, BTreeSet<String>> {
        let all = self.0.lock().unwrap();
        let wrong = |seen: &&Seen| (seen.entered, seen.left, seen.closed) != (1, 1, true);
        assert!(!all.is_empty() && !all.iter().any(|seen| wrong(&seen)), "{:?}", all.iter().find(wrong));
        let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for seen in all.iter() {
            let fields = seen.values.keys().map(|field| (*field).to_owned()).collect();
            names.entry(seen.name.to_owned()).or_insert(fields);
        }
        names
    }
}

/// A table of spans in docs/metrics.md, the `nth`: name, and its fields.
pub(crate) fn documented(nth: usize) -> BTreeMap<String, BTreeSet<String>> {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md")).unwrap();
    let mut lines = text.lines();
    for _ in 0..=nth {
        assert!(lines.any(|line| line.starts_with("| span")));
    }
    let row = |row: &str| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let fields = cells[2].split('(').next().unwrap().split(',').map(|field| field.trim().to_owned()).collect();
        (cells[0].trim_matches('`').to_owned(), fields)
    };
    lines.skip(1).take_while(|l| l.starts_with('|')).map(row).collect()
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "certkv"
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        assert_eq!(span.metadata().level(), &Level::DEBUG);
        let mut seen = Seen { name: span.metadata().name(), ..Seen::default() };
        span.record(&mut seen);
        let mut all = self.0.lock().unwrap();
        all.push(seen);
        Id::from_u64(all.len() as u64)
    }
    fn record(&self, span: &Id, values: &Record<'_>) {
        self.with(span, |seen| values.record(seen));
    }
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        panic!("nothing but spans: {event:?}");
    }
    fn enter(&self, span: &Id) {
        self.with(span, |seen| seen.entered += 1);
    }
    fn exit(&self, span: &Id) {
        self.with(span, |seen| seen.left += 1);
    }
    fn try_close(&self, span: Id) -> bool {
        self.with(&span, |seen| seen.closed = true);
        true
    }
}
