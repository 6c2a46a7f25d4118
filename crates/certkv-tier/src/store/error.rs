//! What a store could not do, and with which key.
use super::key::StoreKey;
use super::seal::SealError;
use certkv_core::InjectedFault;
use core::fmt;

/// Why one item of a batch was not done. Unless a variant says otherwise the store holds under the key what it held
/// before.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// Nothing is stored under the key.
    NotFound {
        /// The key.
        key: StoreKey,
    },
    /// No room: the quota, the disk or the server's memory is used up.
    Full {
        /// The key.
        key: StoreKey,
        /// Bytes of the record, envelope included.
        bytes: u64,
        /// Bytes left of the quota; `None` if it was not the quota that refused.
        free: Option<u64>,
    },
    /// The back end failed or is gone. A remote one may have done a put or delete before its answer was lost; what a get
    /// finds then is whole all the same.
    Unavailable {
        /// The key.
        key: StoreKey,
        /// What the back end said.
        cause: String,
    },
    /// What lies under the key is not the page that was asked for. It stays there until it is overwritten or deleted.
    Corrupt {
        /// The key.
        key: StoreKey,
        /// What is wrong with it.
        reason: SealError,
    },
    /// A record longer than the store takes.
    TooLarge {
        /// The key.
        key: StoreKey,
        /// Bytes of the record, envelope included.
        bytes: u64,
        /// Bytes of the largest record.
        limit: u64,
    },
    /// The store was closed before a worker took the batch.
    Closed {
        /// The key.
        key: StoreKey,
    },
    /// The back end panicked; whether it did what was asked is unknown.
    Panicked {
        /// The key.
        key: StoreKey,
    },
    /// A fault point was armed by a test.
    Injected {
        /// The key.
        key: StoreKey,
        /// The fault.
        fault: InjectedFault,
    },
}

impl StoreError {
    /// The key concerned.
    pub fn key(&self) -> StoreKey {
        match self {
            Self::NotFound { key }
            | Self::Full { key, .. }
            | Self::Unavailable { key, .. }
            | Self::Corrupt { key, .. }
            | Self::TooLarge { key, .. }
            | Self::Closed { key }
            | Self::Panicked { key }
            | Self::Injected { key, .. } => *key,
        }
    }

    /// [`StoreError::Unavailable`] with the text of `cause`.
    pub fn unavailable(key: StoreKey, cause: impl fmt::Display) -> Self {
        Self::Unavailable { key, cause: cause.to_string() }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {}: ", self.key())?;
        match self {
            Self::NotFound { .. } => f.write_str("not stored"),
            Self::Full { bytes, free: Some(free), .. } => write!(f, "{bytes} bytes where the quota leaves {free}"),
            Self::Full { bytes, free: None, .. } => write!(f, "the back end has no room for {bytes} bytes"),
            Self::Unavailable { cause, .. } => write!(f, "back end unavailable: {cause}"),
            Self::Corrupt { reason, .. } => write!(f, "corrupt: {reason}"),
            Self::TooLarge { bytes, limit, .. } => write!(f, "{bytes} bytes where {limit} are the most"),
            Self::Closed { .. } => f.write_str("the store was closed"),
            Self::Panicked { .. } => f.write_str("the back end panicked"),
            Self::Injected { fault, .. } => fault.fmt(f),
        }
    }
}
impl std::error::Error for StoreError {}

/// A batch that was not taken. Nothing of it was begun.
#[must_use = "the batch inside was not submitted"]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Busy<T> {
    /// The batch, as it was given.
    pub batch: Vec<T>,
    /// Batches that were submitted and not drained.
    pub outstanding: usize,
    /// How many may be. 0 if the store is closed.
    pub limit: usize,
}

impl<T> fmt::Display for Busy<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.limit {
            0 => write!(f, "a batch of {} for a store that is closed", self.batch.len()),
            limit => write!(f, "{} batches outstanding where {limit} may be", self.outstanding),
        }
    }
}
impl<T: fmt::Debug> std::error::Error for Busy<T> {}

/// Workers that had not come back from the back end when closing gave up waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StillRunning {
    /// How many; each holds one batch.
    pub workers: usize,
}

impl fmt::Display for StillRunning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} workers are still inside the back end", self.workers)
    }
}
impl std::error::Error for StillRunning {}
