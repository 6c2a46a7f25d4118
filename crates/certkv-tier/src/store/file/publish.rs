//! A record becomes a file: written, synced and read back under another name, then renamed.
use super::{Durability, FileStore, failed};
use crate::store::backend::{Parts, record_bytes};
use crate::store::error::StoreError;
use crate::store::execute::injected;
use crate::store::key::StoreKey;
use certkv_core::fail_point;
use core::sync::atomic::Ordering;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// A file nobody else knows, removed on drop. One that cannot be removed is swept at the next opening.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl FileStore {
    /// Puts `record` in place of the file at `path`. Fails with that file as it was.
    pub(super) fn publish(
        &self,
        key: StoreKey,
        folder: &Path,
        path: &Path,
        record: &Parts<'_>,
    ) -> Result<(), StoreError> {
        let synced = self.config.durability == Durability::Synced;
        let io = |error: io::Error| failed(key, record_bytes(record), &error);
        injected(key, fail_point!("store.file.create"))?;
        let new = Temporary(self.temporary(folder));
        let mut file = match File::create_new(&new.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_folder(folder).map_err(io)?;
                File::create_new(&new.0).map_err(io)?
            }
            result => result.map_err(io)?,
        };
        for part in record {
            injected(key, fail_point!("store.file.write"))?;
            file.write_all(part).map_err(io)?;
        }
        if synced {
            injected(key, fail_point!("store.file.sync"))?;
            file.sync_all().map_err(io)?;
        }
        drop(file);
        if self.config.read_back {
            injected(key, fail_point!("store.file.read_back"))?;
            if !same(&new.0, record).map_err(io)? {
                return Err(StoreError::unavailable(key, "the file read back is not what was written"));
            }
        }
        // The rename may be undone by a folder that cannot be synced, so the old record keeps a second name till then.
        let old = Temporary(self.temporary(folder));
        let had_old = synced && path.try_exists().map_err(io)?;
        if had_old {
            injected(key, fail_point!("store.file.link"))?;
            fs::hard_link(path, &old.0).map_err(io)?;
        }
        injected(key, fail_point!("store.file.rename"))?;
        fs::rename(&new.0, path).map_err(io)?;
        if !synced {
            return Ok(());
        }
        let last = || -> io::Result<()> {
            sync_folder(folder)?;
            // Whoever has made the folder: its own name lasts, too, before the first record is said to.
            let lasting = &self.lasting[usize::from(key.0[0])];
            if !lasting.load(Ordering::Acquire) {
                sync_folder(&self.config.root)?;
                lasting.store(true, Ordering::Release);
            }
            Ok(())
        };
        let result = injected(key, fail_point!("store.file.sync_folder")).and_then(|()| last().map_err(io));
        if result.is_err() {
            // As far as it goes: a disk that refuses to sync may refuse this too, and what it then shows is whole.
            let _ = if had_old { fs::rename(&old.0, path) } else { fs::remove_file(path) };
        }
        result
    }
}

/// Makes a folder for the first record in it; the root must still be there.
fn make_folder(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result,
    }
}

/// Makes the names in a folder last. Other systems than Unix have no such call and need none.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    #[cfg(unix)]
    File::open(folder)?.sync_all()?;
    #[cfg(not(unix))]
    let _ = folder;
    Ok(())
}

/// Whether the file holds just these parts.
fn same(path: &Path, record: &Parts<'_>) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let mut chunk = [0; 16 << 10];
    for part in record {
        for wanted in part.chunks(chunk.len()) {
            let found = &mut chunk[..wanted.len()];
            match file.read_exact(found) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
                result => result?,
            }
            if *found != *wanted {
                return Ok(false);
            }
        }
    }
    Ok(file.read(&mut chunk[..1])? == 0)
}
