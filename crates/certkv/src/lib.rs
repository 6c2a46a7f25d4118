//! Certified paged KV cache: Cache, Sequence, Step.
