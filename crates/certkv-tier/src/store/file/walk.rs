//! Names of folders and files, and the way through all of them.
use crate::store::key::StoreKey;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

const RECORD: &str = ".page";
const TEMPORARY: &str = "tmp-";

/// What opening found.
pub(super) struct Found {
    /// Bytes of all records.
    pub(super) bytes: u64,
    /// Temporary files removed.
    pub(super) swept: u64,
}

pub(super) fn folder_name(first: u8) -> String {
    format!("{first:02x}")
}

pub(super) fn record_name(key: &StoreKey) -> String {
    format!("{key}{RECORD}")
}

/// A name of its own within this store; no two processes have one folder open.
pub(super) fn temporary_path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{TEMPORARY}{number}"))
}

/// Removes temporary files and counts the rest.
pub(super) fn prepare(root: &Path) -> io::Result<Found> {
    let mut found = Found { bytes: 0, swept: 0 };
    each_file(root, |first, name, entry| {
        if name.starts_with(TEMPORARY) {
            fs::remove_file(entry.path())?;
            found.swept += 1;
        } else if let Some((_, bytes)) = record(first, name, entry)? {
            found.bytes += bytes;
        }
        Ok(())
    })?;
    Ok(found)
}

/// Every record and its bytes.
pub(super) fn visit(root: &Path, mut visit: impl FnMut(StoreKey, u64)) -> io::Result<()> {
    each_file(root, |first, name, entry| {
        if let Some((key, bytes)) = record(first, name, entry)? {
            visit(key, bytes);
        }
        Ok(())
    })
}

/// Key and bytes of a record. A file with another name, or in the wrong folder, is nobody's business.
fn record(first: u8, name: &str, entry: &fs::DirEntry) -> io::Result<Option<(StoreKey, u64)>> {
    let key = name.strip_suffix(RECORD).and_then(StoreKey::parse).filter(|key| key.0[0] == first);
    let Some(key) = key else { return Ok(None) };
    match entry.metadata() {
        Ok(found) => Ok(Some((key, found.len()))),
        // Deleted since the folder was read.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn each_file(root: &Path, mut each: impl FnMut(u8, &str, &fs::DirEntry) -> io::Result<()>) -> io::Result<()> {
    for first in 0..=u8::MAX {
        let entries = match fs::read_dir(root.join(folder_name(first))) {
            Ok(entries) => entries,
            // Folders are made by the first put into them.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            if let Some(name) = entry.file_name().to_str() {
                each(first, name, &entry)?;
            }
        }
    }
    Ok(())
}
