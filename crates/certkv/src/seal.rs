//! The seal in front of a packed page: who it is, in which format, and a digest of its records.
use crate::group::SEAL_BYTES;
use certkv_core::{
    PageId, RecordLayout,
    hash::{hash64, splitmix64},
    planted,
};

const MAGIC: [u8; 8] = *b"CERTKVP1";

/// Identity, format and digest of a packed page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seal {
    /// Layer of the page.
    pub layer: u32,
    /// Index of the block in its sequence.
    pub block: u32,
    /// The first of the page's KV heads among the model's.
    pub head: u32,
    /// Slot and generation of the page.
    pub page: PageId,
    /// Number of the block table that has written the block, the sequence's in its KV group; 0 where a page is in no table, as in a file.
    pub writer: u32,
    /// Tokens per block.
    pub tokens: u32,
    /// Channels per head.
    pub dim: u32,
    /// Bytes per record.
    pub record_bytes: u32,
    /// Hash of the format's text, and of the calibration that codes depend on, if they do.
    pub format: u64,
    /// Digest of everything behind the seal and of what the seal says; 0 until written.
    pub digest: u64,
}

/// What a seal says that is not so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealError {
    /// Shorter than a seal, or not starting with its magic.
    NotAPage,
    /// Sealed as another page: of another layer, block, writer, life of its slot, format or calibration.
    Another,
    /// The records are not those that were sealed.
    Digest {
        /// Digest in the seal.
        sealed: u64,
        /// Digest of the bytes.
        found: u64,
    },
}

impl core::fmt::Display for SealError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NotAPage => f.write_str("not a packed page"),
            Self::Another => f.write_str("sealed as another page"),
            Self::Digest { sealed, found } => write!(f, "sealed digest {sealed:#018x}, records give {found:#018x}"),
        }
    }
}
impl std::error::Error for SealError {}

/// Digest of a byte string: four interleaved multiply-xor lanes, so that a page costs about a byte per half clock.
pub fn digest(bytes: &[u8]) -> u64 {
    const K: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut lanes = [1u64, 2, 3, 4].map(splitmix64);
    let mut chunks = bytes.chunks_exact(32);
    for chunk in &mut chunks {
        for (lane, word) in lanes.iter_mut().zip(chunk.chunks_exact(8)) {
            let word = word.iter().rev().fold(0u64, |w, b| w << 8 | u64::from(*b));
            *lane = (*lane ^ word).wrapping_mul(K).rotate_left(29);
        }
    }
    let rest = chunks.remainder().iter().fold(bytes.len() as u64, |h, b| splitmix64(h ^ u64::from(*b)));
    lanes.iter().fold(rest, |h, lane| splitmix64(h ^ lane))
}

/// Where a seal has its digest.
const DIGEST: core::ops::Range<usize> = 48..56;

/// Digest of a page: of what is behind its seal, and of what the seal says but for the digest itself. Without the latter a digest and records would go with any seal, so
/// that a write torn between them, or the tail of another page, would be that page.
fn digest_of(head: &[u8], records: &[u8]) -> u64 {
    splitmix64(digest(records) ^ hash64(&[digest(&head[..DIGEST.start]), digest(&head[DIGEST.end..])]))
}

/// Number of a format: the digest of its text.
pub fn format_id(layout: &RecordLayout) -> u64 {
    digest(layout.format.to_string().as_bytes())
}

impl Seal {
    pub(crate) fn new(layout: &RecordLayout, layer: usize, block: usize, page: PageId) -> Self {
        Self::of(layout, format_id(layout), layer, block, page)
    }

    /// As [`Seal::new`] with the [number](format_id) of the format, which takes text to make.
    pub(crate) fn of(layout: &RecordLayout, format: u64, layer: usize, block: usize, page: PageId) -> Self {
        Self {
            layer: layer as u32,
            block: block as u32,
            head: 0,
            page,
            writer: 0,
            tokens: layout.tokens() as u32,
            dim: layout.dim as u32,
            record_bytes: layout.bytes as u32,
            format,
            digest: 0,
        }
    }

    /// The same for a page of the model's KV heads from `head` on.
    pub(crate) fn of_heads_from(mut self, head: usize) -> Self {
        self.head = head as u32;
        self
    }

    /// The same for a block that the table of this number has written.
    pub(crate) fn written_by(mut self, writer: u32) -> Self {
        self.writer = writer;
        self
    }

    /// The same for codes that mean something under a calibration of this number only.
    pub(crate) fn under(mut self, calibration: u64) -> Self {
        self.format = hash64(&[self.format, calibration]);
        self
    }

    /// Seals `page`: writes the seal in front, with a digest of it and of what is behind it.
    pub(crate) fn write(self, page: &mut [u8]) {
        let Some((head, records)) = page.split_at_mut_checked(SEAL_BYTES) else { return };
        let Self { layer, block, head: first, page, tokens, dim, record_bytes, .. } = self;
        let numbers = [layer, block, page.index, page.generation, tokens, dim, record_bytes, first];
        head.fill(0);
        head[..8].copy_from_slice(&MAGIC);
        for (slot, x) in head[8..40].chunks_exact_mut(4).zip(numbers) {
            slot.copy_from_slice(&x.to_le_bytes());
        }
        head[40..48].copy_from_slice(&self.format.to_le_bytes());
        head[DIGEST.end..60].copy_from_slice(&self.writer.to_le_bytes());
        let digest = digest_of(head, records);
        head[DIGEST].copy_from_slice(&digest.to_le_bytes());
    }

