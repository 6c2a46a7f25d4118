//! What files of this crate have in common: a magic word and a version in front, a checksum behind.
//!
//! The checksum chains an invertible step over words of 8 bytes, so a change within one word is always found.
use super::CalibrationError;
use certkv_core::hash::splitmix64;

/// Bytes of the checksum.
pub(crate) const CHECKSUM: usize = 8;

/// A file's first bytes.
pub(crate) fn begin(magic: [u8; 8], version: u32) -> Vec<u8> {
    let mut out = magic.to_vec();
    out.extend(version.to_le_bytes());
    out
}

/// The file with its checksum.
pub(crate) fn end(mut out: Vec<u8>) -> Vec<u8> {
    let sum = checksum(&out);
    out.extend(sum.to_le_bytes());
    out
}

/// A reader behind magic and version, of a file whose header has `header` bytes, these included.
pub(crate) fn open(bytes: &[u8], magic: [u8; 8], version: u32, header: usize) -> Result<Reader<'_>, CalibrationError> {
    let mut file = Reader(bytes);
    let short = || CalibrationError::Truncated { have: bytes.len(), need: header + CHECKSUM };
    if file.take(magic.len()).ok_or_else(short)? != magic {
        return Err(CalibrationError::Magic);
    }
    let found = file.u32().ok_or_else(short)?;
    if found != version {
        return Err(CalibrationError::Version { found, known: version });
    }
    Ok(file)
}

/// Whether a file of `need` bytes is there, no less and no more, as it was written.
pub(crate) fn whole(bytes: &[u8], need: usize) -> Result<(), CalibrationError> {
    if bytes.len() < need {
        return Err(CalibrationError::Truncated { have: bytes.len(), need });
    }
    if bytes.len() > need {
        return Err(CalibrationError::Trailing { bytes: bytes.len() - need });
    }
    let (body, sum) = bytes.split_at(need - CHECKSUM);
    if sum == checksum(body).to_le_bytes() { Ok(()) } else { Err(CalibrationError::Checksum) }
}

fn checksum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.fold(bytes.len() as u64, |h, word| splitmix64(h ^ word))
}

/// What is left of the bytes.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn f64s(&mut self, n: usize) -> Option<Vec<f64>> {
        Some(self.take(8 * n)?.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect())
    }

    pub(crate) fn f32s(&mut self, n: usize) -> Option<Vec<f32>> {
        Some(self.take(4 * n)?.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }
}
