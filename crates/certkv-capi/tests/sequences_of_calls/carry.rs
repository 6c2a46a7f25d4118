//! Cached units into a store of files and out of it, between other calls.
use crate::*;

/// What a look at a prompt of `n` tokens found: units that are not cached, and of these in the store from the first on.
fn missing(cache: *mut certkv_cache, store: *mut certkv_store, tokens: &[u32]) -> (certkv_status, u64, u64) {
    let (scope, mut missing, mut stored, n) = (prefix_scope(), u64::MAX, u64::MAX, tokens.len() as u64);
    // SAFETY: a whole scope, a slice and locals.
    let got = unsafe {
        certkv_cache_missing_prefix(cache, store, &scope, tokens.as_ptr(), n, 60_000, &mut missing, &mut stored)
    };
    (got, missing, stored)
}

impl Caller {
    /// Exports what is cached of a prompt, or imports what is not. Units moved.
    pub(crate) fn carry(&mut self, n: u64, out: bool) -> Result<u64, TestCaseError> {
        let (scope, tokens, mut store, mut done) = (prefix_scope(), prompt(n), ptr::null_mut(), u64::MAX);
        let path = CString::new(self.folder.join("store").to_str().unwrap()).unwrap();
        // SAFETY: a C string and a local.
        let opened = unsafe { certkv_store_open_files(path.as_ptr(), 0, 0, &mut store) };
        self.saw(opened, CERTKV_OK)?;
        let (got, lacks, stored) = missing(self.cache, store, &tokens);
        self.saw(got, CERTKV_OK)?;
        let cached = n / BLOCK - lacks;
        prop_assert!(lacks <= n / BLOCK && stored <= lacks, "{lacks} of {n} missing, {stored} stored");
        // SAFETY: a whole scope, a slice and a local.
        let got = unsafe {
            let at = tokens.as_ptr();
            match out {
                true => certkv_cache_export_prefix(self.cache, store, &scope, at, n, 0, 60_000, &mut done),
                false => certkv_cache_import_prefix(self.cache, store, &scope, at, n, 60_000, &mut done),
            }
        };
        self.saw(got, CERTKV_OK)?;
        let moved = if out { done } else { done / BLOCK - cached };
        match out {
            true => prop_assert_eq!(done, cached),
            // As far as there is room.
            false => prop_assert!(done.is_multiple_of(BLOCK) && moved <= stored, "{done} with {cached} and {stored}"),
        }
        let (got, left, _) = missing(self.cache, store, &tokens);
        self.saw(got, CERTKV_OK)?;
        prop_assert_eq!(lacks - left, if out { 0 } else { moved });
        // SAFETY: a live handle.
        prop_assert_eq!(unsafe { certkv_store_destroy(store) }, CERTKV_OK);
        Ok(moved)
    }
}

#[test]
fn units_come_back_from_files() {
    let cache = new_cache(CERTKV_POLICY_CERTIFIED, CERTKV_F16);
    let mut caller = Caller::new(cache, 1);
    let calls =
        [Call::Create(0), Call::Whole { slot: 0, tokens: 40, hostile: false }, Call::Publish(0), Call::Release(0)];
    calls.iter().for_each(|call| caller.apply(call).unwrap());
    assert_eq!((caller.carry(40, false).unwrap(), caller.carry(20, true).unwrap()), (0, 1));
    assert_eq!((caller.carry(40, true).unwrap(), caller.carry(40, false).unwrap()), (2, 0));
    caller.apply(&Call::Evict(u64::MAX)).unwrap();
    assert_eq!((caller.carry(40, true).unwrap(), caller.carry(40, false).unwrap()), (0, 2));
    caller.apply(&Call::Evict(u64::MAX)).unwrap();
    assert!(caller.statuses.iter().all(|s| *s == CERTKV_OK) && memory(cache).live_pages == 0, "{:?}", caller.statuses);
    // SAFETY: a live handle.
    assert_eq!(unsafe { certkv_cache_destroy(cache) }, CERTKV_OK);
    let _ = fs::remove_dir_all(&caller.folder);
}
