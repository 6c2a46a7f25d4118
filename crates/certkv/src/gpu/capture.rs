//! A step whose work the caller records into a graph of its own, between its own kernels.
//!
//! [`GpuCache::record`](super::GpuCache::record) records appends and attention alone; a model runs projections between them, so a server records
//! its whole step. It begins a step, lets its stream record, makes the cache's stream wait for it, calls [`GpuStep::append_device`] and
//! [`GpuStep::attend_device`] as in any step, [`GpuStep::plan`] where it likes, and ends with [`GpuStep::captured`]. From then on a step of as many sequences is: begin, let the
//! stream wait for the cache's, launch the graph, let the cache's stream wait for it, [`GpuStep::replayed`].
use super::core::Core;
use super::ordered;
use super::policy::Rule;
use super::published;
use super::record::Shape;
use super::step::{GpuStep, Progress};
use crate::Error;
use std::sync::Arc;

/// What a step of [`GpuStep::captured`] had recorded. It keeps the memory that the graph names: drop it after the graph.
///
/// The graph serves every step of the same number of sequences with as many tokens each, whichever they are and however long.
#[derive(Debug)]
pub struct GpuCapture {
    core: Arc<Core>,
    shape: Shape,
    rule: Rule,
    attended: Vec<bool>,
}

impl GpuStep<'_> {
    /// Ends the part of a recording that is the cache's: with it go the certificates' launch, where there is a ring of them, and the launch that codes
    /// blocks which a step has filled. The cache's stream
    /// is to be joined by the one that began to record after this call. The step is over: dropping it leaves no trace in its sequences.
    ///
    /// # Errors
    /// The cache's stream is not recording, a layer was not appended, a chunk of several tokens other than drafts of one length; the driver's.
    pub fn captured(&mut self) -> Result<GpuCapture, Error> {
        let shape = self.recordable(0)?;
        let core = Arc::clone(&self.cache.core);
        if !core.queue.stream().capturing()? {
            return Err(Error::Order {
                layer: 0,
                why: "the cache's stream is not recording: it waits for no stream that is",
            });
        }
        if let Some(layer) = self.progress.iter().position(|p| !p.is_appended()) {
            return Err(Error::Order { layer, why: "the recording ended before the layer was appended" });
        }
        core.join()?;
        if let Some(layer) = core.owing() {
            return Err(Error::Order { layer, why: "the recording ended before the copies of a plan that failed" });
        }
        let attended: Vec<bool> = self.progress.iter().map(|p| *p == Progress::Attended).collect();
        published::publish(&core, self.whose(), self.rule, attended.iter().copied())?;
        core.close(self.seqs)?;
        // A recording serves sequences of any length.
        core.close_drafts(self.drafting.map_or(0, |_| self.parts.len()))?;
        // Nothing of it ran: it must not be finished.
        self.progress.fill(Progress::Failed);
        Ok(GpuCapture { core, shape, rule: self.rule, attended })
    }

    /// Says that the caller has launched a graph that holds `capture`, behind what this step had enqueued before, and that the cache's stream
    /// waits for it. Where that is not so, the new tokens are not what is attended from now on.
    ///
    /// # Errors
    /// A step that began otherwise, or a capture of another cache, batch or policy: nothing changed.
    pub fn replayed(&mut self, capture: &GpuCapture) -> Result<(), Error> {
        self.check_replay(&capture.core, capture.shape, capture.rule)?;
        ordered::tell_pages(self.cache, self.on_device(), 0..self.progress.len())?;
        for (progress, attended) in self.progress.iter_mut().zip(&capture.attended) {
            *progress = if *attended { Progress::Attended } else { Progress::Appended };
        }
        self.count_published();
        Ok(())
    }
}
