//! Bodies for the fake driver's kernels: as much as it takes to see which launches ran. Attention gives each head its own query back,
//! so that an output tells which step it is of; append stores rows as the real kernel does; a share of the heads goes up the ladder.
use crate::fake_cuda::Fake;
use certkv_core::Dtype;
use certkv_kernel::cuda::args::{AttendArgs, Certificate, Element, Sides};
use certkv_kernel::cuda::close::{BY_PLACE, CloseArgs};
use certkv_kernel::cuda::encode::{AppendArgs, GatherArgs, GatherItem, PackArgs, PackItem};
use certkv_kernel::cuda::extend::ExtendArgs;
use certkv_kernel::cuda::forgive::ForgiveArgs;
use certkv_kernel::cuda::importance::ImportanceArgs;
use certkv_kernel::cuda::ladder::LadderArgs;
use certkv_kernel::cuda::losses::{LossesArgs, ProbeArgs};
use certkv_kernel::cuda::measure::MeasureArgs;
use certkv_kernel::cuda::protect::ProtectArgs;
use certkv_kernel::cuda::publish::{self, ENTRY, ENTRY_HEAD, LayerSet, PublishArgs};
use certkv_kernel::cuda::rehome::RehomeArgs;
use certkv_kernel::cuda::select::{ROW_ENTRY, SelectArgs, SelectMode};
use certkv_kernel::cuda::swap::{SwapArgs, SwapItem, digest};
use certkv_kernel::cuda::unite::UniteArgs;
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[path = "appended.rs"]
mod appended;
#[path = "chunked.rs"]
mod chunked;
#[path = "drafted.rs"]
mod drafted;
#[path = "guarded.rs"]
mod guarded;
#[path = "lent.rs"]
mod lent;
#[path = "levelled.rs"]
mod levelled;
#[path = "lost.rs"]
mod lost;
#[path = "scores.rs"]
mod scores;
#[path = "tails.rs"]
mod tails;
#[path = "told.rs"]
mod told;
#[allow(unused_imports, reason = "each test program uses its part")]
pub(crate) use appended::{Appended, appended};
#[allow(unused_imports, reason = "each test program uses its part")]
pub(crate) use chunked::{ChunkRead, EXTENDED, chunk_reads};
#[allow(unused_imports, reason = "each test program uses its part")]
pub(crate) use drafted::{DRAFTED, draft_tokens};
#[allow(unused_imports, reason = "each test program uses its part")]
pub(crate) use guarded::{BARE, GUARDED, guard};
#[allow(unused_imports, reason = "each test program uses its part")]
pub(crate) use levelled::{
    GAPS, LOG2_TOTAL, NORM, RADIUS, UNITED, log2_evenness, log2_mass, log2_share, lower_masses, summarise, summary,
};
#[allow(unused_imports, reason = "each test program uses its part")]
pub(crate) use tails::UNMEASURED;
#[allow(unused_imports, reason = "each test program uses its part")]
pub(crate) use told::{WITHOUT_HISTORY, watch_metrics, watched_metrics, watched_reaches};
use told::{told, told_history, told_reaches};

pub(crate) const KV_HEADS: usize = 2;
pub(crate) const GROUP: usize = 2;
pub(crate) const DIM: usize = 64;
pub(crate) const BLOCK: usize = 16;
const SIDE: usize = BLOCK * DIM;
/// Where a record is marked, behind what `swap` marks.
pub(crate) const MARK: usize = 64;

/// Heads that did not fit a list: a list was not emptied before it was filled again. On a GPU they are written behind it.
pub(crate) static OVERFLOWS: AtomicU64 = AtomicU64::new(0);

/// Rows of which launches forgot what is promoted, a bit each.
pub(crate) static FORGOTTEN: AtomicU64 = AtomicU64::new(0);

/// Copies that were never made although a plan counts on them.
pub(crate) static LOST: AtomicU64 = AtomicU64::new(0);
/// Lists of copies that wait to be made, by address.
static WAITING: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

/// Whether launches look at what they would read of originals, and lend and give back as the real kernels do; and what was found: originals
/// of another block, and heads of the dense rung without some of theirs.
static LOOKS: AtomicBool = AtomicBool::new(false);
pub(crate) static STRANGE: AtomicU64 = AtomicU64::new(0);
pub(crate) static LACKING: AtomicU64 = AtomicU64::new(0);
/// Sides of blocks that were looked at, and those that were out of reach.
pub(crate) static LOOKED: AtomicU64 = AtomicU64::new(0);
pub(crate) static ABSENT: AtomicU64 = AtomicU64::new(0);

