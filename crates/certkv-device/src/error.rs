//! Everything that can go wrong on a device, with the arena, slot and streams concerned.
use certkv_core::InjectedFault;
use core::fmt;

/// An arena in an error: its name and its number on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ArenaId {
    /// Name given at creation.
    pub name: &'static str,
    /// Number of the arena on its device, in order of creation.
    pub index: u32,
}

/// How a slot is touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// A read guard.
    Read,
    /// A write guard.
    Write,
    /// Source of a copy.
    CopyFrom,
    /// Destination of a copy.
    CopyTo,
    /// Poisoned or zeroed by the host.
    Fill,
}

impl Access {
    /// Whether the access changes the slot.
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::CopyTo | Self::Fill)
    }
}

/// Who holds a slot when an access is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// This many readers.
    Readers(u32),
    /// One writer.
    Writer,
}

/// Error of a device call. The call had no effect unless the variant says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceError {
    /// `slots * slot_bytes` is zero or does not fit the address space.
    ArenaSize {
        /// Name given.
        name: &'static str,
        /// Slots asked for.
        slots: u32,
        /// Bytes per slot asked for.
        slot_bytes: usize,
    },
    /// The system has no memory for an arena.
    OutOfMemory {
        /// Name given.
        name: &'static str,
        /// Bytes asked for.
        bytes: usize,
    },
    /// A slot index past the end of its arena.
    NoSuchSlot {
        /// The arena.
        arena: ArenaId,
        /// Slot given.
        slot: u32,
        /// Slots in the arena.
        slots: u32,
    },
    /// A byte range past the end of its slot, or reversed.
    OutOfRange {
        /// The arena.
        arena: ArenaId,
        /// First byte of the range.
        start: usize,
        /// End of the range; `usize::MAX` if it overflows.
        end: usize,
        /// Bytes in a slot.
        slot_bytes: usize,
    },
    /// A copy whose source and destination are one slot.
    SameSlot {
        /// The arena.
        arena: ArenaId,
        /// The slot.
        slot: u32,
    },
    /// Arena, stream or fence belong to different devices.
    Foreign,
    /// The slot is held by a guard or a running copy that excludes this access.
    Conflict {
        /// The arena.
        arena: ArenaId,
        /// The slot.
        slot: u32,
        /// Access that was refused.
        wanted: Access,
        /// Who holds the slot.
        held: Held,
    },
    /// No fence, wait or observed completion orders this access after an earlier conflicting one. Checked devices only.
    Unordered {
        /// The arena.
        arena: ArenaId,
        /// The slot.
        slot: u32,
        /// Stream of the earlier access.
        earlier: &'static str,
        /// Kind of the earlier access.
        earlier_access: Access,
        /// Stream of the refused access.
        later: &'static str,
        /// Kind of the refused access.
        later_access: Access,
    },
    /// The slot belongs to someone else.
    WrongContent {
        /// The arena.
        arena: ArenaId,
        /// The slot.
        slot: u32,
        /// Tag the caller expected.
        expected: u64,
        /// Tag of the slot.
        found: u64,
    },
    /// A fence was to be recorded, or a stream synchronised, while guards of the stream are alive. Checked devices only.
    GuardsLive {
        /// The stream.
        stream: &'static str,
        /// Guards alive.
        guards: u32,
    },
    /// Copies of the stream failed after they were enqueued; their destinations hold garbage.
    CopyFailed {
        /// The stream.
        stream: &'static str,
        /// Copies that failed since the stream's last fence.
        copies: u32,
    },
    /// A fault point was armed by a test.
    Injected(InjectedFault),
}

impl From<InjectedFault> for DeviceError {
    fn from(fault: InjectedFault) -> Self {
        Self::Injected(fault)
    }
}

impl fmt::Display for ArenaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "arena {}#{}", self.name, self.index)
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::CopyFrom => "copy from",
            Self::CopyTo => "copy to",
            Self::Fill => "fill",
        })
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ArenaSize { name, slots, slot_bytes } => {
                write!(f, "arena {name}: {slots} slots of {slot_bytes} bytes are empty or exceed the address space")
            }
            Self::OutOfMemory { name, bytes } => write!(f, "arena {name}: no memory for {bytes} bytes"),
            Self::NoSuchSlot { arena, slot, slots } => write!(f, "{arena}: slot {slot} of {slots}"),
            Self::OutOfRange { arena, start, end, slot_bytes } => {
                write!(f, "{arena}: bytes {start}..{end} of a slot of {slot_bytes} bytes")
            }
            Self::SameSlot { arena, slot } => write!(f, "{arena}: copy of slot {slot} onto itself"),
            Self::Foreign => write!(f, "arena, stream or fence of another device"),
            Self::Conflict { arena, slot, wanted, held } => match held {
                Held::Writer => write!(f, "{arena}: {wanted} of slot {slot} while a writer holds it"),
                Held::Readers(n) => write!(f, "{arena}: {wanted} of slot {slot} while {n} readers hold it"),
            },
            Self::Unordered { arena, slot, earlier, earlier_access, later, later_access } => write!(
                f,
                "{arena}: {later_access} of slot {slot} on stream {later} is not ordered after the {earlier_access} on \
                 stream {earlier}"
            ),
            Self::WrongContent { arena, slot, expected, found } => {
                write!(f, "{arena}: slot {slot} holds content {found:#x}, expected {expected:#x}")
            }
            Self::GuardsLive { stream, guards } => write!(f, "stream {stream}: fence with {guards} guards alive"),
            Self::CopyFailed { stream, copies } => write!(f, "stream {stream}: {copies} copies failed"),
            Self::Injected(fault) => fault.fmt(f),
        }
    }
}
impl std::error::Error for DeviceError {}
