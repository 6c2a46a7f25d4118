//! What launches are told beside tables and rows, kept for those who ask.
use super::{DIM, GROUP, KV_HEADS, set, word};
use certkv_kernel::cuda::args::{AttendArgs, Demand};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// What launches are told of keys of a calibration, by kernel, a word for a number or a part of a table; nothing of other keys.
type Metrics = Vec<(&'static str, Vec<u32>)>;
static METRICS: Mutex<Option<Metrics>> = Mutex::new(None);
/// Words of a head.
static WORDS: AtomicUsize = AtomicUsize::new(2 * DIM);

/// From now on that is kept, `words` of each head.
pub(crate) fn watch_metrics(words: usize) {
    WORDS.store(words, Ordering::Relaxed);
    *METRICS.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
}
/// What was kept, and no more of it.
pub(crate) fn watched_metrics() -> Metrics {
    METRICS.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
}

pub(super) fn told(kernel: &'static str, metrics: u64) {
    if let Some(all) = METRICS.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        let words = if metrics == 0 { 0 } else { KV_HEADS * WORDS.load(Ordering::Relaxed) };
        all.push((kernel, (0..words).map(|at| word(metrics, at)).collect()));
    }
}

/// What launches that code blocks are told of fixed scales, by kernel; nothing of scales of a block's own.
type Reaches = Vec<(&'static str, Vec<f32>)>;
static REACHES: Mutex<Option<Reaches>> = Mutex::new(None);

/// What they were told since this was last asked; nobody listens before the first time.
pub(crate) fn watched_reaches() -> Reaches {
    REACHES.lock().unwrap_or_else(PoisonError::into_inner).replace(Vec::new()).unwrap_or_default()
}

/// Counts one element that scales did not reach.
pub(super) fn told_reaches(kernel: &'static str, reaches: u64, saturated: u64) {
    if let Some(told) = REACHES.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        let words = if reaches == 0 { 0 } else { KV_HEADS * 2 * (DIM / 16) };
        told.push((kernel, (0..words).map(|at| f32::from_bits(word(reaches, at))).collect()));
    }
    if saturated != 0 {
        set(saturated, 0, word(saturated, 0) + 1);
    }
}

/// Query heads that a launch was to refine by what it knows of them, and knew nothing.
pub(crate) static WITHOUT_HISTORY: AtomicU64 = AtomicU64::new(0);

pub(super) fn told_history(a: &AttendArgs) {
    let heads = if a.demands == 0 { 0 } else { a.seqs as usize * KV_HEADS * GROUP };
    let row = |head: usize| word(a.rows, head / (KV_HEADS * GROUP)) as usize;
    let kappa =
        |head: usize| word(a.demands, (row(head) * KV_HEADS * GROUP + head % (KV_HEADS * GROUP)) * Demand::WORDS + 2);
    let unknown = (0..heads).filter(|head| kappa(*head) == 0).count();
    WITHOUT_HISTORY.fetch_add(unknown as u64, Ordering::Relaxed);
}
