//! x86-64: the same functions with wide instructions. All unsafe code of the crate lives here.
use crate::query::Cursor;
use core::arch::x86_64::*;

pub(crate) mod avx2;
pub(crate) mod avx512;
pub(crate) mod strip512;

/// Kinds of a load, by what a number of a row is stored as.
const F16: u8 = 0;
const BF16: u8 = 1;
const E4M3: u8 = 2;
const E5M2: u8 = 3;

/// Bytes of a number of a row.
const fn bytes_of(kind: u8) -> usize {
    if kind < E4M3 { 2 } else { 1 }
}

/// Asks for the next line of the next record, into the second cache: the first is full of this block, and has few slots
/// for misses.
#[inline(always)]
fn step(ahead: &mut Cursor) {
    if ahead.at < ahead.end {
        // SAFETY: a prefetch reads nothing architecturally and cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(ahead.at as *const i8) };
        ahead.at += 64;
    }
}

/// Asks for the rest of the next record.
fn finish(ahead: &mut Cursor) {
    while ahead.at < ahead.end {
        step(ahead);
    }
}

/// Asks for lines that will be written.
fn own(lines: &mut Cursor) {
    while lines.at < lines.end {
        // SAFETY: a prefetch reads nothing architecturally and cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(lines.at as *const i8) };
        lines.at += 64;
    }
}
