//! Plans beside attention: a stream of their own, joined before anything else may touch what they choose.
use super::{Choice, Core};
use crate::Error;
use certkv_core::planted;
use core::sync::atomic::{AtomicU8, Ordering};

/// How far the plan of a layer on the lane has come, since the queue was last told to wait for it.
#[derive(Debug, Default)]
pub(super) struct Planning(AtomicU8);

impl Planning {
    const NOTHING: u8 = 0;
    /// The lane has to be joined.
    const FOLLOWS: u8 = 1;
    /// And the choice is on it; copies are if the layer does not owe them.
    const CHOSEN: u8 = 2;

    fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, to: u8) {
        self.0.store(to, Ordering::Relaxed);
    }
}

impl Core {
    /// Whether attention of the layer leaves the choice of the next step's sides to a call of its own. Not where originals may move meanwhile; and residual
    /// planes are not planned at all.
    pub(in crate::gpu) fn plans_apart(&self, layer: usize) -> bool {
        let kit = self.kit(layer);
        self.lane.is_some() && !kit.exact && kit.corrects.is_none() && !self.sizes.spills(layer)
    }

    /// Enqueues on the lane, behind what the queue has been given so far, a plan for a batch, and its copies; what of it is not there yet, where one was begun.
    pub(in crate::gpu) fn plan_beside(&self, layer: usize, seqs: usize) -> Result<(), Error> {
        let Some(lane) = self.lane.as_ref().filter(|_| seqs > 0) else { return Ok(()) };
        let planning = &self.planning[layer];
        if planning.get() == Planning::CHOSEN && !self.owes(layer) {
            return Ok(());
        }
        let turn = lane.turn(&self.queue)?;
        if planning.get() != Planning::CHOSEN {
            planning.set(Planning::FOLLOWS);
            self.choose(&turn, &Choice::plan(layer, 0, seqs, true))?;
            planning.set(Planning::CHOSEN);
            self.lends(layer, false);
        }
        self.gather_owed(&turn, layer)
    }

    /// Whether attention of the layer has to wait for the lane.
    pub(in crate::gpu) fn is_planning(&self, layer: usize) -> bool {
        self.planning[layer].get() != Planning::NOTHING
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
            self.queue.join(lane)?;
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
        self.planning.iter().for_each(|layer| layer.set(Planning::NOTHING));
    }
}
