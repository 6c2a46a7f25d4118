//! Records as files: one file a record, in 256 folders by the first byte of the key.
mod claim;
mod publish;
mod walk;

use super::backend::{Backend, Parts, record_bytes};
use super::error::StoreError;
use super::execute::injected;
use super::key::StoreKey;
use certkv_core::fail_point;
use certkv_core::sync::{Condvar, Mutex};
use claim::Books;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// What a put has waited for when it is reported done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// The file is whole to every process of this machine. After a loss of power pages may be missing or damaged; damaged
    /// ones are refused.
    #[default]
    Fast,
    /// The disk has the file and its name.
    Synced,
}

/// Where and how a [`FileStore`] keeps its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileConfig {
    /// Its folder. Nothing else belongs there.
    pub root: PathBuf,
    /// Most bytes of all files together, those being written included.
    pub quota: u64,
    /// What a put waits for.
    pub durability: Durability,
    /// Read each file back and compare it before it becomes visible. Sees what the system did to it on the way, and, as the
    /// system may answer from memory, not always what the disk did.
    pub read_back: bool,
}

/// Pages in a folder that one process at a time has open.
///
/// A record is written under a temporary name in the folder it belongs to and renamed when it is whole, so nobody ever
/// finds a part of one. Temporary files that a crash left are removed when the folder is opened. The file system may
/// take more than the quota for its own books.
#[derive(Debug)]
pub struct FileStore {
    config: FileConfig,
    books: Mutex<Books>,
    /// A claim was given back.
    unclaimed: Condvar,
    temporaries: AtomicU64,
    swept: u64,
    /// By first byte of a key: the name of the folder of its records was synced.
    lasting: [AtomicBool; 256],
    /// Locked for as long as the store is open.
    _lock: File,
}

impl FileStore {
    /// Opens a folder, or makes it: sweeps what a crash left and counts the bytes. Costs one look at every file.
    ///
    /// # Errors
    /// The system's, naming the path; `ResourceBusy` if the folder is open already, here or in another process.
    pub fn open(config: FileConfig) -> io::Result<Self> {
        let at = |path: &Path, error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        // Folders that are made here are to last as their records are.
        let new = config.root.ancestors().take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists());
        let new: Vec<PathBuf> = new.map(Path::to_owned).collect();
        fs::create_dir_all(&config.root).map_err(|e| at(&config.root, e))?;
        if config.durability == Durability::Synced {
            for folder in new.iter().filter_map(|folder| folder.parent()) {
                let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
                publish::sync_folder(folder).map_err(|e| at(folder, e))?;
            }
        }
        let lock_path = config.root.join("lock");
        let lock = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&lock_path)
            .map_err(|error| at(&lock_path, error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(at(&lock_path, io::Error::new(ErrorKind::ResourceBusy, "another store has it open")));
            }
            Err(TryLockError::Error(error)) => return Err(at(&lock_path, error)),
        }
        let found = walk::prepare(&config.root).map_err(|e| at(&config.root, e))?;
        Ok(Self {
            config,
            books: Mutex::new(Books::new(found.bytes)),
            unclaimed: Condvar::new(),
            temporaries: AtomicU64::new(0),
            swept: found.swept,
            lasting: [const { AtomicBool::new(false) }; 256],
            _lock: lock,
        })
    }

    /// Bytes of all files, those being written included. Never above the quota, unless more was there when it was opened.
    pub fn bytes(&self) -> u64 {
        self.books.lock().bytes()
    }

    /// Temporary files of a crash that opening removed.
    pub fn swept(&self) -> u64 {
        self.swept
    }

    /// Calls `visit` with the key and the bytes of every record. What is put or deleted meanwhile may be missed.
    ///
    /// # Errors
    /// The system's, for the first folder that cannot be read.
    pub fn visit(&self, visit: impl FnMut(StoreKey, u64)) -> io::Result<()> {
        walk::visit(&self.config.root, visit)
    }

    fn folder(&self, key: &StoreKey) -> PathBuf {
        self.config.root.join(walk::folder_name(key.0[0]))
    }

    fn temporary(&self, folder: &Path) -> PathBuf {
        walk::temporary_path(folder, self.temporaries.fetch_add(1, Ordering::Relaxed))
    }

    /// Bytes of the file at `path`, 0 if there is none.
    fn length(key: StoreKey, path: &Path) -> Result<u64, StoreError> {
        injected(key, fail_point!("store.file.stat"))?;
        match fs::metadata(path) {
            Ok(found) => Ok(found.len()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
            Err(error) => Err(failed(key, 0, &error)),
        }
    }
}

impl Backend for FileStore {
    fn put(&self, key: &StoreKey, record: &Parts<'_>) -> Result<(), StoreError> {
        let _claim = self.claim(key);
        let folder = self.folder(key);
        let path = folder.join(walk::record_name(key));
        let old = Self::length(*key, &path)?;
        // Old and new are there together until the rename.
        let room = self.reserve(*key, record_bytes(record))?;
        self.publish(*key, &folder, &path, record)?;
        room.keep();
        self.books.lock().give_back(old);
        Ok(())
    }

    fn get(&self, key: &StoreKey, limit: usize, into: &mut Vec<u8>) -> Result<(), StoreError> {
        let path = self.folder(key).join(walk::record_name(key));
        let read = |into: &mut Vec<u8>| -> io::Result<Option<u64>> {
            let file = File::open(&path)?;
            let bytes = file.metadata()?.len();
            if bytes > limit as u64 {
                return Ok(Some(bytes));
            }
            into.clear();
            into.reserve_exact(bytes as usize);
            file.take(limit as u64).read_to_end(into)?;
            Ok(None)
        };
        injected(*key, fail_point!("store.file.read"))?;
        match read(into) {
            Ok(None) => Ok(()),
            Ok(Some(bytes)) => Err(StoreError::TooLarge { key: *key, bytes, limit: limit as u64 }),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(StoreError::NotFound { key: *key }),
            Err(error) => Err(failed(*key, 0, &error)),
        }
    }

    fn exists(&self, key: &StoreKey) -> Result<bool, StoreError> {
        injected(*key, fail_point!("store.file.stat"))?;
        let path = self.folder(key).join(walk::record_name(key));
        path.try_exists().map_err(|error| failed(*key, 0, &error))
    }

    fn delete(&self, key: &StoreKey) -> Result<(), StoreError> {
        let _claim = self.claim(key);
        let folder = self.folder(key);
        let path = folder.join(walk::record_name(key));
        let old = Self::length(*key, &path)?;
        injected(*key, fail_point!("store.file.remove"))?;
        match fs::remove_file(&path) {
            Ok(()) => self.books.lock().give_back(old),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed(*key, 0, &error)),
        }
        if self.config.durability == Durability::Synced {
            publish::sync_folder(&folder).map_err(|error| failed(*key, 0, &error))?;
        }
        Ok(())
    }
}

/// What an error of the file system means for a record of `bytes`.
fn failed(key: StoreKey, bytes: u64, error: &io::Error) -> StoreError {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => StoreError::Full { key, bytes, free: None },
        _ => StoreError::unavailable(key, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_from_a_broken_one() {
        let key = StoreKey([0; 32]);
        // ENOSPC, EDQUOT and EIO.
        for code in [28, 122] {
            let error = failed(key, 9, &io::Error::from_raw_os_error(code));
            assert_eq!(error, StoreError::Full { key, bytes: 9, free: None });
        }
        assert!(matches!(failed(key, 9, &io::Error::from_raw_os_error(5)), StoreError::Unavailable { .. }));
    }
}
