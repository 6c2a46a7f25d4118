//! Machine code on disk: files that show whether they are whole, written so that no reader sees half of one.
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

/// 256 bits of SHA-256: a key names machine code that will be run, so two programs must never share one, and tools other
/// than this library can recompute it.
pub(super) type Key = [u8; 32];

/// Ends a sealed file: after the code, so that the file is still an ELF file to every tool.
const MAGIC: &[u8; 8] = b"ckvcubin";
/// Code length (8 bytes, little endian), digest, magic.
const TRAILER: usize = 8 + 32 + MAGIC.len();

/// Digest of a list of parts, each with its length: no two lists run together.
pub(super) fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Key {
    let mut state = Sha256::new();
    for part in parts {
        state.update((part.len() as u64).to_le_bytes());
        state.update(part);
    }
    state.finalize().into()
}

/// The key as 64 hexadecimal digits.
pub(super) fn hex(key: &Key) -> String {
    key.iter().flat_map(|b| [b >> 4, b & 15]).filter_map(|d| char::from_digit(u32::from(d), 16)).collect()
}

/// The code with a trailer that `open` checks, as files of the cache and of code shipped ahead of time have it.
pub fn seal(mut cubin: Vec<u8>) -> Vec<u8> {
    let key = digest([cubin.as_slice()]);
    let len = (cubin.len() as u64).to_le_bytes();
    cubin.extend_from_slice(&len);
    cubin.extend_from_slice(&key);
    cubin.extend_from_slice(MAGIC);
    cubin
}

/// The code of a sealed file; `None` if the file is not whole.
pub(super) fn open(mut file: Vec<u8>) -> Option<Vec<u8>> {
    let (code, trailer) = file.split_at_checked(file.len().checked_sub(TRAILER)?)?;
    let (len, rest) = trailer.split_first_chunk::<8>()?;
    let whole = u64::from_le_bytes(*len) == code.len() as u64 && rest.ends_with(MAGIC);
    if !(whole && rest.starts_with(&digest([code]))) {
        return None;
    }
    file.truncate(file.len() - TRAILER);
    Some(file)
}

/// What a folder has under a name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    Code(Vec<u8>),
    Nothing,
    /// A file that is not whole, or that cannot be read.
    Damaged,
}

/// Reads the file of a folder.
pub(super) fn read(folder: &Path, name: &str) -> Found {
    match fs::read(folder.join(name)) {
        Ok(file) => open(file).map_or(Found::Damaged, Found::Code),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Found::Nothing,
        Err(_) => Found::Damaged,
    }
}

/// Writes a sealed file into a folder, which is made if it is not there. Other threads and processes see the whole file
/// or none; of several writers the last one wins.
pub(super) fn write(folder: &Path, name: &str, cubin: &[u8]) -> io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    fs::create_dir_all(folder)?;
    let temporary = folder.join(format!(".{name}.{}.{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    // Not flushed to the disk: what a loss of power cuts off is found by its trailer.
    let written = File::create(&temporary)
        .and_then(|mut file| file.write_all(&seal(cubin.to_vec())))
        .and_then(|()| fs::rename(&temporary, folder.join(name)));
    if written.is_err() {
        // Nothing is left of a failed attempt, if the folder allows that.
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_files_open_and_every_cut_or_flipped_bit_is_seen() {
        for len in [0, 1, 47, 48, 300] {
            let code: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            let file = seal(code.clone());
            assert_eq!(open(file.clone()), Some(code));
            for cut in 0..file.len() {
                assert_eq!(open(file[..cut].to_vec()), None, "{cut} of {}", file.len());
            }
            for at in 0..file.len() {
                let mut bad = file.clone();
                bad[at] ^= 1 << (at % 8);
                assert_eq!(open(bad), None, "bit of byte {at}");
            }
        }
    }

    #[test]
    fn keys_are_hexadecimal_and_parts_do_not_run_together() {
        let (a, b) = (digest([b"ab".as_slice(), b"c"]), digest([b"a".as_slice(), b"bc"]));
        assert_ne!(a, b);
        assert_eq!(hex(&a).len(), 64);
        // SHA-256 of eight zero bytes, the length of an empty part.
        assert_eq!(hex(&digest([b"".as_slice()])), "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc");
    }
}
