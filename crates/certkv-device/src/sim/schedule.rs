//! The queues of an adversarial device and the dice that run them.
use crate::copy::QueuedCopy;
use crate::error::DeviceError;
use crate::order::VectorClock;
use crate::sim::report::CheckReport;
use certkv_core::hash::splitmix64;
use certkv_core::sync::Arc;
use certkv_core::sync::atomic::{AtomicU32, Ordering};
use std::collections::VecDeque;

const PENDING: u32 = u32::MAX;

/// State of a recorded fence.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) stamp: u64,
    pub(crate) stream: u32,
    pub(crate) name: &'static str,
    /// Operations of the stream up to and including the record.
    position: u64,
    /// What the fence is ordered after.
    pub(crate) clock: VectorClock,
    /// `PENDING`, or the number of copies that failed since the stream's last fence.
    failures: AtomicU32,
}

impl Completion {
    pub(crate) fn done(&self) -> bool {
        self.failures.load(Ordering::Acquire) != PENDING
    }

    pub(crate) fn outcome(&self) -> Result<(), DeviceError> {
        match self.failures.load(Ordering::Acquire) {
            0 | PENDING => Ok(()),
            copies => Err(DeviceError::CopyFailed { stream: self.name, copies }),
        }
    }

    fn finish(&self, failures: u32) {
        self.failures.store(failures, Ordering::Release);
    }
}

#[derive(Debug)]
pub(crate) enum Op {
    Copy(QueuedCopy),
    Record(Arc<Completion>),
    Wait(Arc<Completion>),
}

/// One stream: what it is ordered after, and what still has to run.
#[derive(Debug)]
pub(crate) struct Queue {
    name: &'static str,
    pub(crate) clock: VectorClock,
    ops: VecDeque<Op>,
    executed: u64,
    /// Copies that failed since the last fence.
    failures: u32,
    /// Guards alive on the stream; checked devices only.
    live: Option<Arc<AtomicU32>>,
}

impl Queue {
    pub(crate) fn new(name: &'static str, live: Option<Arc<AtomicU32>>) -> Self {
        Self { name, clock: VectorClock::default(), ops: VecDeque::new(), executed: 0, failures: 0, live }
    }

    /// Guards alive on the stream, as far as they are counted.
    pub(crate) fn guards(&self) -> u32 {
        self.live.as_ref().map_or(0, |live| live.load(Ordering::Relaxed))
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    fn end(&self) -> u64 {
        self.executed + self.ops.len() as u64
    }

    fn blocked(&self) -> bool {
        matches!(self.ops.front(), Some(Op::Wait(completion)) if !completion.done())
    }
}

/// All streams. Stream 0 is the host.
#[derive(Debug)]
pub(crate) struct Schedule {
    pub(crate) queues: Vec<Queue>,
    pub(crate) report: CheckReport,
    pending: usize,
    dice: u64,
    /// Chance in 256 that one more operation runs whenever the scheduler is asked.
    appetite: u64,
}

impl Schedule {
    pub(crate) fn new(seed: u64) -> Self {
        let dice = splitmix64(seed);
        // Lazy machines expose missing waits, eager ones expose early reuse; a seed picks one of five tempers.
        let appetite = [8, 48, 128, 208, 248][(dice % 5) as usize];
        let report = CheckReport::default();
        Self { queues: vec![Queue::new("host", None)], report, pending: 0, dice, appetite }
    }

    fn roll(&mut self) -> u64 {
        self.dice = splitmix64(self.dice);
        self.dice
    }

    /// A fence at the end of `stream`; done at once where nothing is queued by design (`deferred == false`).
    pub(crate) fn record(&mut self, stream: u32, stamp: u64, deferred: bool) -> Arc<Completion> {
        let queue = &mut self.queues[stream as usize];
        let completion = Arc::new(Completion {
            stamp,
            stream,
            name: queue.name,
            position: queue.end() + 1,
            clock: queue.clock.clone(),
            failures: AtomicU32::new(PENDING),
        });
        if deferred {
            self.push(stream, Op::Record(completion.clone()));
        } else {
            completion.finish(core::mem::take(&mut queue.failures));
        }
        completion
    }

    pub(crate) fn push(&mut self, stream: u32, op: Op) {
        self.queues[stream as usize].ops.push_back(op);
        self.pending += 1;
    }

    /// Gives the machine a chance: runs some legal operations, or none.
    pub(crate) fn chance(&mut self) {
        while self.pending > 0 {
            let roll = self.roll();
            if roll & 0xff >= self.appetite {
                return;
            }
            let n = self.queues.len();
            let first = (roll >> 8) as usize % n;
            let ready = (0..n).map(|i| (first + i) % n).find(|&i| {
                let queue = &self.queues[i];
                !queue.ops.is_empty() && !queue.blocked()
            });
            // The oldest pending operation is never blocked, so something is ready while anything is pending.
            let Some(stream) = ready else { return };
            self.step(stream as u32);
        }
    }

    /// Runs the head of a stream that is neither empty nor blocked.
    fn step(&mut self, stream: u32) {
        let queue = &mut self.queues[stream as usize];
        let Some(op) = queue.ops.pop_front() else { return };
        queue.executed += 1;
        self.pending -= 1;
        self.report.deferred += 1;
        match op {
            Op::Copy(copy) => {
                if let Err(error) = copy.plan.run(&copy.from, &copy.to) {
                    queue.failures += 1;
                    self.report.failed_copies += 1;
                    self.count(&error);
                }
            }
            Op::Record(completion) => completion.finish(core::mem::take(&mut queue.failures)),
            Op::Wait(_) => {}
        }
    }

    /// Whether nothing is queued and no guard is alive.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending == 0 && self.queues.iter().all(|queue| queue.guards() == 0)
    }

    /// Runs everything ordered before the end of `stream`, and nothing more.
    pub(crate) fn drain(&mut self, stream: u32) {
        let end = self.queues[stream as usize].end();
        self.run_until(stream, end);
    }

    /// Runs what is needed for `completion`.
    pub(crate) fn finish(&mut self, completion: &Completion) {
        self.run_until(completion.stream, completion.position);
    }

    /// Terminates: a wait names a fence that was enqueued before it, so each deeper goal is older than the last.
    fn run_until(&mut self, stream: u32, position: u64) {
        if self.queues[stream as usize].executed >= position {
            return;
        }
        let mut goals = vec![(stream, position)];
        while let Some(&(stream, position)) = goals.last() {
            let queue = &self.queues[stream as usize];
            if queue.executed >= position || queue.ops.is_empty() {
                goals.pop();
                continue;
            }
            match queue.ops.front() {
                Some(Op::Wait(on)) if !on.done() => goals.push((on.stream, on.position)),
                _ => self.step(stream),
            }
        }
    }

    /// Failures of `stream` that no fence has reported; reports them.
    pub(crate) fn take_failures(&mut self, stream: u32) -> Result<(), DeviceError> {
        let queue = &mut self.queues[stream as usize];
        match core::mem::take(&mut queue.failures) {
            0 => Ok(()),
            copies => Err(DeviceError::CopyFailed { stream: queue.name, copies }),
        }
    }

    /// Counts a finding.
    pub(crate) fn count(&mut self, error: &DeviceError) {
        match error {
            DeviceError::Unordered { .. } => self.report.unordered += 1,
            DeviceError::WrongContent { .. } => self.report.wrong_content += 1,
            DeviceError::Conflict { .. } => self.report.conflicts += 1,
            _ => {}
        }
    }
}
