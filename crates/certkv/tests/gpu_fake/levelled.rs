//! What launches do where blocks have levels: one for each leaves its queries, and one more gives them back.
use super::{
    BLOCK, DIM, GROUP, LOOKS, Plant, answer, arguments, count, drafted, host, is_over, list, look_at_head, planted,
    queried, set, tolerance, word,
};
use certkv_core::{ErrorSummary, RecordLayout};
use certkv_kernel::cuda::args::{AttendArgs, Certificate};
use certkv_kernel::cuda::launch::partial_floats;
use certkv_kernel::cuda::select::{LevelRecords, SelectArgs};
use certkv_kernel::cuda::unite::UniteArgs;
use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Heads of which outputs were made, and those of which a level had not been attended in that pass, or whose blocks were not each in one level.
pub(crate) static UNITED: AtomicU64 = AtomicU64::new(0);
pub(crate) static GAPS: AtomicU64 = AtomicU64::new(0);
/// Passes that have been begun; a head's state is of one.
static PASS: AtomicU32 = AtomicU32::new(1);
/// Blocks that launches of the pass over the batch went over, a bit each by place of the batch: without memory of the allocator's, as steps that ask it for nothing are counted
/// over this driver.
static SEEN: Mutex<[u64; 16]> = Mutex::new([0; 16]);

/// Another life begins: nothing is left of a pass that was not ended.
pub(super) fn begin() {
    *SEEN.lock().unwrap_or_else(PoisonError::into_inner) = [0; 16];
}

/// Which block of its sequence the j-th of a row's blocks is.
pub(super) fn home(a: &AttendArgs, row: usize, j: usize) -> usize {
    if a.homes == 0 { j } else { word(a.homes, row * a.table_stride as usize + j) as usize }
}

/// A row's tokens, and of these those whose blocks have records.
pub(super) fn lengths(a: &AttendArgs, place: usize, row: usize) -> (usize, usize) {
    let word = word(a.lens, row) as usize;
    if a.homes == 0 {
        return (word, drafted::recorded(a.drafts, place, word, a.closing));
    }
    // Of a level twice the tokens, and whether the last block is full and in its tail.
    (word / 2, (word / 2 - word % 2) / BLOCK)
}

/// Where a record is.
pub(super) fn record(a: &SelectArgs, page: u32, head: usize) -> u64 {
    // SAFETY: as in `word`: a list of as many levels.
    let levels = (0..a.level_count as usize).map(|i| unsafe { host::<LevelRecords>(a.levels).add(i).read() });
    match levels.rev().find(|level| level.first <= page) {
        None => a.packed + u64::from(page) * a.page_stride + head as u64 * a.head_stride,
        Some(of) => of.packed + u64::from(page - of.first) * of.page_stride + head as u64 * u64::from(of.head_stride),
    }
}

/// The state of a head: its queries, then which pass has left it, and whether everything of it was promoted.
fn state(kept: u64, head: usize) -> (u64, usize) {
    (kept, head * partial_floats(DIM, GROUP))
}
const AT_PASS: usize = GROUP * DIM;

/// Of a block for a query head, and the log of the sum of all, in base 2: what masses and certificates say.
pub(crate) fn log2_mass(q_head: usize, block: usize) -> i32 {
    -((q_head * 5 + block * 3) as i32 % 11) - (block % 2) as i32 * LOWERED.load(Ordering::Relaxed)
}
static LOWERED: AtomicI32 = AtomicI32::new(0);

/// Words of steps from now on say so much less of every second block than is usual.
pub(crate) fn lower_masses(by: i32) {
    LOWERED.store(by, Ordering::Relaxed);
}
pub(crate) const LOG2_TOTAL: i32 = 6;

/// The norms that certificates say.
pub(crate) const NORM: f32 = 2.0;
pub(crate) const RADIUS: f32 = 3.0;

/// What a block's keys add to the bound over its mass, and how even its weights are, likewise.
pub(crate) fn log2_share(q_head: usize, block: usize) -> i32 {
    ((q_head * 3 + block * 7) as i32 % 9) - 6
}
pub(crate) fn log2_evenness(q_head: usize, block: usize) -> i32 {
    -((q_head + block) as i32 % 3)
}

/// The word that says so.
fn mass_word(q_head: usize, block: usize) -> u32 {
    let mass = (((log2_mass(q_head, block) + 512) * 32) as u32) << 17;
    mass | (((log2_share(q_head, block) + 32) * 64) as u32) << 5 | (-8 * log2_evenness(q_head, block)) as u32
}

/// Bytes of a record of each level, and where its summary is: of those that a test asks about.
static SUMMARIES: Mutex<Vec<(u64, usize)>> = Mutex::new(Vec::new());

/// Records of these layouts have summaries from now on.
pub(crate) fn summarise(layouts: &[RecordLayout]) {
    let all = layouts.iter().map(|layout| (layout.bytes as u64, layout.summary.start)).collect();
    *SUMMARIES.lock().unwrap_or_else(PoisonError::into_inner) = all;
}

/// What the record of a block with that mark says at a level; nothing is sure of one in thirty-one at the last of three.
pub(crate) fn summary(mark: u64, level: usize) -> ErrorSummary {
    let part = |at: u32, n: u64| (mark >> at) % n;
    let eps = 0.01 * (1 << level) as f32 * (1.0 + part(3, 5) as f32 / 4.0);
    let eta = 0.02 * (1 + level) as f32 * (1.0 + part(9, 7) as f32 / 4.0);
    let eps = if level == 2 && part(17, 31) == 0 { f32::INFINITY } else { eps };
    ErrorSummary { eps, eta, sop: 1.5 * eta, radius: 1.0 + part(23, 8) as f32 / 8.0, ..ErrorSummary::default() }
}

