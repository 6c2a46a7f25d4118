//! What orders operations: guards, copies, records, waits and the host's observations.
use crate::arena::ArenaCore;
use crate::copy::{Plan, QueuedCopy};
use crate::error::{Access, DeviceError};
use crate::fence::Fence;
use crate::sim::device::{SimDevice, State};
use crate::sim::schedule::{Completion, Op, Schedule};
use crate::stream::Stream;
use certkv_core::fail_point;
use certkv_core::sync::Arc;
use certkv_core::sync::atomic::Ordering;

const HOST: u32 = 0;

impl Schedule {
    /// Starts an operation of `stream`, which is ordered after everything the host had seen when it enqueued it.
    fn begin(&mut self, stream: u32) -> u64 {
        self.report.ops += 1;
        if stream == HOST {
            return self.queues[0].clock.tick(HOST);
        }
        let (host, others) = self.queues.split_at_mut(1);
        let clock = &mut others[stream as usize - 1].clock;
        clock.join(&host[0].clock);
        clock.tick(stream)
    }

    /// The host saw a completion: what it does next is ordered after it.
    fn host_saw(&mut self, completion: &Completion) {
        self.queues[0].clock.join(&completion.clock);
    }

    /// Checks accesses of the operation `at` of `stream` against the slots' histories, and notes them if all are
    /// ordered.
    fn check(&mut self, stream: u32, at: u64, touched: &[(&ArenaCore, u32, Access)]) -> Result<(), DeviceError> {
        let later = self.queues[stream as usize].name();
        for &(arena, slot, access) in touched {
            let Some(history) = &arena.history else { continue };
            let missed = history.lock()[slot as usize].unordered(access, &self.queues[stream as usize].clock);
            if let Some(epoch) = missed {
                return Err(DeviceError::Unordered {
                    arena: arena.id,
                    slot,
                    earlier: self.queues[epoch.stream as usize].name(),
                    earlier_access: epoch.access,
                    later,
                    later_access: access,
                });
            }
        }
        for &(arena, slot, access) in touched {
            if let Some(history) = &arena.history {
                history.lock()[slot as usize].note(access, stream, at);
            }
        }
        Ok(())
    }
}

impl State {
    /// Counts the finding in `result`, if it is one.
    fn counted<T>(&mut self, result: Result<T, DeviceError>) -> Result<T, DeviceError> {
        if let Err(error) = &result {
            self.schedule.count(error);
        }
        result
    }
}

impl SimDevice {
    /// Takes the borrow word of a slot for an access by `stream`, with everything ordered before it run.
    #[inline]
    pub(crate) fn acquire(
        &self,
        arena: &ArenaCore,
        slot: u32,
        stream: &Stream,
        access: Access,
        expected: Option<u64>,
    ) -> Result<(), DeviceError> {
        if arena.device != stream.device.id() {
            return Err(DeviceError::Foreign);
        }
        arena.check_slot(slot)?;
        if self.tracks() {
            return self.acquire_tracked(arena, slot, stream.index, access, expected);
        }
        take_tagged(arena, slot, access, expected)
    }

    /// As [`SimDevice::acquire`] for an access by the host itself.
    pub(crate) fn acquire_for_host(&self, arena: &ArenaCore, slot: u32) -> Result<(), DeviceError> {
        arena.check_slot(slot)?;
        if self.tracks() {
            return self.acquire_tracked(arena, slot, HOST, Access::Fill, None);
        }
        arena.take(slot, Access::Fill)
    }

    #[cold]
    fn acquire_tracked(
        &self,
        arena: &ArenaCore,
        slot: u32,
        stream: u32,
        access: Access,
        expected: Option<u64>,
    ) -> Result<(), DeviceError> {
        let mut state = self.lock();
        state.schedule.chance();
        state.schedule.drain(stream);
        let at = state.schedule.begin(stream);
        let taken = take_tagged(arena, slot, access, expected).and_then(|()| {
            let ordered = state.schedule.check(stream, at, &[(arena, slot, access)]);
            if ordered.is_err() {
                arena.give(slot, access);
            }
            ordered
        });
        state.counted(taken)
    }

    pub(crate) fn enqueue_copy(
        &self,
        stream: &Stream,
        from: &Arc<ArenaCore>,
        to: &Arc<ArenaCore>,
        plan: Plan,
    ) -> Result<(), DeviceError> {
        if stream.device.id() != self.id() {
            return Err(DeviceError::Foreign);
        }
        if !self.tracks() {
            return plan.run(from, to);
        }
        let mut state = self.lock();
        state.schedule.chance();
        let at = state.schedule.begin(stream.index);
        let touched = [(&**from, plan.src_slot, Access::CopyFrom), (&**to, plan.dst_slot, Access::CopyTo)];
        let ordered = state.schedule.check(stream.index, at, &touched);
        state.counted(ordered)?;
        if self.defers() {
            let copy = QueuedCopy { from: from.clone(), to: to.clone(), plan };
            state.schedule.push(stream.index, Op::Copy(copy));
            state.schedule.chance();
            return Ok(());
        }
        let ran = plan.run(from, to);
        state.counted(ran)
    }

