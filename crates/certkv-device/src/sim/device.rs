//! The device handle: arenas, streams, stamps.
use crate::arena::Arena;
use crate::error::DeviceError;
use crate::memory::HostMemory;
use crate::order::VectorClock;
use crate::sim::report::CheckReport;
use crate::sim::schedule::{Completion, Queue, Schedule};
use crate::stream::Stream;
use certkv_core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use certkv_core::sync::{Arc, Mutex, MutexGuard};
use core::fmt;
use std::collections::VecDeque;

/// When operations run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// When they are enqueued: the production path on the CPU.
    Eager,
    /// Copies, records and waits are queued and run at random legal times: a test machine.
    Adversarial {
        /// Seed of the schedule.
        seed: u64,
    },
}

/// Options of a [`SimDevice`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimOptions {
    /// When operations run.
    pub mode: Mode,
    /// Whether the happens-before checker is on.
    pub check: bool,
}

impl Default for SimOptions {
    /// Eager; checked in debug builds.
    fn default() -> Self {
        Self { mode: Mode::Eager, check: cfg!(debug_assertions) }
    }
}

/// Fences that the host has not been seen to know about.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    fences: VecDeque<Arc<Completion>>,
    /// Clocks of passed fences that were dropped from the list because it grew too long. Who asks for one of them is
    /// taken to be ordered after all: the checker may then miss a defect, but reports none that is not there.
    forgotten: VectorClock,
}

/// Length at which passed fences that nobody asked for are forgotten.
const LONGEST: usize = 4096;

impl Outstanding {
    pub(crate) fn push(&mut self, completion: Arc<Completion>, host: &VectorClock) {
        while let Some(front) = self.fences.front() {
            let known = host.covers(&front.clock);
            if !front.done() || !(known || self.fences.len() >= LONGEST) {
                break;
            }
            if !known {
                self.forgotten.join(&front.clock);
            }
            self.fences.pop_front();
        }
        self.fences.push_back(completion);
    }

    /// The fence with this stamp, or what is left of it.
    pub(crate) fn find(&self, stamp: u64) -> Result<Arc<Completion>, &VectorClock> {
        match self.fences.binary_search_by_key(&stamp, |c| c.stamp) {
            Ok(i) => Ok(self.fences[i].clone()),
            Err(_) => Err(&self.forgotten),
        }
    }
}

/// Everything behind the lock of a tracked device.
pub(crate) struct State {
    pub(crate) schedule: Schedule,
    pub(crate) outstanding: Outstanding,
}

struct DeviceCore {
    options: SimOptions,
    memory: Option<std::sync::Arc<dyn HostMemory>>,
    id: u64,
    stamps: AtomicU64,
    arenas: AtomicU32,
    state: Mutex<State>,
}

/// A simulated device. Clones name the same device.
///
/// An eager, unchecked device takes no lock and allocates nothing after its arenas and streams exist.
#[derive(Clone)]
pub struct SimDevice(Arc<DeviceCore>);

impl fmt::Debug for SimDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimDevice #{} {:?}", self.0.id, self.0.options)
    }
}

/// Devices are told apart by number, so that queued copies need not keep their device alive.
static DEVICES: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(1);

impl SimDevice {
    /// A stamp that has passed only while nothing is in flight: for owners that failed to record a fence.
    pub const IDLE: u64 = u64::MAX;

    /// A device without memory or streams (but for the host's).
    pub fn new(options: SimOptions) -> Self {
        Self::with_memory(options, None)
    }

    /// The same, whose arenas lie in memory of the embedder's.
    pub fn with_memory(options: SimOptions, memory: Option<std::sync::Arc<dyn HostMemory>>) -> Self {
        let seed = match options.mode {
            Mode::Eager => 0,
            Mode::Adversarial { seed } => seed,
        };
        let state = State { schedule: Schedule::new(seed), outstanding: Outstanding::default() };
        Self(Arc::new(DeviceCore {
            options,
            memory,
            id: DEVICES.fetch_add(1, Ordering::Relaxed),
            stamps: AtomicU64::new(0),
            arenas: AtomicU32::new(0),
            state: Mutex::new(state),
        }))
    }

    /// Options given at creation.
    pub fn options(&self) -> SimOptions {
        self.0.options
    }

    /// `slots` slots of `slot_bytes` bytes: zeroed, 64-byte aligned each, mapped when first touched.
    ///
    /// # Errors
    /// `ArenaSize` if the size is zero or overflows, `OutOfMemory`, `Injected`.
    pub fn arena(&self, name: &'static str, slots: u32, slot_bytes: usize) -> Result<Arena, DeviceError> {
        Arena::new(self, name, slots, slot_bytes)
    }

    /// A new stream, ordered after nothing but what the host has seen. Streams live as long as the device.
    pub fn stream(&self, name: &'static str) -> Stream {
        let live = self.checks().then(|| Arc::new(AtomicU32::new(0)));
        let mut state = self.lock();
        let index = state.schedule.queues.len() as u32;
        state.schedule.queues.push(Queue::new(name, live.clone()));
        drop(state);
        Stream { device: self.clone(), index, name, live }
    }

    /// The host as a stream: guards taken on it are ordered after every completion that the host has seen.
    /// Its guards are not counted: the host's own accesses end when it drops them.
    pub fn host(&self) -> Stream {
        Stream { device: self.clone(), index: 0, name: "host", live: None }
    }

    /// Counters of the checker and the schedule.
    pub fn report(&self) -> CheckReport {
        self.lock().schedule.report
    }

    /// Highest stamp given out; 0 before the first fence.
    pub fn last_stamp(&self) -> u64 {
        self.0.stamps.load(Ordering::Relaxed)
    }

    pub(crate) fn memory(&self) -> Option<&std::sync::Arc<dyn HostMemory>> {
        self.0.memory.as_ref()
    }

    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    pub(crate) fn checks(&self) -> bool {
        self.0.options.check
    }

    pub(crate) fn defers(&self) -> bool {
        self.0.options.mode != Mode::Eager
    }

    /// Whether anything has to be kept track of at all.
    pub(crate) fn tracks(&self) -> bool {
        self.checks() || self.defers()
    }

    pub(crate) fn next_stamp(&self) -> u64 {
        self.0.stamps.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn next_arena(&self) -> u32 {
        self.0.arenas.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }
}
