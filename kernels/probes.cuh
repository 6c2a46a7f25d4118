// What is known of a block of one KV head at every level that it could have: R_b (3.3), then eps, eta and sop (3.1), (3.4), (3.5) of each level of the ladder,
// which ascends. No numbers where a level cannot hold the block. The twin in Rust is `ProbeSizes`.
#pragma once
#include "machine.cuh"

constexpr u32 OF_LEVEL = 3;

// Floats of one block of one KV head.
CKV_FN u32 probe_floats(u32 levels) { return 1 + OF_LEVEL * levels; }

// Where those of `block` of `head` begin.
CKV_FN u64 probe_at(u32 block, u32 kv_heads, u32 head, u32 levels) { return ((u64)block * kv_heads + head) * probe_floats(levels); }
