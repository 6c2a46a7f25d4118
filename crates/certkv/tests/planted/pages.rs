//! Pages: references that are given up once more than they were taken, calls that fail half-way, and readers that do not end.
use certkv_core::fail;
use certkv_page::{PageAllocator, PageError, Stamp};
use certkv_testkit::generate::Rng;

/// Pages that are given up twice in any order: the second time is refused, and the books stay right.
pub(crate) fn run(seed: u64) -> Result<u64, String> {
    let mut r = Rng::new(seed);
    let pages = PageAllocator::create(8).map_err(|e| e.to_string())?;
    let taken = 1 + r.below(8);
    let ids: Vec<_> = (0..taken).filter_map(|_| pages.allocate().ok()).collect();
    for id in &ids {
        let released = pages.release(*id).map_err(|e| e.to_string())?;
        if !released.last {
            return Err(format!("{id:?} has another owner"));
        }
    }
    for _ in 0..4 {
        let id = ids[r.below(taken)];
        if pages.release(id) != Err(PageError::Unreferenced { id }) {
            return Err(format!("{id:?} was given up twice"));
        }
    }
    let counts = pages.check().map_err(|e| e.to_string())?;
    if counts.live != taken { Err(format!("{taken} pages are not retired yet: {counts:?}")) } else { Ok(4) }
}

/// Many pages are asked for, and the call fails before it has all of them: every page is free again.
pub(crate) fn run_failing(seed: u64) -> Result<u64, String> {
    let mut r = Rng::new(seed);
    let capacity = 4 + r.below(12);
    let pages = PageAllocator::create(capacity).map_err(|e| e.to_string())?;
    let mut into = Vec::new();
    let asked = 2 + r.below(capacity - 1);
    fail::arm(Some(2 + r.below(asked - 1) as u64));
    let failed = pages.allocate_many(asked, &mut into);
    fail::arm(None);
    if failed.is_ok() || !into.is_empty() {
        return Err(format!("{failed:?} with {} pages", into.len()));
    }
    let counts = pages.check().map_err(|e| e.to_string())?;
    let all = pages.allocate_many(capacity, &mut into);
    if counts.live > 0 || all.is_err() { Err(format!("nobody has {counts:?}, {all:?}")) } else { Ok(2) }
}

/// A reader that never ends has the first page that was retired: the pages behind it become free all the same.
pub(crate) fn run_behind_a_reader(seed: u64) -> Result<u64, String> {
    let mut r = Rng::new(seed);
    let capacity = 2 + r.below(14);
    let pages = PageAllocator::create(capacity).map_err(|e| e.to_string())?;
    let mut all = Vec::new();
    pages.allocate_many(capacity, &mut all).map_err(|e| e.to_string())?;
    let slow = 1 + r.below(capacity - 1);
    for (i, id) in all.iter().enumerate() {
        let _ = pages.release(*id).map_err(|e| e.to_string())?;
        pages.retire(*id, Stamp(if i < slow { 1 } else { 2 })).map_err(|e| e.to_string())?;
    }
    let freed = pages.reclaim(&mut |stamp| stamp == Stamp(2));
    all.clear();
    match pages.allocate_many(capacity - slow, &mut all) {
        Ok(()) if freed == capacity - slow => Ok(1),
        asked => Err(format!("{freed} of {} pages whose readers are done are free: {asked:?}", capacity - slow)),
    }
}