/// Launches look from now on, or no longer.
pub(crate) fn looks(on: bool) {
    LOOKS.store(on, Ordering::Relaxed);
    [&STRANGE, &LACKING, &LOOKED, &ABSENT].iter().for_each(|count| count.store(0, Ordering::Relaxed));
}

fn count(what: &AtomicU64) {
    what.fetch_add(1, Ordering::Relaxed);
}

/// Whether records are the originals themselves: what is read from them is exact.
static EXACT: AtomicBool = AtomicBool::new(false);

/// Defects that a test plants to see whether it sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Plant {
    Nothing,
    /// The dense rung claims an output that it does not write.
    StaleOutput,
    /// Copies of a plan are not made.
    NoCopies,
    /// A buffer is never freed.
    Leak,
    /// A committed row differs.
    OtherRow,
    /// Nobody is told of an error.
    Swallowed,
    /// A bit falls over in a page that is swapped out.
    Rot,
    /// The device is not told that originals have moved.
    OldSides,
    /// The device is told where originals are, but not of what was lent of them.
    OldLoans,
    /// Outputs are held to another tolerance than the call's.
    NoTolerance,
    /// New rows are read as if they followed each other.
    OneStride,
    /// Nobody finds the norms of rows that did not come by an append.
    NoNorms,
    /// What is promoted of a block that was coded again stays what it was.
    OldWords,
    /// A level's launch is taken for another's.
    NoLevel,
    /// Records say what those of the first level do.
    OneLoss,
    /// Words are those of another query head.
    OtherWords,
}

static PLANTED: AtomicU32 = AtomicU32::new(0);

/// Plants a defect from now on.
pub(crate) fn plant(what: Plant) {
    PLANTED.store(what as u32, Ordering::Relaxed);
}

/// Whether that defect is planted.
pub(crate) fn planted(what: Plant) -> bool {
    PLANTED.load(Ordering::Relaxed) == what as u32
}

/// Another life begins, of a cache with records of `format`.
pub(crate) fn begin(format: &str) {
    waiting().clear();
    EXACT.store(format.starts_with("f16-f16"), Ordering::Relaxed);
    drafted::records_of(format);
    levelled::begin();
    OVERFLOWS.store(0, Ordering::Relaxed);
    LOST.store(0, Ordering::Relaxed);
    UNMEASURED.store(0, Ordering::Relaxed);
}

fn waiting() -> MutexGuard<'static, BTreeSet<u64>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the fake maps the host's memory for the device, see `memory.c`.
const MAPPED: u64 = 1 << 56;

fn host<T>(address: u64) -> *mut T {
    (if address >= MAPPED { address - MAPPED } else { address }) as *mut T
}

/// Arguments of a launch.
///
/// # Safety
/// `raw` are those of a kernel that was declared with `T`.
unsafe fn arguments<T: Copy>(raw: *const c_void) -> T {
    // SAFETY: as many bytes are there by contract, in any alignment.
    unsafe { raw.cast::<T>().read_unaligned() }
}

fn word(address: u64, at: usize) -> u32 {
    // SAFETY: launches name live memory of the fake of the extent that their arguments say, which the engine checked.
    unsafe { host::<u32>(address).add(at).read() }
}

fn set(address: u64, at: usize, value: u32) {
    // SAFETY: as in `word`; nothing else runs meanwhile.
    unsafe { host::<u32>(address).add(at).write(value) }
}

/// Adds a head to a list of at most `most`.
fn list(address: u64, head: usize, most: usize) {
    let count = word(address, 0) as usize;
    if count >= most {
        OVERFLOWS.fetch_add(1, Ordering::Relaxed);
        return;
    }
    set(address, 1 + count, head as u32);
    set(address, 0, count as u32 + 1);
}

/// Blocks that have records: of those that are full one may still lie in its tail.
fn recorded(tokens: usize, closing: u32) -> usize {
    (tokens - closing as usize) / BLOCK
}

/// What a launch of attention would read of a full block of a head of the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) place: usize,
    pub(crate) head: usize,
    /// Number of the block in the sequence.
    pub(crate) block: usize,
    /// The mark in its record.
    pub(crate) mark: u64,
    /// The mark of the originals that its promoted word names, if it names some.
    pub(crate) originals: Option<u64>,
}

