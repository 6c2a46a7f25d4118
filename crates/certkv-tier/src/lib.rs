//! Residency and moves between scratch, packed and host memory.
