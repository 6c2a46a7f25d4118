//! A cache in numbers, as the text that Prometheus reads.
use crate::argument;
use crate::cache::{self, certkv_cache};
use crate::guard::{Failure, guard};
use crate::status::certkv_status::{self, CERTKV_SHAPE};
use core::ffi::{c_char, c_void};
use core::fmt::Write as _;
use metrics::{Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Numbers of one name, each with its labels.
#[derive(Default)]
struct Family {
    kind: &'static str,
    lines: Vec<(String, String)>,
}

/// Keeps what is published, in the order of names.
#[derive(Default, Clone)]
struct Kept(Arc<Mutex<BTreeMap<String, Family>>>);

/// One number.
struct Number {
    kept: Kept,
    name: String,
    labels: String,
}

impl Number {
    fn of(kept: &Kept, key: &Key) -> Arc<Self> {
        let mut labels = String::new();
        for label in key.labels() {
            let comma = if labels.is_empty() { "" } else { "," };
            // Writing to a string does not fail.
            let _ = write!(labels, "{comma}{}=\"{}\"", label.key(), escaped(label.value()));
        }
        Arc::new(Self { kept: kept.clone(), name: key.name().to_owned(), labels })
    }

    fn keep(&self, kind: &'static str, value: String) {
        let mut kept = self.kept.0.lock();
        let family = kept.entry(self.name.clone()).or_default();
        family.kind = kind;
        family.lines.push((self.labels.clone(), value));
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

impl GaugeFn for Number {
    // A snapshot only sets.
    fn increment(&self, _: f64) {}
    fn decrement(&self, _: f64) {}
    fn set(&self, value: f64) {
        self.keep("gauge", value.to_string());
    }
}

impl CounterFn for Number {
    fn increment(&self, _: u64) {}
    fn absolute(&self, value: u64) {
        self.keep("counter", value.to_string());
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Number::of(self, key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Number::of(self, key))
    }
    // Histograms are published as counters: docs/metrics.md, section 2.
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

impl Kept {
    /// The text: for each name its type, then its numbers; the three counters of a histogram under one.
    fn text(&self) -> String {
        let (kept, mut text) = (self.0.lock(), String::new());
        let write = |text: &mut String, name: &str| {
            for (labels, value) in kept.get(name).iter().flat_map(|family| &family.lines) {
                let _ = writeln!(text, "{name}{{{labels}}} {value}");
            }
        };
        let histogram = |name: &str| {
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end))?;
            kept.contains_key(&format!("{base}_bucket")).then(|| base.to_owned())
        };
        for (name, family) in kept.iter() {
            match histogram(name) {
                None => {
                    let _ = writeln!(text, "# TYPE {name} {}", family.kind);
                    write(&mut text, name);
                }
                Some(base) if name.ends_with("_bucket") => {
                    let _ = writeln!(text, "# TYPE {base} histogram");
                    ["_bucket", "_sum", "_count"].iter().for_each(|end| write(&mut text, &format!("{base}{end}")));
                }
                Some(_) => {}
            }
        }
        text
    }
}

/// Writes the numbers of docs/metrics.md to `text`, in the format that Prometheus reads (text, version 0.0.4), each with the label `cache`, whose
/// value is `name`, `name_bytes` bytes of UTF-8, at most 4096. `*bytes` is filled with the bytes of the text, which ends with a 0 byte that is not
/// counted: `capacity` has room for that, too. With 0 `capacity` nothing is written; the text grows as
/// things happen, so give more than was said then. For once a second, not once a step. `name` is borrowed during the call.
///
/// Threads: any, at any time; waits as certkv_cache_snapshot, and says what it says.
/// Stream: none.
/// Capture: not allowed.
/// Errors: NULL_POINTER, MISALIGNED, INVALID_ARGUMENT, OVERLAP, INVALID_HANDLE, POISONED: nothing changed. SHAPE (`capacity` is too small): `*bytes`
/// says how many there are, `text` is unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_cache_metrics(
    cache: *const certkv_cache,
    name: *const c_void,
    name_bytes: u64,
    text: *mut c_char,
    capacity: u64,
    bytes: *mut u64,
) -> certkv_status {
    guard(|| {
        let room = argument::array(text, capacity, "text")?;
        argument::aligned(bytes, "bytes")?;
        argument::disjoint((text, room, "text"), (bytes, 1, "bytes"))?;
        // SAFETY: the caller gives `name_bytes` bytes.
        let name = unsafe { argument::name(name, name_bytes, "name")? };
        let name = core::str::from_utf8(name).map_err(|_| argument::invalid("name is not UTF-8".to_owned()))?;
        let seen = cache::with(cache, |held| Ok(held.engine.snapshot()))?;
        let kept = Kept::default();
        metrics::with_local_recorder(&kept, || seen.publish(name));
        let made = kept.text();
        // SAFETY: not NULL and aligned; the caller gives a variable of this type.
        unsafe { bytes.write(made.len() as u64) };
        if room == 0 {
            return Ok(());
        }
        if room <= made.len() {
            let why = format!("text: room for {room} bytes, there are {} and a 0", made.len());
            return Err(Failure::new(CERTKV_SHAPE, why));
        }
        // SAFETY: `text` has `room` writable bytes, which is more than those of the text, and nothing else has them.
        unsafe { core::ptr::copy_nonoverlapping(made.as_ptr(), text.cast::<u8>(), made.len()) };
        // SAFETY: as above; one byte more.
        unsafe { text.add(made.len()).write(0) };
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let kept = Kept::default();
        metrics::with_local_recorder(&kept, || {
            metrics::gauge!("b_now", "cache" => "a \"b\" \\\n").set(3.0);
            metrics::counter!("a_wait_bucket", "cache" => "a", "le" => "1").absolute(2);
            metrics::counter!("a_wait_bucket", "cache" => "a", "le" => "+Inf").absolute(5);
            metrics::counter!("a_wait_sum", "cache" => "a").absolute(u64::MAX);
            metrics::counter!("a_wait_count", "cache" => "a").absolute(5);
            metrics::counter!("c_count", "cache" => "a").absolute(1);
        });
        let wanted = "# TYPE a_wait histogram\n\
                      a_wait_bucket{cache=\"a\",le=\"1\"} 2\n\
                      a_wait_bucket{cache=\"a\",le=\"+Inf\"} 5\n\
                      a_wait_sum{cache=\"a\"} 18446744073709551615\n\
                      a_wait_count{cache=\"a\"} 5\n\
                      # TYPE b_now gauge\n\
                      b_now{cache=\"a \\\"b\\\" \\\\\\n\"} 3\n\
                      # TYPE c_count counter\n\
                      c_count{cache=\"a\"} 1\n";
        assert_eq!(kept.text(), wanted);
    }
}
