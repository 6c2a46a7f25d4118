//! What becomes of sequences, through the C functions: out of memory and back, into files and back, from each other's prefixes; and the
//! figures that a cache and a configuration give of themselves.
mod cache;
mod figures;
mod files;
mod prefixes;
mod swaps;

pub(crate) use cache::*;
pub(crate) use certkv_c::certkv_status::*;
pub(crate) use certkv_c::*;
pub(crate) use core::ptr;
pub(crate) use std::fs;
