//! Tests of the crate: single rules, then a random driver against a plain model.
mod alloc;
mod faults;
mod gate;
mod lease;
mod level;
mod model;
mod prefix;
mod states;
mod streams;
mod table;
mod verify;
mod window;

use crate::{PageAllocator, Pools};

/// Worlds of a gate: `usual`, or as many as `CERTKV_PAGE_WORLDS` says for a long run.
fn worlds(usual: u64) -> u64 {
    std::env::var("CERTKV_PAGE_WORLDS").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

/// Pools of `host`, `packed`, `tail` pages.
fn pools(host: usize, packed: usize, tail: usize) -> Pools {
    let create = |n| PageAllocator::create(n).unwrap();
    Pools {
        host: create(host),
        packed: create(packed),
        tail: create(tail),
        swap: create(packed),
        levels: Default::default(),
    }
}
