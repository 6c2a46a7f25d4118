//! Sections with digests.
//!
//! `magic (8) | version (4)`, then per section `tag (4) | bytes (8) | contents | digest (32)`, all little-endian. A digest is
//! BLAKE3 of everything before it.
use super::error::SaveError;
use std::io::{self, ErrorKind, Read, Write};

const MAGIC: [u8; 8] = *b"CERTKVS\n";
const VERSION: u32 = 3;
/// What is read at once: a length that is not true costs no more memory than there are bytes.
const STEP: usize = 1 << 20;

/// What a section is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tag {
    Header = 1,
    State = 2,
    Block = 3,
    End = 4,
}

impl Tag {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::State => "state",
            Self::Block => "block",
            Self::End => "end",
        }
    }
}

fn hasher(key: Option<&[u8; 32]>) -> blake3::Hasher {
    match key {
        Some(key) => blake3::Hasher::new_keyed(key),
        None => blake3::Hasher::new(),
    }
}

pub(crate) struct Writer<'a> {
    out: &'a mut dyn Write,
    so_far: blake3::Hasher,
    bytes: u64,
}

impl<'a> Writer<'a> {
    pub(crate) fn begin(out: &'a mut dyn Write, key: Option<&[u8; 32]>) -> Result<Self, SaveError> {
        let mut writer = Self { out, so_far: hasher(key), bytes: 0 };
        writer.put(&MAGIC)?;
        writer.put(&VERSION.to_le_bytes())?;
        Ok(writer)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), SaveError> {
        self.so_far.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(self.out.write_all(bytes)?)
    }

    pub(crate) fn section(&mut self, tag: Tag, contents: &[u8]) -> Result<(), SaveError> {
        self.put(&(tag as u32).to_le_bytes())?;
        self.put(&(contents.len() as u64).to_le_bytes())?;
        self.put(contents)?;
        let digest = self.so_far.finalize();
        self.put(digest.as_bytes())
    }

    pub(crate) fn finish(self) -> Result<u64, crate::Error> {
        self.out.flush().map_err(SaveError::from)?;
        Ok(self.bytes)
    }
}

pub(crate) struct Reader<'a> {
    from: &'a mut dyn Read,
    so_far: blake3::Hasher,
}

impl<'a> Reader<'a> {
    pub(crate) fn begin(from: &'a mut dyn Read, key: Option<&[u8; 32]>) -> Result<Self, SaveError> {
        let mut reader = Self { from, so_far: hasher(key) };
        let mut magic = [0; 8];
        match reader.take(&mut magic) {
            Ok(()) if magic == MAGIC => {}
            Err(error) if error.kind() != ErrorKind::UnexpectedEof => return Err(error.into()),
            _ => return Err(SaveError::NotASequence),
        }
        let mut version = [0; 4];
        reader.take(&mut version).map_err(|e| in_section(e, "header"))?;
        match u32::from_le_bytes(version) {
            VERSION => Ok(reader),
            found => Err(SaveError::Version { found, known: VERSION }),
        }
    }

    fn take(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.from.read_exact(bytes)?;
        self.so_far.update(bytes);
        Ok(())
    }

    /// The contents of the next section, which must be a `tag` of at most `most` bytes.
    pub(crate) fn section(&mut self, tag: Tag, most: usize, into: &mut Vec<u8>) -> Result<(), SaveError> {
        let section = tag.name();
        into.clear();
        let (mut number, mut length) = ([0; 4], [0; 8]);
        self.take(&mut number).and_then(|()| self.take(&mut length)).map_err(|e| in_section(e, section))?;
        let (found, length) = (u32::from_le_bytes(number), u64::from_le_bytes(length));
        // A flipped bit may be here; only the digest behind the contents tells, which cannot be found then.
        if found != tag as u32 || length > most as u64 {
            return Err(SaveError::Damaged { section });
        }
        let mut left = length;
        while left > 0 {
            let step = left.min(STEP as u64) as usize;
            let at = into.len();
            into.try_reserve(step).map_err(|_| SaveError::from(io::Error::from(ErrorKind::OutOfMemory)))?;
            into.resize(at + step, 0);
            self.take(&mut into[at..]).map_err(|e| in_section(e, section))?;
            left -= step as u64;
        }
        let expected = self.so_far.finalize();
        let mut digest = [0; 32];
        self.take(&mut digest).map_err(|e| in_section(e, section))?;
        // Compared in constant time by the hash's own equality.
        if expected == digest { Ok(()) } else { Err(SaveError::Damaged { section }) }
    }
}

fn in_section(error: io::Error, section: &'static str) -> SaveError {
    match error.kind() {
        ErrorKind::UnexpectedEof => SaveError::Truncated { section },
        _ => error.into(),
    }
}
