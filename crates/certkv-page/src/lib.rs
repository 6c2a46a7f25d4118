//! Slab page allocator, page words, block tables, fork and truncate.