/// Writes the summary of a record, if records of so many bytes have any.
///
/// # Safety
/// A record lies there.
pub(super) unsafe fn write_summary(record: u64, bytes: u64, mark: u64) {
    let all = SUMMARIES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((level, (_, at))) = all.iter().enumerate().find(|(_, (of, _))| *of == bytes) {
        let level = if planted(Plant::OneLoss) { 0 } else { level };
        // SAFETY: by contract; nothing else runs meanwhile.
        unsafe { host::<u8>(record).add(*at).cast::<[u8; 32]>().write_unaligned(summary(mark, level).to_bytes()) };
    }
}

pub(super) fn attend(a: &AttendArgs) {
    let (kv, pass) = (a.kv_heads as usize, PASS.load(Ordering::Relaxed));
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    for place in 0..if a.only == 0 { a.seqs as usize } else { 0 } {
        let row = word(a.rows, place) as usize;
        for j in 0..lengths(a, place, row).1 {
            let home = home(a, row, j);
            if seen[place] >> home & 1 == 1 {
                count(&GAPS);
            }
            seen[place] |= 1 << home;
            for q in 0..if a.masses == 0 { 0 } else { kv * GROUP } {
                let at = ((row * kv + q / GROUP) * a.table_stride as usize + home) * GROUP + q % GROUP;
                set(a.masses, at, mass_word(q + usize::from(planted(Plant::OtherWords)), home));
            }
        }
    }
    for at in 0..if a.only == 0 { a.seqs as usize * kv } else { word(a.only, 0) as usize } {
        let head = if a.only == 0 { at } else { word(a.only, 1 + at) as usize };
        let row = word(a.rows, head / kv) as usize;
        if word(a.lens, row) == 0 {
            continue;
        }
        let whole = a.promoted != 0 && (!LOOKS.load(Ordering::Relaxed) || look_at_head(a, head));
        let (kept, first) = state(a.kept, head);
        for g in 0..GROUP {
            let from = drafted::row_at(a, a.query_strides, head * GROUP + g);
            (0..DIM).for_each(|i| set(kept, first + g * DIM + i, queried((a.query, a.query_type), from + i)));
        }
        set(kept, first + AT_PASS, pass);
        set(kept, first + AT_PASS + 1, whole.into());
    }
}

pub(super) extern "C" fn unite(raw: *const c_void) {
    // SAFETY: declared with this struct.
    let a: UniteArgs = unsafe { arguments(raw) };
    let pass = PASS.fetch_add(1, Ordering::Relaxed);
    let (kv, heads) = (a.kv_heads as usize, (a.seqs * a.kv_heads) as usize);
    let levels = &a.levels[..a.level_count as usize];
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    for place in 0..if a.only == 0 { a.seqs as usize } else { 0 } {
        // Numbers without a gap.
        if seen[place] & (seen[place] + 1) != 0 {
            count(&GAPS);
        }
    }
    *seen = [0; 16];
    for at in 0..if a.only == 0 { heads } else { word(a.only, 0) as usize } {
        let head = if a.only == 0 { at } else { word(a.only, 1 + at) as usize };
        let row = word(a.rows, head / kv) as usize;
        let there = levels.iter().filter(|level| word(level.lens, row) > 0);
        let mut query = None;
        let mut whole = true;
        for (i, (kept, first)) in there.map(|level| state(level.kept, head)).enumerate() {
            let old = word(kept, first + AT_PASS) != pass || (i == 1 && planted(Plant::NoLevel));
            if old {
                count(&GAPS);
            }
            whole &= word(kept, first + AT_PASS + 1) == 1;
            query.get_or_insert((kept, first));
        }
        let Some((kept, first)) = query else {
            count(&GAPS);
            continue;
        };
        count(&UNITED);
        let over = a.failures != 0 && is_over(word(kept, first), a.only != 0);
        let dense = whole && a.failures == 0;
        if a.failures == 0 && a.only != 0 && !whole {
            count(&super::LACKING);
        }
        for g in 0..GROUP {
            let q = head * GROUP + g;
            let strides = a.out_strides;
            let to = (q / (kv * GROUP)) * strides.token as usize + (q % (kv * GROUP)) * strides.head as usize;
            for i in 0..DIM {
                let x = if over { 0x7fc0_0000 } else { word(kept, first + g * DIM + i) };
                answer((a.out, a.out_type), to + i, x);
            }
            let tolerance = tolerance(a.limits, q % (kv * GROUP), [a.relative, a.absolute]);
            let certified = a.relative > 0.0 || a.absolute > 0.0;
            let status = if dense { 2 } else { u32::from(certified && !over) };
            let bound = if over { f32::INFINITY } else { 0.001 };
            let lse = LOG2_TOTAL as f32 * core::f32::consts::LN_2;
            let made =
                Certificate { bound, tolerance, norm: NORM, radius: RADIUS, lse, status, ..Certificate::default() };
            // SAFETY: as in `word`; nothing else runs meanwhile.
            unsafe { host::<Certificate>(a.certificates).add(q).write(made) };
        }
        if over {
            list(a.failures, head, heads);
        }
    }
}
