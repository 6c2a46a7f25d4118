//! Attention of longer chunks: every query back, and where blocks have levels, that each launch takes over what the ones before have left.
use super::levelled::GAPS;
use super::{DIM, GROUP, Plant, arguments, count, host, mark_of, planted, set, told, tolerance, word};
use crate::kernels::BLOCK;
use certkv_kernel::cuda::args::Certificate;
use certkv_kernel::cuda::extend::{ExtendArgs, ExtendChunk};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Heads of longer chunks that were attended.
pub(crate) static EXTENDED: AtomicU64 = AtomicU64::new(0);

/// A record that a launch over a chunk went over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChunkRead {
    pub(crate) row: u32,
    /// Bytes of the records of its level.
    pub(crate) bytes: u64,
    pub(crate) head: usize,
    pub(crate) mark: u64,
}
static READS: Mutex<Option<Vec<ChunkRead>>> = Mutex::new(None);

/// What launches over chunks have gone over since the last call, if it was to be noted; whether to note it from now on.
pub(crate) fn chunk_reads(on: bool) -> Vec<ChunkRead> {
    core::mem::replace(&mut *READS.lock().unwrap_or_else(PoisonError::into_inner), on.then(Vec::new))
        .unwrap_or_default()
}

/// Chunks of an odd number of tokens are over tolerance, and the CPU's.
pub(super) extern "C" fn extend(raw: *const c_void) {
    // SAFETY: declared with this struct.
    let a: ExtendArgs = unsafe { arguments(raw) };
    told("extend", a.metrics);
    let (follows, leaves) = (a.part & 1 != 0, a.part & 2 != 0);
    for chunk in 0..a.chunk_count as usize {
        // SAFETY: as in `word`: a list of as many chunks.
        let chunk = unsafe { host::<ExtendChunk>(a.chunks).add(chunk).read() };
        for at in (0..chunk.coded as usize).map(|j| chunk.row as usize * a.table_stride as usize + j) {
            let page = u64::from(word(a.table, at));
            for head in 0..a.kv_heads as usize {
                let mark = mark_of(a.packed, page * a.page_stride + head as u64 * a.head_stride);
                let read = ChunkRead { row: chunk.row, bytes: a.head_stride, head, mark };
                READS.lock().unwrap_or_else(PoisonError::into_inner).iter_mut().for_each(|reads| reads.push(read));
            }
        }
        let heads = a.kv_heads as usize * GROUP;
        for head in chunk.first_row as usize * heads..(chunk.first_row + chunk.tokens) as usize * heads {
            // A head's state: how many records it is of.
            let before = if follows { word(a.kept, head * (DIM + 12)) } else { 0 };
            let records = if follows && planted(Plant::NoLevel) { before } else { before + chunk.coded };
            if leaves {
                set(a.kept, head * (DIM + 12), records);
                continue;
            }
            if records != chunk.before / BLOCK as u32 {
                count(&GAPS);
            }
            let status = if chunk.tokens % 2 == 1 { 0 } else { 2 };
            for i in head * DIM..(head + 1) * DIM {
                set(a.out, i, word(a.query, i));
            }
            let tolerance = tolerance(a.limits, head % heads, [a.relative, a.absolute]);
            let made = Certificate { bound: 0.001, tolerance, norm: 2.0, status, ..Certificate::default() };
            // SAFETY: as in `word`; nothing else runs meanwhile.
            unsafe { host::<Certificate>(a.certificates).add(head).write(made) };
            EXTENDED.fetch_add(1, Ordering::Relaxed);
        }
    }
}
