//! What becomes of sequences, through the C functions: out of memory and back, into files and back, from each other's prefixes, with originals
//! and prefixes in stores; and the figures that a cache and a configuration give of themselves.
mod cache;
mod carried;
mod events;
mod figures;
mod files;
mod host;
mod log;
mod prefixes;
mod spills;
mod swaps;
mod windows;

pub(crate) use cache::*;
pub(crate) use certkv_c::certkv_status::*;
pub(crate) use certkv_c::*;
pub(crate) use core::ptr;
pub(crate) use std::fs;

#[test]
fn ids_of_another_cache_are_unknown() {
    let [here, there] = [Cache::new(&config()), Cache::new(&config())];
    let [own, foreign] = [here.create(), there.create()];
    // The same place of either.
    assert!(own as u32 == foreign as u32 && own != foreign);
    assert_eq!(here.begin(foreign, 1), Err(CERTKV_UNKNOWN_SEQUENCE));
    let (mut length, mut fork) = (7, 0);
    // SAFETY: live handles, locals.
    unsafe {
        assert_eq!(certkv_sequence_length(here.0, foreign, &mut length), CERTKV_UNKNOWN_SEQUENCE);
        assert_eq!(certkv_sequence_fork(here.0, foreign, &mut fork), CERTKV_UNKNOWN_SEQUENCE);
        assert_eq!(certkv_sequence_truncate(here.0, foreign, 0), CERTKV_UNKNOWN_SEQUENCE);
        assert_eq!(certkv_sequence_release(here.0, foreign), CERTKV_UNKNOWN_SEQUENCE);
    }
    assert_eq!((length, here.length(own), there.length(foreign)), (7, 0, 0));
}
