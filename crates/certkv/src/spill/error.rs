//! Originals that could not be had.
use crate::SequenceId;
use crate::store::StoreError;
use certkv_device::DeviceError;
use core::fmt;
use core::time::Duration;

/// Originals of a block that lie in the store and could not be read. Whatever does not need them works; asking again is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchError {
    /// Whose; `None` for cached prefixes, which are no sequence's.
    pub sequence: Option<SequenceId>,
    /// Layer.
    pub layer: usize,
    /// Block.
    pub block: usize,
    /// Why.
    pub cause: FetchCause,
}

/// Why originals could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FetchCause {
    /// The store's reason.
    Store(StoreError),
    /// The store had not answered in time.
    Late {
        /// The deadline.
        after: Duration,
    },
    /// No room in host memory to read them into.
    NoRoom,
    /// The device refused to have them written there.
    Device(DeviceError),
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sequence, layer, block, cause } = self;
        match sequence {
            Some(id) => write!(f, "{id}: ")?,
            None => f.write_str("cached prefix: ")?,
        }
        write!(f, "originals of block {block} in layer {layer}: ")?;
        match cause {
            FetchCause::Store(error) => error.fmt(f),
            FetchCause::Late { after } => write!(f, "the store did not answer in {after:?}"),
            FetchCause::Device(error) => write!(f, "device: {error}"),
            FetchCause::NoRoom => f.write_str("no room in host memory to read them into"),
        }
    }
}
impl std::error::Error for FetchError {}
