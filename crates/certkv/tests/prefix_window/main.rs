//! Cached prefixes of caches whose layers have sliding windows: what is found goes on as the sequence that wrote it, bit for bit, every
//! output within its bound of exact attention over what is visible, and windows that nobody uses give way.
#[path = "../common/mod.rs"]
mod common;
mod found;
mod talks;
mod travel;

use certkv::{
    Cache, Certificate, Config, Error, Eviction, Geometry, PrefixConfig, PrefixScope, PrefixSecret, SequenceId, Window,
};
use common::{Answer, Model, decode_faults, exact, fill};

pub(crate) const SCOPE: PrefixScope<'_> = PrefixScope::new(b"tenant", b"model");

pub(crate) fn geometry() -> Geometry {
    Geometry::new(3, 4, 2, 64).unwrap()
}

/// Units of 32 tokens; blocks of 16 in the first and last layer.
pub(crate) fn config(windows: &[Option<Window>], max_tokens: usize) -> Config {
    let formats = ["k8-v4g32-b16", "t4-v4g32-b32", "k8-v4g32-b16"].map(|f| f.parse().unwrap());
    let prefixes = PrefixConfig { secret: PrefixSecret::new([5; 32]), units: 64, eviction: Eviction::Lru };
    let config = Config::new(geometry(), max_tokens);
    Config { formats: formats.into(), windows: windows.into(), prefixes: Some(prefixes), max_sequences: 4, ..config }
}

/// The first layer sees 40 tokens, the last 20 and three sinks.
pub(crate) fn windows() -> Vec<Option<Window>> {
    let chunk = |window: Window| Some(Window { chunk: 80, ..window });
    vec![chunk(Window::new(40)), None, chunk(Window::new(20).with_sinks(3))]
}

/// Rows `range` of a model.
pub(crate) fn part(model: &Model, range: std::ops::Range<usize>) -> Model {
    let width = geometry().kv_width();
    let cut =
        |side: &common::Layers| side.iter().map(|rows| rows[range.start * width..range.end * width].into()).collect();
    Model { keys: cut(&model.keys), values: cut(&model.values) }
}

/// Appends tokens `from..to` of a model in chunks of 40.
pub(crate) fn append(cache: &Cache, id: SequenceId, model: &Model, from: usize, to: usize) -> Result<(), Error> {
    let mut at = from;
    while at < to {
        let end = (at / 40 * 40 + 40).min(to);
        fill(cache, id, &part(model, at..end))?;
        at = end;
    }
    Ok(())
}

pub(crate) fn publish(cache: &Cache, id: SequenceId, tokens: &[u32]) -> (usize, usize) {
    let done = cache.publish(id, &SCOPE, tokens.into()).unwrap();
    (done.cached, done.added)
}

pub(crate) fn found(cache: &Cache, tokens: &[u32]) -> usize {
    let peek = cache.find_prefix(&SCOPE, tokens.into()).unwrap();
    let (id, found) = cache.create_from(&SCOPE, tokens.into()).unwrap();
    assert_eq!((peek.found, cache.len(id).unwrap()), (found, found));
    cache.release(id).unwrap();
    found
}

pub(crate) fn same(a: &[Answer], b: &[Answer]) -> bool {
    let certificates =
        |answers: &[Answer]| -> Vec<Certificate> { answers.iter().flat_map(|a| a.certificates.clone()).collect() };
    a.iter().zip(b).all(|(a, b)| a.bits() == b.bits()) && certificates(a) == certificates(b)
}

/// The same, wherever the bytes were read: what scratch holds is another matter.
pub(crate) fn alike(a: &[Answer], b: &[Answer]) -> bool {
    let figures = |answers: &[Answer]| -> Vec<Certificate> {
        let certificates = answers.iter().flat_map(|a| a.certificates.clone());
        certificates.map(|c| Certificate { bytes: Default::default(), ..c }).collect()
    };
    a.iter().zip(b).all(|(a, b)| a.bits() == b.bits()) && figures(a) == figures(b)
}

/// Outputs of a decode step beyond their bounds.
pub(crate) fn faults(model: &Model, windows: &[Option<Window>], queries: &[f32], answers: &[Answer]) -> usize {
    let last = model.len(&geometry()) - 1;
    let of_layer = |(layer, answer): (usize, &Answer)| {
        let truth = exact(&geometry(), model, layer, last, windows[layer], queries);
        decode_faults(&truth, &answer.out, &answer.certificates, 0.05)
    };
    answers.iter().enumerate().map(of_layer).sum()
}

pub(crate) fn emptied(cache: &Cache) {
    cache.evict_prefixes(usize::MAX).unwrap();
    assert_eq!(cache.live_pages(), 0);
    let report = cache.check_report();
    assert_eq!(report.findings(), 0, "{report:?}");
}

pub(crate) fn found_in_use(cache: &Cache, tokens: &[u32]) -> usize {
    cache.find_prefix(&SCOPE, tokens.into()).unwrap().found
}