    /// Whether `page` begins with a page that is sealed as this one, whatever its digest here.
    ///
    /// # Errors
    /// [`SealError`].
    pub(crate) fn check(self, page: &[u8]) -> Result<(), SealError> {
        let found = Self { digest: 0, ..Self::read(page)? };
        let found = if planted!(B16) { Self { format: self.format, ..found } } else { found };
        if found == (Self { digest: 0, ..self }) { Ok(()) } else { Err(SealError::Another) }
    }

    /// The digest that a page says it has, whether it has it or not; `None` of one that says nothing.
    pub(crate) fn sealed_digest(page: &[u8]) -> Option<u64> {
        let (head, _) = page.split_at_checked(SEAL_BYTES)?;
        (head[..8] == MAGIC).then(|| head[DIGEST].iter().rev().fold(0, |w, b| w << 8 | u64::from(*b)))
    }

    /// Reads the seal of `page` and checks its digest.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn read(page: &[u8]) -> Result<Self, SealError> {
        let (head, records) = page.split_at_checked(SEAL_BYTES).ok_or(SealError::NotAPage)?;
        // Where nothing is said there is nothing.
        if head[..8] != MAGIC || head[60..] != [0; 4] {
            return Err(SealError::NotAPage);
        }
        let word = |i: usize| head[i..i + 4].iter().rev().fold(0u32, |w, b| w << 8 | u32::from(*b));
        let long = |i: usize| u64::from(word(i + 4)) << 32 | u64::from(word(i));
        let (sealed, found) = (long(DIGEST.start), digest_of(head, records));
        if sealed != found && !planted!(B23) {
            return Err(SealError::Digest { sealed, found });
        }
        Ok(Self {
            layer: word(8),
            block: word(12),
            page: PageId { index: word(16), generation: word(20) },
            tokens: word(24),
            dim: word(28),
            record_bytes: word(32),
            writer: word(56),
            head: word(36),
            format: long(40),
            digest: sealed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use certkv_core::Geometry;

    #[test]
    fn any_flipped_bit_breaks_the_seal() {
        let geometry = Geometry::new(1, 1, 1, 64).unwrap();
        let layout = RecordLayout::new(&geometry, "k8-v4g32-b16".parse().unwrap()).unwrap();
        let mut page: Vec<u8> = (0..SEAL_BYTES + layout.bytes).map(|i| splitmix64(i as u64) as u8).collect();
        assert_eq!(Seal::read(&page), Err(SealError::NotAPage));
        Seal::new(&layout, 3, 7, PageId { index: 5, generation: 9 }).write(&mut page);
        let seal = Seal::read(&page).unwrap();
        assert_eq!((seal.layer, seal.block, seal.page.index, seal.format), (3, 7, 5, format_id(&layout)));
        for at in (0..SEAL_BYTES).chain((SEAL_BYTES..page.len()).step_by(7)) {
            page[at] ^= 1 << (at % 8);
            assert!(Seal::read(&page).is_err(), "a flip at {at} went unseen");
            page[at] ^= 1 << (at % 8);
        }
        assert_eq!(Seal::read(&page[..30]), Err(SealError::NotAPage));
    }

    #[test]
    fn pages_of_other_heads_are_other_pages() {
        let geometry = Geometry::new(1, 4, 4, 64).unwrap();
        let layout = RecordLayout::new(&geometry, "k8-v4g32-b16".parse().unwrap()).unwrap();
        let seal = || Seal::new(&layout, 2, 5, PageId { index: 1, generation: 3 });
        let mut page = vec![9; SEAL_BYTES + layout.bytes];
        seal().of_heads_from(2).write(&mut page);
        assert_eq!(Seal::read(&page).unwrap().head, 2);
        assert_eq!(seal().of_heads_from(2).check(&page), Ok(()));
        for other in [seal(), seal().of_heads_from(1), seal().of_heads_from(3)] {
            assert_eq!(other.check(&page), Err(SealError::Another));
        }
    }

    #[test]
    fn blocks_of_other_writers_are_other_pages() {
        let geometry = Geometry::new(1, 1, 1, 64).unwrap();
        let layout = RecordLayout::new(&geometry, "k8-v4g32-b16".parse().unwrap()).unwrap();
        let seal = || Seal::new(&layout, 0, 0, PageId { index: 1, generation: 1 });
        let mut page = vec![7; SEAL_BYTES + layout.bytes];
        seal().written_by(5).write(&mut page);
        assert_eq!((Seal::read(&page).unwrap().writer, seal().written_by(5).check(&page)), (5, Ok(())));
        for other in [seal(), seal().written_by(6), seal().written_by(5 << 24)] {
            assert_eq!(other.check(&page), Err(SealError::Another));
        }
    }

    #[test]
    fn codes_of_another_calibration_are_another_page() {
        let geometry = Geometry::new(1, 1, 1, 64).unwrap();
        let layout = RecordLayout::new(&geometry, "ctq4-tq4-b16".parse().unwrap()).unwrap();
        let seal = || Seal::new(&layout, 0, 0, PageId { index: 1, generation: 1 });
        let mut page = vec![7; SEAL_BYTES + layout.bytes];
        seal().under(5).write(&mut page);
        assert_eq!(seal().under(5).check(&page), Ok(()));
        for other in [seal(), seal().under(6), seal().under(0)] {
            assert_eq!(other.check(&page), Err(SealError::Another));
        }
    }
}
