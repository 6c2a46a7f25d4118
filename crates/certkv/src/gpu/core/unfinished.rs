//! What an attention leaves behind that was not enqueued to its end: copies that are owed, heads on a list, sides that were lent.
use super::{Choice, Core};
use crate::Error;
use certkv_kernel::cuda::args::Sides;
use certkv_kernel::cuda::launch;
use certkv_kernel::cuda::queue::Queue;
use core::sync::atomic::Ordering;

impl Core {
    /// Enqueues a plan and the copies that it lists.
    pub(in crate::gpu) fn plan(&self, plan: &Choice<'_>) -> Result<(), Error> {
        self.choose(&self.queue, plan)?;
        self.gather_owed(&self.queue, plan.layer)
    }

    /// Enqueues a plan alone, on the queue or on the lane: the layer then owes the copies.
    pub(super) fn choose(&self, on: &Queue, plan: &Choice<'_>) -> Result<(), Error> {
        self.select(on, plan)?;
        // From here on words name slots that have yet to be filled.
        self.owed[plan.layer].store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Enqueues the copies that the layer's plan listed, where they are owed.
    pub(super) fn gather_owed(&self, on: &Queue, layer: usize) -> Result<(), Error> {
        if self.owes(layer) {
            launch::gather(on, &self.kit(layer).gather, &self.layer_memory(layer)?)?;
            self.owed[layer].store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether the layer's plan has listed copies that nobody has enqueued yet.
    pub(super) fn owes(&self, layer: usize) -> bool {
        self.owed[layer].load(Ordering::Relaxed)
    }

    /// A layer that owes copies.
    pub(in crate::gpu) fn owing(&self) -> Option<usize> {
        (0..self.owed.len()).find(|layer| self.owes(*layer))
    }

    /// Says that a repair lends sides of a layer, or that a plan has ended that.
    pub(in crate::gpu) fn lends(&self, layer: usize, lent: bool) {
        self.lent[layer].store(lent, Ordering::Relaxed);
    }

    /// Enqueues that nothing is lent any more, where something may be and should not: what an attention left that was not enqueued to its end; and,
    /// where originals have `moved`, what steps of refinable formats lent, which have no plan. It is read from codes until a repair lends it anew.
    /// Whether there was something.
    pub(in crate::gpu) fn end_loans(&self, layer: usize, moved: bool) -> Result<bool, Error> {
        let kept = self.kit(layer).corrects.is_some() && moved;
        if !kept && !self.lent[layer].load(Ordering::Relaxed) {
            return Ok(false);
        }
        let (s, m) = (&self.sizes, &self.sizes.memory);
        let half = s.pages_of(layer) * s.kv_heads * size_of::<Sides>();
        let at = 4 * (layer * m.words + m.sides.start) + half;
        self.memory.fill(self.queue.stream(), at, half, 0)?;
        self.lends(layer, false);
        Ok(true)
    }

    /// Finishes what attention of any layer left.
    pub(in crate::gpu) fn settle_all(&self) -> Result<(), Error> {
        (0..self.sizes.layers).try_for_each(|layer| self.settle(layer))
    }

    /// Says that the list of heads to be corrected is in use, or empty again.
    pub(in crate::gpu) fn correcting(&self, listed: bool) {
        self.listed.store(listed, Ordering::Relaxed);
    }

    /// Has the queue wait for a plan of the layer that is on the lane, and finishes what an attention left that was not enqueued to its end: copies that a plan of the layer counts on, without which nothing may
    /// be read from scratch, nor their list be emptied; and heads on the list of corrections. To make copies twice does no harm.
    pub(in crate::gpu) fn settle(&self, layer: usize) -> Result<(), Error> {
        if self.is_planning(layer) {
            self.join()?;
        }
        let (owed, listed) = (self.owed[layer].load(Ordering::Relaxed), self.listed.load(Ordering::Relaxed));
        if !owed && !listed {
            return Ok(());
        }
        if self.queue.stream().capturing()? {
            return Err(Error::Order {
                layer,
                why: "what an attention that failed left would be recorded, not finished",
            });
        }
        if listed {
            self.empty_corrections()?;
            self.correcting(false);
        }
        self.gather_owed(&self.queue, layer)
    }
}
