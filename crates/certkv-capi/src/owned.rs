//! A step that keeps its cache alive.
use crate::cache::Held;
use certkv::{Chunk, Error, Step};
use core::mem::transmute;
use std::sync::Arc;

/// A [`Step`] together with the cache that it borrows.
pub(crate) struct OwnedStep {
    /// Borrows from `cache`; declared first, so dropped first.
    step: Step<'static>,
    /// Never replaced. An `Arc`'s target stays where it is when the `Arc` moves.
    cache: Arc<Held>,
}

impl OwnedStep {
    pub(crate) fn begin(cache: Arc<Held>, chunks: &[Chunk]) -> Result<Self, Error> {
        let step = cache.engine.begin(chunks)?;
        // SAFETY: only the lifetime changes. The step borrows `cache.engine`, which lives at a fixed address for as
        // long as the `Arc` beside it, and both fields are private: the step is dropped, or consumed by `finish`,
        // before the `Arc`. Nobody sees the stretched lifetime: `with` hands the step out for a lifetime of the
        // caller's naming.
        let step = unsafe { transmute::<Step<'_>, Step<'static>>(step) };
        Ok(Self { step, cache })
    }

    pub(crate) fn tokens(&self) -> usize {
        self.step.tokens()
    }

    /// Lends the step. The closure must work for every lifetime, so nothing borrowed through the step can leave it.
    pub(crate) fn with<T>(&mut self, work: impl for<'c> FnOnce(&mut Step<'c>) -> T) -> T {
        work(&mut self.step)
    }

    pub(crate) fn finish(self) -> Result<(), Error> {
        let Self { step, cache } = self;
        let finished = step.finish();
        drop(cache);
        finished
    }
}
