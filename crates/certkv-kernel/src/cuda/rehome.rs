//! Originals that lie elsewhere by now. The launch of `kernels/rehome.cu`.
use super::launch::{CHAINED, word};
use super::queue::{Queue, Span};
use super::touched::Touched;
use certkv_device::cuda::{CudaError, Function};

/// A page of originals that has moved, in one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Move {
    /// `[kv_heads]` [`Sides`](super::args::Sides) in the table of sides.
    pub named: u64,
    /// `[kv_heads]` [`Sides`](super::args::Sides) that repairs have lent of the page's block.
    pub lent: u64,
    /// Where the sides were, one after the other.
    pub from: u64,
    /// Where they are.
    pub to: u64,
}

impl Move {
    /// Words of eight bytes of one.
    pub const WORDS: usize = size_of::<Self>() / 8;

    /// The words of one.
    pub const fn words(&self) -> [u64; Self::WORDS] {
        [self.named, self.lent, self.from, self.to]
    }
}

/// Arguments of `ckv_rehome`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct RehomeArgs {
    /// [`Move`]s.
    pub moves: u64,
    /// How many.
    pub count: u32,
    /// Sides of a page.
    pub sides: u32,
    /// Bytes of a side.
    pub side_bytes: u32,
    /// 0.
    pub unused: u32,
}

/// Enqueues that `count` pages of `[sides, side_bytes]` are named and lent where they are now: the list `moves`, of [`Move`]s, is in mapped memory. `named` and
/// `lent` are the memory that their addresses lie in.
///
/// # Errors
/// As [`attend`](super::launch::attend).
pub fn rehome(
    queue: &Queue,
    kernel: &Function,
    (moves, count): (Span<'_>, usize),
    [sides, side_bytes]: [usize; 2],
    [named, lent]: [Span<'_>; 2],
) -> Result<(), CudaError> {
    const THREADS: u32 = 256;
    let mut on = Touched::on(queue);
    on.writes(named, "table of sides", 0)?;
    on.writes(lent, "lent sides", 0)?;
    let args = RehomeArgs {
        moves: on.reads(moves, "moves", count.saturating_mul(size_of::<Move>()))?,
        count: word("moves", count)?,
        sides: word("sides", sides)?,
        side_bytes: word("side", side_bytes)?,
        unused: 0,
    };
    on.tell(queue)?;
    let ctas = args.count.div_ceil(THREADS / 32).max(1);
    // SAFETY: as in `attend`; the addresses of moves are the caller's, as tables are.
    unsafe { kernel.launch(queue.stream(), ctas, THREADS, 0, &args, CHAINED) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_have_the_sizes_of_the_kernel() {
        assert_eq!(size_of::<Move>(), 4 * 8);
        assert_eq!(size_of::<RehomeArgs>(), 8 + 4 * 4);
    }
}
