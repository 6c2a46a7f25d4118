//! Rows that an append refused, cut off. The launch of `kernels/forgive.cu`.
use super::launch::{CHAINED, word};
use super::queue::{Queue, Span};
use super::touched::Touched;
use certkv_device::cuda::{CudaError, Function};

/// Arguments of `ckv_forgive`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct ForgiveArgs {
    /// `u32`: the row's word, as [`append_error`](super::encode::append_error) has it.
    pub refused: u64,
    /// Tokens that are left of the sequence.
    pub len: u32,
    /// 0.
    pub unused: u32,
}

/// Enqueues that what an append refused from token `len` of a sequence on is no more; an earlier token stays refused. 2 us.
///
/// # Errors
/// As [`attend`](super::launch::attend).
pub fn forgive(queue: &Queue, kernel: &Function, refused: Span<'_>, len: usize) -> Result<(), CudaError> {
    let mut on = Touched::on(queue);
    let args = ForgiveArgs { refused: on.writes(refused, "refused", 4)?, len: word("len", len)?, unused: 0 };
    on.tell(queue)?;
    // SAFETY: as in `attend`.
    unsafe { kernel.launch(queue.stream(), 1, 32, 0, &args, CHAINED) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_have_the_size_of_the_kernel() {
        assert_eq!(size_of::<ForgiveArgs>(), 8 + 2 * 4);
    }
}