/// What launches over the whole batch of single tokens read since the last [`reads`], launch by launch; `None`: nobody asked.
static READS: Mutex<Option<Vec<Vec<Read>>>> = Mutex::new(None);

/// What launches read since the last call, if it was to be noted; notes it from now on.
pub(crate) fn reads() -> Vec<Vec<Read>> {
    READS.lock().unwrap_or_else(PoisonError::into_inner).replace(Vec::new()).unwrap_or_default()
}

/// No longer notes it.
pub(crate) fn no_reads() {
    *READS.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// The blocks that a launch sees, by the rule itself.
fn seen(a: &AttendArgs) -> Vec<Read> {
    let mut all = Vec::new();
    for place in 0..a.seqs as usize {
        let row = word(a.rows, place) as usize;
        let (len, full) = levelled::lengths(a, place, row);
        let sees = |t: usize| a.window == 0 || t < a.sinks as usize || t + a.window as usize >= len;
        for block in (0..full).filter(|b| (b * BLOCK..(b + 1) * BLOCK).any(sees)) {
            let page = u64::from(word(a.table, row * a.table_stride as usize + block));
            for head in 0..a.kv_heads as usize {
                let record = a.packed + page * a.page_stride + head as u64 * a.head_stride;
                let block = levelled::home(a, row, block);
                let at = (row * a.kv_heads as usize + head) * a.table_stride as usize + block;
                let promoted = if a.promoted == 0 { 0 } else { word(a.promoted, at) as usize };
                // A word may name a place of which everything was forgotten.
                let keys = promoted.checked_sub(1).map(|i| sides(a.sides, i).keys).filter(|keys| *keys != 0);
                // SAFETY: as in `word`: the sides that a word names.
                let of = |keys| unsafe { digest(core::slice::from_raw_parts(host(keys), 4 * SIDE)) };
                let originals = keys.map(of);
                all.push(Read { place, head, block, mark: mark_of(record, 0), originals });
            }
        }
    }
    all
}

/// The mark in the record of a page and head.
fn mark_of(packed: u64, at: u64) -> u64 {
    // SAFETY: as in `word`: a record of a live page.
    unsafe { host::<u8>(packed + at).add(MARK).cast::<u64>().read_unaligned() }
}

/// Looks at originals of a block whose record has that mark: whether there are some. Others than the block's are counted.
fn look(sides: Sides, mark: u64) -> bool {
    count(&LOOKED);
    if sides.keys == 0 || sides.values == 0 {
        count(&ABSENT);
        return false;
    }
    // SAFETY: as in `word`: two sides beside each other.
    let found = unsafe { digest(core::slice::from_raw_parts(host::<u8>(sides.keys), 4 * SIDE)) };
    if found != mark || sides.values != sides.keys + 2 * SIDE as u64 {
        count(&STRANGE);
    }
    true
}

fn sides(address: u64, at: usize) -> Sides {
    // SAFETY: as in `word`.
    unsafe { host::<Sides>(address).add(at).read() }
}

/// What a launch reads exactly of a head's full blocks; whether that is all of them.
fn look_at_head(a: &AttendArgs, head: usize) -> bool {
    let (place, kv) = (head / a.kv_heads as usize, head % a.kv_heads as usize);
    let (row, stride) = (word(a.rows, place) as usize, a.table_stride as usize);
    let (mut all, line) = (true, (row * a.kv_heads as usize + kv) * stride);
    for block in 0..levelled::lengths(a, place, row).1 {
        let page = u64::from(word(a.table, row * stride + block));
        match word(a.promoted, line + levelled::home(a, row, block)) as usize {
            0 => all = false,
            at => {
                all &= look(sides(a.sides, at - 1), mark_of(a.packed, page * a.page_stride + kv as u64 * a.head_stride))
            }
        }
    }
    all
}

/// A number of the query, of any of the three types, as a single's word.
fn queried((query, query_type): (u64, u32), at: usize) -> u32 {
    let half = || word(query, at / 2) >> (16 * (at % 2) as u32) & 0xffff;
    match query_type {
        f16 if f16 == Element::F16 as u32 => Dtype::F16.decode16(half() as u16).to_bits(),
        bf16 if bf16 == Element::Bf16 as u32 => Dtype::Bf16.decode16(half() as u16).to_bits(),
        _ => word(query, at),
    }
}

/// Writes a number of the outputs in their type.
fn answer((out, out_type): (u64, u32), at: usize, x: u32) {
    let bits = match out_type {
        f16 if f16 == Element::F16 as u32 => Dtype::F16.encode16(f32::from_bits(x)),
        bf16 if bf16 == Element::Bf16 as u32 => Dtype::Bf16.encode16(f32::from_bits(x)),
        _ => return set(out, at, x),
    };
    // SAFETY: as in `word`; nothing else runs meanwhile.
    unsafe { host::<u16>(out).add(at).write(bits) }
}

/// Whether a head whose query begins with that word is over tolerance in a launch, over all heads or over a list.
fn is_over(first: u32, listed: bool) -> bool {
    !EXACT.load(Ordering::Relaxed) && first.wrapping_mul(0x9e37_79b9) >> 30 <= u32::from(!listed)
}

extern "C" fn attend(raw: *const c_void) {
    // SAFETY: declared with this struct.
    let a: AttendArgs = unsafe { arguments(raw) };
    told("attend", a.metrics);
    told_history(&a);
    tails::look_at_tails(&a);
    guarded::look_at_protected(&a);
    if let (Some(reads), 0, 0) = (READS.lock().unwrap_or_else(PoisonError::into_inner).as_mut(), a.only, a.drafts) {
        reads.push(seen(&a));
    }
    if a.homes != 0 {
        return levelled::attend(&a);
    }
    let heads = a.seqs as usize * a.kv_heads as usize;
    let (kv, group) = (a.kv_heads as usize, drafted::columns(&a));
    drafted::count(&a);
    // A head that fails joins another list, or goes where the end of this one was read before.
    for at in 0..if a.only == 0 { heads } else { word(a.only, 0) as usize } {
        let head = if a.only == 0 { at } else { word(a.only, 1 + at) as usize };
        for q in head * group..(head + 1) * group {
            let certificate = host::<Certificate>(a.certificates).wrapping_add(q);
            let [from, to] = [a.query_strides, a.out_strides].map(|strides| drafted::row_at(&a, strides, q));
            let first = queried((a.query, a.query_type), drafted::row_at(&a, a.query_strides, head * group));
            let certified = a.relative > 0.0 || a.absolute > 0.0;
            let over = a.failures != 0 && is_over(first, a.only != 0);
            let dense = a.promoted != 0 && a.failures == 0;
            let looked = a.promoted == 0 || !LOOKS.load(Ordering::Relaxed) || q % group > 0 || look_at_head(&a, head);
            if dense && !looked {
                count(&LACKING);
            }
            let exact = dense || EXACT.load(Ordering::Relaxed);
            let status = if exact { 2 } else { u32::from(certified && !over) };
            let bound = if over { f32::INFINITY } else { 0.001 };
            for i in 0..if dense && planted(Plant::StaleOutput) { 0 } else { DIM } {
                answer(
                    (a.out, a.out_type),
                    to + i,
                    if over { 0x7fc0_0000 } else { queried((a.query, a.query_type), from + i) },
                );
            }
            let own = tolerance(a.limits, head % kv * GROUP + q % GROUP, [a.relative, a.absolute]);
            let tolerance = if planted(Plant::NoTolerance) { 1.0 } else { own };
            let made = Certificate { bound, tolerance, norm: 2.0, status, ..Certificate::default() };
            // SAFETY: as in `word`; nothing else runs meanwhile.
            unsafe { certificate.write(made) };
            if over && q % group == 0 {
                list(a.failures, head, heads);
            }
        }
    }
}

/// What output `head` of a norm of 2 is held to: by its own limits, where a launch has them, or by those of all.
fn tolerance(limits: u64, head: usize, all: [f32; 2]) -> f32 {
    let own = |i| f32::from_bits(word(limits, 2 * head + i));
    let [relative, absolute] = if limits == 0 { all } else { [own(0), own(1)] };
    (2.0 * relative).max(absolute)
}

/// A mark of both sides in place of their codes.
///
/// # Safety
/// Two sides and a record lie there.
unsafe fn code(sides: *const u16, record: u64) -> u64 {
    // SAFETY: by contract; nothing else runs meanwhile.
    unsafe {
        let mark = digest(core::slice::from_raw_parts(sides.cast(), 4 * SIDE));
        host::<u8>(record).add(MARK).cast::<u64>().write_unaligned(mark);
        mark
    }
}

extern "C" fn pack(raw: *const c_void) {
    // SAFETY: declared with this struct.
    let a: PackArgs = unsafe { arguments(raw) };
    told("pack", a.metrics);
    told_reaches("pack", a.reaches, a.saturated);
    // SAFETY: as in `word`: a list of as many items.
    let item = |i: usize| unsafe { host::<PackItem>(a.items).add(i).read() };
    for i in 0..word(a.count, 0) as usize {
        // Of both heads of a page, whose records lie one behind the other.
        let (own, other) = (item(i), item(i ^ 1));
        // SAFETY: as in `word`.
        unsafe {
            let mark = code(host::<u16>(own.keys), own.record);
            levelled::write_summary(own.record, own.record.abs_diff(other.record), mark);
        }
    }
}

extern "C" fn close(raw: *const c_void) {
    // SAFETY: declared with this struct.
    let a: CloseArgs = unsafe { arguments(raw) };
    for layer in &a.of[..a.layers as usize] {
        told("close", layer.metrics);
        told_reaches("close", layer.reaches, a.saturated);
        for place in 0..word(a.count, 0) as usize {
            let row = word(a.rows, place) as usize;
            let own = if a.flags & BY_PLACE == 0 { row } else { place };
            let len = word(a.lens, own) as usize;
            if !len.is_multiple_of(BLOCK) {
                continue;
            }
            let at = row * a.blocks as usize + len / BLOCK - 1;
            let slot = host::<u16>(layer.tail_base + u64::from(word(layer.tails, own)) * a.tail_stride);
            for head in 0..a.kv_heads as usize {
                let record = u64::from(word(layer.packed, at)) * a.packed_stride + head as u64 * a.record_stride;
                // SAFETY: as in `word`: two sides of each head; nothing else runs meanwhile.
                unsafe { code(slot.add(2 * head * SIDE), layer.packed_base + record) };
            }
        }
    }
}

extern "C" fn select(raw: *const c_void) {
    // SAFETY: declared with this struct.
    let a: SelectArgs = unsafe { arguments(raw) };
    for address in a.clear.into_iter().filter(|address| *address != 0) {
        set(address, 0, 0);
    }
    let forgets = [SelectMode::Forget as u32, SelectMode::Erase as u32].contains(&a.mode);
    // What a plan lists is to be copied before the list is begun anew, or read.
    if !forgets {
        LOST.fetch_add(u64::from(waiting().remove(&a.queue)), Ordering::Relaxed);
    }
    if a.mode == SelectMode::Plan as u32 {
        waiting().insert(a.queue);
    }
    if forgets {
        let entries = (1..=word(a.only, 0) as usize).map(|i| word(a.only, i));
        let rows = entries.filter(|entry| entry & ROW_ENTRY != 0).map(|entry| entry & !ROW_ENTRY);
        if a.held != 0 {
            rows.clone().for_each(|row| guarded::forget(&a, row as usize));
        }
        let rows = rows.fold(0, |rows, row| rows | 1 << row);
        FORGOTTEN.fetch_or(rows, Ordering::Relaxed);
    }
    if LOOKS.load(Ordering::Relaxed) {
        if forgets { lent::forget(&a) } else { lent::lend(&a) }
    }
}

/// One stage behind the other.
extern "C" fn ladder(raw: *const c_void) {
    // SAFETY: declared with this struct.
    let a: LadderArgs = unsafe { arguments(raw) };
    assert!((1..=a.passes.len()).contains(&(a.count as usize)) && a.turns != 0);
    if a.chooses == 1 {
        assert_eq!(a.select.only, a.passes[0].only, "the choice is for those that the pass is over");
        select((&raw const a.select).cast());
    }
    for pass in &a.passes[..a.count as usize] {
        assert_ne!(pass.only, 0, "over a list");
        attend((&raw const *pass).cast());
    }
}

extern "C" fn gather(raw: *const c_void) {
    // SAFETY: declared with this struct.
    let a: GatherArgs = unsafe { arguments(raw) };
    // A list of the host's: where originals are by now.
    if a.count >= MAPPED {
        for i in 0..if planted(Plant::OldSides) { 0 } else { word(a.count, 0) as usize } {
            // SAFETY: as in `word`: a list of as many items, each of a piece of memory to another.
            unsafe {
                let item = host::<GatherItem>(a.items).add(i).read();
                host::<u8>(item.to).copy_from_nonoverlapping(host::<u8>(item.from), item.bytes as usize);
            }
        }
    } else if !planted(Plant::NoCopies) {
        waiting().remove(&a.count);
    }
}

extern "C" fn swap(raw: *const c_void) {
    // SAFETY: declared with this struct.
    let a: SwapArgs = unsafe { arguments(raw) };
    for i in 0..a.count as usize {
        // SAFETY: as in `word`: a list of as many items.
        let item = unsafe { host::<SwapItem>(a.items).add(i).read() };
        let (from, to, bytes) = (host::<u8>(item.from), host::<u8>(item.to), item.bytes as usize);
        if item.to == 0 {
            // SAFETY: a page of as many bytes; nothing else runs meanwhile.
            unsafe { host::<u64>(item.digest).write(digest(core::slice::from_raw_parts(from, bytes))) };
            continue;
        }
        // SAFETY: two pages of as many bytes; nothing else runs meanwhile.
        unsafe {
            // Codes of this machine are a mark of a record's rows: something to be told apart by.
            let out = item.to >= MAPPED;
            if out {
                from.add(5 + i).write(17 + i as u8);
            } else if planted(Plant::Rot) {
                from.add(9).write(!from.add(9).read());
            }
            to.copy_from_nonoverlapping(from, bytes);
            host::<u64>(item.digest).write(digest(core::slice::from_raw_parts(to, bytes)));
        }
    }
}

/// As much of publishing to a caller's memory as tells which layers and heads it is of.
extern "C" fn publish_heads(raw: *const c_void) {
    // SAFETY: declared with this struct.
    let a: PublishArgs = unsafe { arguments(raw) };
    if a.slots != 1 {
        return;
    }
    let (heads, number) = (a.seqs * a.kv_heads * a.group, word(a.published, 0) + 1);
    set(a.published, 0, number);
    set(a.ring, 0, number);
    set(a.ring, 1, 0);
    for (at, value) in [a.seqs, a.layers, a.kv_heads * a.group, a.rule].into_iter().enumerate() {
        set(a.ring, 2 * ENTRY + at, value);
    }
    for layer in 0..a.layers {
        let attended = a.attended == LayerSet::of(0..a.layers as usize) || a.attended == LayerSet::of([layer as usize]);
        for head in 0..heads {
            let to = 2 * (ENTRY + ENTRY_HEAD) + 4 * (layer * heads + head) as usize;
            set(a.ring, to, 0.25f32.to_bits());
            set(a.ring, to + 3, if attended { 1 } else { publish::ABSENT.into() });
        }
    }
}

/// Names the kernels.
pub(crate) fn declare(fake: &Fake) {
    fake.kernel("ckv_attend", size_of::<AttendArgs>(), Some(attend));
    fake.kernel("ckv_unite", size_of::<UniteArgs>(), Some(levelled::unite));
    fake.kernel("ckv_importance", size_of::<ImportanceArgs>(), Some(scores::importance));
    fake.kernel("ckv_probe", size_of::<ProbeArgs>(), Some(lost::probe));
    fake.kernel("ckv_losses", size_of::<LossesArgs>(), Some(lost::losses));
    fake.kernel("ckv_append", size_of::<AppendArgs>(), Some(appended::append));
    fake.kernel("ckv_forgive", size_of::<ForgiveArgs>(), Some(appended::forgive));
    fake.kernel("ckv_measure", size_of::<MeasureArgs>(), Some(tails::measure));
    fake.kernel("ckv_close", size_of::<CloseArgs>(), Some(close));
    fake.kernel("ckv_select", size_of::<SelectArgs>(), Some(select));
    fake.kernel("ckv_ladder", size_of::<LadderArgs>(), Some(ladder));
    fake.kernel("ckv_pack", size_of::<PackArgs>(), Some(pack));
    fake.kernel("ckv_gather", size_of::<GatherArgs>(), Some(gather));
    fake.kernel("ckv_protect", size_of::<ProtectArgs>(), Some(guarded::protect));
    fake.kernel("ckv_rehome", size_of::<RehomeArgs>(), Some(lent::rehome));
    fake.kernel("ckv_swap", size_of::<SwapArgs>(), Some(swap));
    fake.kernel("ckv_extend", size_of::<ExtendArgs>(), Some(chunked::extend));
    fake.kernel("ckv_publish", size_of::<PublishArgs>(), Some(publish_heads));
}
