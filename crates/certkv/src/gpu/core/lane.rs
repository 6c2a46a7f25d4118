//! Plans beside attention: a stream of their own, joined before anything else may touch what they choose.
use super::Core;
use crate::Error;
use certkv_core::planted;
use core::sync::atomic::Ordering;

impl Core {
    /// Whether attention of the layer leaves the choice of the next step's sides to a call of its own. Not where originals may move meanwhile; and residual
    /// planes are not planned at all.
    pub(in crate::gpu) fn plans_apart(&self, layer: usize) -> bool {
        let kit = self.kit(layer);
        self.lane.is_some() && !kit.exact && kit.corrects.is_none() && !self.sizes.spills(layer)
    }

    /// Enqueues on the lane, behind what the queue has been given so far, a plan for a batch, and its copies. Nothing where one is on its way.
    pub(in crate::gpu) fn plan_beside(&self, layer: usize, seqs: usize) -> Result<(), Error> {
        let Some(lane) = self.lane.as_ref().filter(|_| seqs > 0 && !self.is_planning(layer)) else { return Ok(()) };
        lane.follow(&self.queue)?;
        self.planning[layer].store(true, Ordering::Relaxed);
        self.plan_on(lane, layer, 0, seqs, true)?;
        self.lends(layer, false);
        Ok(())
    }

    /// Whether attention of the layer has to wait for the lane.
    pub(in crate::gpu) fn is_planning(&self, layer: usize) -> bool {
        self.planning[layer].load(Ordering::Relaxed)
    }

    /// Has the queue wait for all plans on the lane. Nothing where there are none.
    ///
    /// # Errors
    /// The driver's: plans are still to be joined.
    pub(in crate::gpu) fn join(&self) -> Result<(), Error> {
        let Some(lane) = self.lane.as_ref().filter(|_| (0..self.sizes.layers).any(|layer| self.is_planning(layer)))
        else {
            return Ok(());
        };
        if !planted!(B29) {
            self.queue.follow(lane)?;
        }
        self.joined();
        Ok(())
    }

    /// The same at the end of a step that is rolled back: what is done between steps does not look at the lane.
    pub(in crate::gpu) fn leave_lane(&self) {
        if self.join().is_err() && self.lane.as_ref().is_some_and(|lane| lane.finish().is_ok()) {
            self.joined();
        }
    }

    fn joined(&self) {
        self.planning.iter().for_each(|layer| layer.store(false, Ordering::Relaxed));
    }
}
