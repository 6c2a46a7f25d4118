//! Pages: references that are given up once more than they were taken, and calls that fail half-way.
use certkv_core::fail;
use certkv_page::{PageAllocator, PageError};
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
