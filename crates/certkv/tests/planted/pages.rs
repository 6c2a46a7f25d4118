//! References of pages, given up once more than they were taken.
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