    pub(crate) fn record(&self, stream: &Stream) -> Result<Fence, DeviceError> {
        fail_point!("device.event")?;
        if !self.tracks() {
            return Ok(Fence { device: self.clone(), stamp: self.next_stamp(), completion: None });
        }
        no_live_guards(stream)?;
        let mut state = self.lock();
        state.schedule.chance();
        state.schedule.begin(stream.index);
        // Under the lock, so that the list of outstanding fences stays sorted by stamp.
        let stamp = self.next_stamp();
        let completion = state.schedule.record(stream.index, stamp, self.defers() && stream.index != HOST);
        let State { schedule, outstanding } = &mut *state;
        outstanding.push(completion.clone(), &schedule.queues[0].clock);
        Ok(Fence { device: self.clone(), stamp, completion: Some(completion) })
    }

    pub(crate) fn wait(&self, stream: &Stream, fence: &Fence) -> Result<(), DeviceError> {
        fail_point!("device.event")?;
        if fence.device.id() != self.id() {
            return Err(DeviceError::Foreign);
        }
        let Some(completion) = &fence.completion else { return Ok(()) };
        let mut state = self.lock();
        state.schedule.chance();
        if stream.index == HOST {
            state.schedule.finish(completion);
        } else if !completion.done() {
            state.schedule.push(stream.index, Op::Wait(completion.clone()));
        }
        state.schedule.begin(stream.index);
        state.schedule.queues[stream.index as usize].clock.join(&completion.clock);
        Ok(())
    }

    pub(crate) fn drain(&self, stream: &Stream) {
        if self.defers() {
            let mut state = self.lock();
            state.schedule.chance();
            state.schedule.drain(stream.index);
        }
    }

    pub(crate) fn poll(&self, fence: &Fence) -> bool {
        let Some(completion) = &fence.completion else { return true };
        let mut state = self.lock();
        state.schedule.chance();
        let done = completion.done();
        if done {
            state.schedule.host_saw(completion);
        }
        done
    }

    pub(crate) fn finish(&self, fence: &Fence) {
        if let Some(completion) = &fence.completion {
            let mut state = self.lock();
            state.schedule.finish(completion);
            state.schedule.host_saw(completion);
        }
    }

    pub(crate) fn outcome(&self, fence: &Fence) -> Result<(), DeviceError> {
        fence.completion.as_ref().map_or(Ok(()), |c| c.outcome())
    }

    /// Whether the fence with this stamp has passed. A stamp that was never given out has not, with two exceptions:
    /// 0 stands for no use at all and has always passed; [`SimDevice::IDLE`] passes when nothing is in flight.
    pub fn passed(&self, stamp: u64) -> bool {
        if stamp == Self::IDLE {
            return self.is_idle();
        }
        if stamp > self.last_stamp() {
            return false;
        }
        if !self.tracks() {
            return true;
        }
        let mut state = self.lock();
        state.schedule.chance();
        let State { schedule, outstanding } = &mut *state;
        match outstanding.find(stamp) {
            Ok(completion) => {
                let done = completion.done();
                if done {
                    schedule.host_saw(&completion);
                }
                done
            }
            Err(forgotten) => {
                schedule.queues[0].clock.join(forgotten);
                true
            }
        }
    }

    /// Whether every stream has run everything and, on checked devices, no guard is alive. If so, the host has seen it.
    pub fn is_idle(&self) -> bool {
        if !self.tracks() {
            return true;
        }
        let mut state = self.lock();
        let schedule = &mut state.schedule;
        schedule.chance();
        let idle = schedule.is_idle();
        if idle {
            for stream in 1..schedule.queues.len() {
                let clock = schedule.queues[stream].clock.clone();
                schedule.queues[0].clock.join(&clock);
            }
        }
        idle
    }

    pub(crate) fn synchronize_stream(&self, stream: &Stream) -> Result<(), DeviceError> {
        no_live_guards(stream)?;
        if !self.tracks() {
            return Ok(());
        }
        let mut state = self.lock();
        let schedule = &mut state.schedule;
        schedule.drain(stream.index);
        let clock = schedule.queues[stream.index as usize].clock.clone();
        schedule.queues[0].clock.join(&clock);
        schedule.take_failures(stream.index)
    }

    /// Waits on the host until every stream has run everything.
    ///
    /// # Errors
    /// `GuardsLive` on checked devices, before anything is run. `CopyFailed` names the first stream with failed copies that no fence has reported; everything has run all the
    /// same.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        if !self.tracks() {
            return Ok(());
        }
        let mut state = self.lock();
        let schedule = &mut state.schedule;
        if let Some((stream, guards)) = schedule.queues.iter().map(|q| (q.name(), q.guards())).find(|&(_, n)| n > 0) {
            return Err(DeviceError::GuardsLive { stream, guards });
        }
        let mut outcome = Ok(());
        for stream in 0..schedule.queues.len() as u32 {
            schedule.drain(stream);
            let clock = schedule.queues[stream as usize].clock.clone();
            schedule.queues[0].clock.join(&clock);
            outcome = outcome.and(schedule.take_failures(stream));
        }
        outcome
    }
}

fn take_tagged(arena: &ArenaCore, slot: u32, access: Access, expected: Option<u64>) -> Result<(), DeviceError> {
    arena.take(slot, access)?;
    let tagged = expected.map_or(Ok(()), |tag| arena.check_tag(slot, tag));
    if tagged.is_err() {
        arena.give(slot, access);
    }
    tagged
}

/// A fence stands for finished accesses; compute here is finished when its guards are dropped.
fn no_live_guards(stream: &Stream) -> Result<(), DeviceError> {
    match stream.live.as_ref().map_or(0, |live| live.load(Ordering::Relaxed)) {
        0 => Ok(()),
        guards => Err(DeviceError::GuardsLive { stream: stream.name, guards }),
    }
}
