//! Rows that go to their tails, as the real kernel has it: of a token with a number that is not finite, zeros.
use super::{BLOCK, DIM, Plant, SIDE, arguments, host, planted, set, tails, word};
use certkv_core::Dtype;
use certkv_core::fragment::original_index;
use certkv_kernel::cuda::args::Strides;
use certkv_kernel::cuda::encode::{AppendArgs, append_error, append_flag};
use certkv_kernel::cuda::forgive::ForgiveArgs;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

/// A channel of a head of a token.
fn number(rows: u64, stride: Strides, [token, head, channel]: [usize; 3]) -> u16 {
    let at = token * stride.token as usize + head * stride.head as usize + channel;
    // SAFETY: as in `word`.
    unsafe { host::<u16>(rows).add(at).read() }
}

fn refused(rows: &Appended, token: usize, heads: usize) -> bool {
    let numbers = |(rows, stride)| (0..heads * DIM).map(move |i| number(rows, stride, [token, i / DIM, i % DIM]));
    rows.iter().flat_map(|side| numbers(*side)).any(|bits| Dtype::F16.is_nonfinite16(bits))
}

/// Where the newest rows of keys and of values were, and how far they were apart.
pub(crate) type Appended = [(u64, Strides); 2];
static APPENDED: Mutex<Appended> = Mutex::new([(0, Strides { token: 0, head: 0 }); 2]);

/// Those of the latest launch that appended.
pub(crate) fn appended() -> Appended {
    *APPENDED.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) extern "C" fn append(raw: *const c_void) {
    // SAFETY: declared with this struct.
    let a: AppendArgs = unsafe { arguments(raw) };
    assert_eq!([a.key_input, a.value_input], [0; 2], "rows are halves");
    let dense = [Strides::dense(a.kv_heads as usize, DIM); 2];
    let strides = if planted(Plant::OneStride) { dense } else { [a.key_strides, a.value_strides] };
    let rows = [(a.keys, strides[0]), (a.values, strides[1])];
    *APPENDED.lock().unwrap_or_else(PoisonError::into_inner) = rows;
    if a.clear != 0 {
        set(a.clear, 0, 0);
    }
    for place in 0..word(a.count, 0) as usize {
        let row = word(a.rows, place) as usize;
        let at = if a.flags & append_flag::BY_PLACE == 0 { row } else { place };
        let (len, tail) = (word(a.lens, at) as usize, u64::from(word(a.tails, at)));
        let slot = host::<u16>(a.tail_base + tail * a.tail_stride);
        let bad = refused(&rows, place, a.kv_heads as usize);
        if bad {
            let word = word(a.errors, row).max(append_error::word(len as u32, append_error::NONFINITE));
            set(a.errors, row, word);
        }
        for head in 0..a.kv_heads as usize {
            for (side, (rows, stride)) in rows.into_iter().enumerate() {
                for channel in 0..DIM {
                    let from = if bad { 0 } else { number(rows, stride, [place, head, channel]) };
                    let to = (2 * head + side) * SIDE + original_index(len % BLOCK, channel, DIM, side == 0);
                    // SAFETY: as in `word`; nothing else runs meanwhile.
                    unsafe { slot.add(to).write(from) };
                }
            }
            tails::measured(a.row_norms, slot, tail as u32, a.kv_heads as usize, head, len % BLOCK);
        }
    }
}

/// A row is cut: what was refused behind its end is no more.
pub(super) extern "C" fn forgive(raw: *const c_void) {
    // SAFETY: declared with this struct.
    let a: ForgiveArgs = unsafe { arguments(raw) };
    if append_error::refused(word(a.refused, 0)).is_some_and(|(position, _)| position >= a.len) {
        set(a.refused, 0, 0);
    }
}
