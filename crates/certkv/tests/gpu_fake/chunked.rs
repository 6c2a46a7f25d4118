//! Attention of longer chunks: every query back, and where blocks have levels, that each launch takes over what the ones before have left.
use super::levelled::GAPS;
use super::{
    DIM, GROUP, Plant, SIDE, answer, arguments, count, host, mark_of, planted, queried, set, told, tolerance, word,
};
use crate::kernels::BLOCK;
use certkv_kernel::cuda::args::{Certificate, Strides};
use certkv_kernel::cuda::extend::{ExtendArgs, ExtendChunk};
use certkv_kernel::cuda::swap::digest;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Heads of longer chunks that were attended.
pub(crate) static EXTENDED: AtomicU64 = AtomicU64::new(0);

/// A block that a launch over a chunk went over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChunkRead {
    pub(crate) row: u32,
    /// Bytes of the records of its level; 0: it read originals.
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

fn note(read: ChunkRead) {
    READS.lock().unwrap_or_else(PoisonError::into_inner).iter_mut().for_each(|reads| reads.push(read));
}

/// Codes beside chunks of an odd number of tokens are over tolerance. Originals of blocks before a chunk are noted as records are.
pub(super) extern "C" fn extend(raw: *const c_void) {
    // SAFETY: declared with this struct.
    let a: ExtendArgs = unsafe { arguments(raw) };
    told("extend", a.metrics);
    let (follows, leaves) = (a.part & 1 != 0, a.part & 2 != 0);
    for chunk in 0..a.chunk_count as usize {
        // SAFETY: as in `word`: a list of as many chunks.
        let chunk = unsafe { host::<ExtendChunk>(a.chunks).add(chunk).read() };
        let row = chunk.row;
        for at in (0..chunk.coded as usize).map(|j| row as usize * a.table_stride as usize + j) {
            let page = u64::from(word(a.table, at));
            for head in 0..a.kv_heads as usize {
                let mark = mark_of(a.packed, page * a.page_stride + head as u64 * a.head_stride);
                note(ChunkRead { row, bytes: a.head_stride, head, mark });
            }
        }
        let whole = chunk.from..chunk.to.min(chunk.before / BLOCK as u32).max(chunk.from);
        for block in whole.clone() {
            let at = a.staged + u64::from(chunk.staged + block - chunk.from) * a.staged_stride;
            for head in 0..a.kv_heads as usize {
                let sides = host::<u16>(at).wrapping_add(2 * head * SIDE);
                // SAFETY: as in `word`: a block of staging.
                let mark = digest(unsafe { core::slice::from_raw_parts(sides.cast(), 4 * SIDE) });
                note(ChunkRead { row, bytes: 0, head, mark });
            }
        }
        let heads = a.kv_heads as usize * GROUP;
        for head in chunk.first_row as usize * heads..(chunk.first_row + chunk.tokens) as usize * heads {
            // A head's state: how many blocks it is of, and how many of them from codes.
            let before = [0, 1].map(|i| if follows { word(a.kept, 12 * head + i) } else { 0 });
            let own = [chunk.coded + whole.len() as u32, chunk.coded];
            let lost = follows && planted(Plant::NoLevel);
            let [blocks, coded] = [0, 1].map(|i| before[i] + if lost { 0 } else { own[i] });
            if leaves {
                set(a.kept, 12 * head, blocks);
                set(a.kept, 12 * head + 1, coded);
                continue;
            }
            if a.window == 0 && blocks != chunk.before / BLOCK as u32 {
                count(&GAPS);
            }
            let status = if coded > 0 && chunk.tokens % 2 == 1 { 0 } else { 2 };
            let at =
                |strides: Strides| (head / heads) * strides.token as usize + (head % heads) * strides.head as usize;
            let (from, to) = (at(a.query_strides), at(a.out_strides));
            let mut lost = 0.0;
            for i in 0..DIM {
                let x = queried((a.query, a.query_type), from + i);
                answer((a.out, a.out_type), to + i, x);
                lost += f64::from(f32::from_bits(x) - f32::from_bits(queried((a.out, a.out_type), to + i))).powi(2);
            }
            let tolerance = tolerance(a.limits, head % heads, [a.relative, a.absolute]);
            let e_arith = lost.sqrt() as f32 * 1.000_001;
            let made =
                Certificate { bound: 0.001 + e_arith, e_arith, tolerance, norm: 2.0, status, ..Certificate::default() };
            // SAFETY: as in `word`; nothing else runs meanwhile.
            unsafe { host::<Certificate>(a.certificates).add(head).write(made) };
            EXTENDED.fetch_add(1, Ordering::Relaxed);
        }
    }
}
