//! Pages that leave device memory and return, byte for byte as `kernels/swap.cu` has its arguments, and their digest.
use super::launch::{CHAINED, word};
use super::queue::{Queue, Span};
use super::touched::Touched;
use certkv_device::cuda::{CudaError, Function};

/// One page. Addresses and bytes are multiples of 16.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SwapItem {
    /// Device memory, or mapped host memory.
    pub from: u64,
    /// The other; 0 for nowhere: its digest alone is made.
    pub to: u64,
    /// Bytes.
    pub bytes: u64,
    /// `u64`: the digest of the page once it is there.
    pub digest: u64,
}

impl SwapItem {
    /// Words of 64 bits of an item.
    pub const WORDS: usize = 4;

    /// The copy of a whole span.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`] for spans of different lengths, [`CudaError::Misaligned`].
    pub fn new(from: Span<'_>, to: Span<'_>, digest: Span<'_>) -> Result<Self, CudaError> {
        let bytes = from.bytes();
        let item = Self {
            from: from.address(),
            to: to.holding("to", bytes)?,
            bytes: bytes as u64,
            digest: digest.holding("digest", 8)?,
        };
        for (argument, address) in [("from", item.from), ("to", item.to), ("bytes", item.bytes)] {
            if !address.is_multiple_of(16) {
                return Err(CudaError::Misaligned { argument, address, needs: 16 });
            }
        }
        Ok(item)
    }

    /// The digest of a span that stays where it is.
    ///
    /// # Errors
    /// As [`SwapItem::new`].
    pub fn look(at: Span<'_>, digest: Span<'_>) -> Result<Self, CudaError> {
        Ok(Self { to: 0, ..Self::new(at, at, digest)? })
    }

    /// As the list has it.
    pub const fn words(&self) -> [u64; Self::WORDS] {
        [self.from, self.to, self.bytes, self.digest]
    }
}

/// Arguments of `ckv_swap`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct SwapArgs {
    /// `SwapItem[count]`.
    pub items: u64,
    /// Items.
    pub count: u32,
    /// Zero.
    pub unused: u32,
}

/// The digest of a page, as the kernel makes it: the sum over its 16-byte words of a folded product of 128 bits that depends on
/// their place. `bytes` beyond a multiple of 16 do not count.
///
/// It tells damage, not forgery: a page whose bits fell over is another page but for one in 2^64 or so.
pub fn digest(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks::<16>();
    words.iter().zip(1u64..).fold(0, |sum, (word, place)| {
        let (low, high) = word.split_at(8);
        let half = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |w, b| w << 8 | u64::from(*b));
        let a = half(low) ^ 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(place);
        let b = half(high) ^ 0xd1b5_4a32_d192_ed03u64.wrapping_mul(place + 1);
        let product = u128::from(a) * u128::from(b);
        sum.wrapping_add(product as u64 ^ (product >> 64) as u64)
    })
}

/// Enqueues `ckv_swap` of the `count` items of a list in mapped memory. `moves`: the areas that the items lie in, to be told to
/// the happens-before checker: what is read, what is written if anything is, and the digests.
///
/// # Errors
/// As [`launch::attend`](super::launch::attend).
pub fn launch(
    queue: &Queue,
    kernel: &Function,
    list: Span<'_>,
    count: usize,
    (from, to, digests): (Span<'_>, Option<Span<'_>>, Span<'_>),
) -> Result<(), CudaError> {
    let mut on = Touched::on(queue);
    /// Enough to fill the link either way.
    const CTAS: u32 = 32;
    const THREADS: u32 = 512;
    on.reads(from, "pages", 0)?;
    if let Some(to) = to {
        on.writes(to, "pages", 0)?;
    }
    on.writes(digests, "digests", 0)?;
    let items = on.reads(list, "items", count.saturating_mul(size_of::<SwapItem>()))?;
    let args = SwapArgs { items, count: word("items", count)?, unused: 0 };
    on.tell(queue)?;
    // SAFETY: as in `launch::attend`; the items were made by `SwapItem::new` from spans, and the queue keeps its areas.
    unsafe { kernel.launch(queue.stream(), CTAS, THREADS, 0, &args, CHAINED) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use certkv_core::hash::splitmix64;

    #[test]
    fn structs_have_the_sizes_of_their_twins() {
        assert_eq!((size_of::<SwapItem>(), size_of::<SwapArgs>()), (4 * 8, 8 + 2 * 4));
        assert_eq!(size_of::<SwapItem>(), 8 * SwapItem::WORDS);
    }

    #[test]
    fn any_flipped_bit_and_any_two_words_exchanged_are_another_page() {
        for kind in 0..3 {
            let byte = |i: usize| [0, splitmix64(i as u64) as u8, (i / 16 % 3) as u8][kind];
            let mut page: Vec<u8> = (0..1024).map(byte).collect();
            let right = digest(&page);
            for bit in 0..8 * page.len() {
                page[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(digest(&page), right, "bit {bit}");
                page[bit / 8] ^= 1 << (bit % 8);
            }
            for (i, j) in [(0, 1), (3, 60), (7, 63)] {
                let mut other = page.clone();
                (0..16).for_each(|k| other.swap(16 * i + k, 16 * j + k));
                assert_eq!(digest(&other) == right, other == page, "words {i} and {j}");
            }
            assert_ne!(digest(&page[..1008]), right);
        }
    }
}
