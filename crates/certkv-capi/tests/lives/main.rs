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
