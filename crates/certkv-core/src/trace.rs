//! Spans around moves, for whoever traces.
//!
//! `span!("fill", sides = n)` opens a span of the `tracing` facade that ends with the value it returns. Without the feature
//! `tracing` it is nothing at all: its values are not even computed. With it, and without a subscriber, it costs the look at one static.

#[cfg(feature = "tracing")]
#[doc(hidden)]
pub use tracing;

/// A span that ends when it is dropped.
#[must_use = "the span ends at once"]
#[derive(Debug)]
pub struct Span(#[cfg(feature = "tracing")] Option<tracing::span::EnteredSpan>);

impl Span {
    #[cfg(feature = "tracing")]
    #[doc(hidden)]
    pub fn of(span: tracing::Span) -> Self {
        Self((!span.is_disabled()).then(|| span.entered()))
    }

    #[cfg(not(feature = "tracing"))]
    #[doc(hidden)]
    #[inline(always)]
    pub const fn none() -> Self {
        Self()
    }

    /// Fills a field that was opened empty (`moved = _`).
    #[inline(always)]
    pub fn record(&self, field: &'static str, value: u64) {
        #[cfg(feature = "tracing")]
        if let Some(span) = &self.0 {
            span.record(field, value);
        }
        #[cfg(not(feature = "tracing"))]
        let _ = (field, value);
    }
}

/// Opens span `$name` of target `certkv` with fields that are numbers, or `_` for those that [`Span::record`] fills.
#[cfg(feature = "tracing")]
#[macro_export]
macro_rules! span {
    (@value _) => { $crate::trace::tracing::field::Empty };
    (@value $value:expr) => { ($value) as u64 };
    ($name:literal $(, $field:ident = $value:tt)* $(,)?) => {
        $crate::trace::Span::of($crate::trace::tracing::debug_span!(
            target: "certkv", $name $(, $field = $crate::span!(@value $value))*
        ))
    };
}

/// Opens nothing: the feature `tracing` is off.
#[cfg(not(feature = "tracing"))]
#[macro_export]
macro_rules! span {
    (@value _) => { 0 };
    (@value $value:expr) => { ($value) as u64 };
    ($name:literal $(, $field:ident = $value:tt)* $(,)?) => {{
        // Named so that an argument is used with and without the feature.
        let _ = || { $(let _ = $crate::span!(@value $value);)* };
        $crate::trace::Span::none()
    }};
}
