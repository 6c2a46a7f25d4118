//! Originals of live sequences in two places: a frame of host memory, or a record in a store (Tier-3).
//!
//! * [`map`]: which place a block's originals are in, layer by layer. Pure.
//! * [`records`]: the records: names, what is under way, what is to be deleted, and their bytes in the ledger.
//!
//! Who has the bytes and the streams, the engine, moves between them. The states are those of docs/states.md (5a).
pub mod map;
#[cfg(not(any(loom, shuttle)))]
pub mod records;
#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;
