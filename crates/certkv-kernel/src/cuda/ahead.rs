//! Machine code that was made ahead of time: a folder of files, or one file that a program can hold in itself.
use super::cache::{self, Found, Key};
use std::borrow::Cow;
use std::path::PathBuf;

/// Ends a pack: after it in reverse stand the number of entries and the entries.
const MAGIC: &[u8; 8] = b"ckv-pack";
/// Key, offset and length of one entry.
const ENTRY: usize = 32 + 8 + 8;

/// A source of machine code made ahead of time.
#[derive(Debug, Clone)]
pub enum Ahead {
    /// Files `KEY.cubin` of a folder, as the example `compile_kernels` writes them.
    Folder(PathBuf),
    /// Such files in one piece, see [`Ahead::pack`].
    Pack(Cow<'static, [u8]>),
}

impl Ahead {
    /// Puts files of [`Recipe::file`](super::Recipe::file)'s names, each made by [`seal`](super::seal), into one piece. Names
    /// of another form are left out.
    pub fn pack<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
        let (mut bytes, mut index, mut count) = (Vec::new(), Vec::new(), 0u64);
        for (name, file) in files {
            if let Some(key) = name.strip_suffix(".cubin").and_then(parse) {
                index.extend_from_slice(&key);
                index.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
                index.extend_from_slice(&(file.len() as u64).to_le_bytes());
                bytes.extend_from_slice(file);
                count += 1;
            }
        }
        bytes.extend_from_slice(&index);
        bytes.extend_from_slice(&count.to_le_bytes());
        bytes.extend_from_slice(MAGIC);
        bytes
    }

    pub(super) fn find(&self, key: &Key) -> Found {
        match self {
            Self::Folder(folder) => cache::read(folder, &format!("{}.cubin", cache::hex(key))),
            Self::Pack(bytes) => search(bytes, key).unwrap_or(Found::Damaged),
        }
    }
}

/// `None` for a pack that is not whole.
fn search(pack: &[u8], key: &Key) -> Option<Found> {
    let (rest, count) = pack.strip_suffix(MAGIC)?.split_last_chunk::<8>()?;
    let number = |bytes: &[u8]| usize::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok();
    let index_bytes = number(count)?.checked_mul(ENTRY)?;
    let (data, index) = rest.split_at_checked(rest.len().checked_sub(index_bytes)?)?;
    let Some(entry) = index.chunks_exact(ENTRY).find(|e| e.starts_with(key)) else {
        return Some(Found::Nothing);
    };
    let (start, len) = (number(&entry[32..40])?, number(&entry[40..])?);
    let file = data.get(start..start.checked_add(len)?)?;
    cache::open(file.to_vec()).map(Found::Code)
}

fn parse(hex: &str) -> Option<Key> {
    let digits: Option<Vec<u8>> = hex.chars().map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok())).collect();
    let bytes: Vec<u8> = digits?.chunks(2).map(|pair| pair.iter().fold(0, |sum, d| sum << 4 | d)).collect();
    if hex.len() == 64 { bytes.try_into().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pack_finds_its_entries_and_every_damage_is_seen() {
        let keys: Vec<Key> = (0..3u8).map(|i| cache::digest([[i].as_slice()])).collect();
        let files: Vec<(String, Vec<u8>)> =
            keys.iter().map(|k| (format!("{}.cubin", cache::hex(k)), cache::seal(k[..9].to_vec()))).collect();
        let named = || files.iter().map(|(n, f)| (n.as_str(), f.as_slice()));
        let bytes = Ahead::pack(named().chain([("readme.txt", [1u8].as_slice()), ("0.cubin", &[])]));
        let pack = Ahead::Pack(bytes.clone().into());
        for key in &keys {
            assert_eq!(pack.find(key), Found::Code(key[..9].to_vec()));
        }
        let absent = cache::digest([b"absent".as_slice()]);
        assert_eq!(pack.find(&absent), Found::Nothing);
        for cut in 0..bytes.len() {
            assert!(!matches!(Ahead::Pack(bytes[..cut].to_vec().into()).find(&keys[0]), Found::Code(_)), "{cut}");
        }
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x81;
            match Ahead::Pack(bad.into()).find(&keys[1]) {
                Found::Code(code) => assert_eq!(code, keys[1][..9], "byte {at}"),
                Found::Nothing | Found::Damaged => {}
            }
        }
    }
}
