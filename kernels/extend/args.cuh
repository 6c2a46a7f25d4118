// Arguments of the extend kernel. The twin in Rust is `ExtendArgs`.
#pragma once
#include "strides.cuh"
#include "verdict.cuh"

// New tokens of one sequence, and what of that which they see a launch goes over: records of blocks before them, and behind those blocks of originals, which lie in staging, one behind the other. One launch
// goes over all, or several leave to each other what they have: relay.cuh.
struct CkvChunk {
    u32 row;         // of the sequence, in the tables
    u32 before;      // tokens of the sequence before the chunk
    u32 tokens;      // of the chunk, at least 1
    u32 first_row;   // of the chunk, in queries and outputs
    u32 staged;      // block of staging that is block `from`
    u32 first_tile;  // tiles of the chunks before this one
    u32 coded;       // records, of blocks that all its tokens see as a whole
    u32 from, to;    // blocks of originals, or up to the chunk's last token
};

struct CkvExtendArgs {
    const CkvChunk* chunks; // [chunk_count]
    const u8* packed;       // record of page p, head h: packed + p * page_stride + h * head_stride
    u64 page_stride;
    u64 head_stride;
    const u32* table;       // [rows][table_stride] page of each full block
    const u8* staged;       // block b: staged + b * staged_stride, [kv_heads][keys, values] in fragment order
    u64 staged_stride;
    const float* centres;   // [rows][kv_heads][D] value centres; null: zero
    const void* query;      // [tokens of all chunks][kv_heads * GROUP][D], of type query_type, as query_strides has it
    void* out;              // the same shape, of type out_type, as out_strides has it
    CkvCertificate* certificates; // [tokens of all chunks][kv_heads * GROUP]; null: not wanted, and not computed
    u32 chunk_count;
    u32 tiles;              // of all chunks
    u32 kv_heads;
    u32 table_stride;
    u32 query_type;         // 0 f16, 1 bf16, 2 f32
    u32 out_type;           // 0 f16, 1 bf16, 2 f32
    float scale;            // of the logits
    float relative;         // tolerance as a share of the output's norm
    float absolute;         // and as a length: an output passes under the larger
    u32 window;             // of a variant with windows: newest tokens that a query sees, its own among them, at least 1
    u32 sinks;              // and first tokens of the sequence
    u32 part;               // of several launches: FOLLOWS and LEAVES
    const CkvLimit* limits; // [kv_heads * GROUP] a tolerance for each query head, in place of `relative` and `absolute`; null: those for all
    const float* metrics;   // of a variant whose keys are a calibration's: of each KV head their centre, then their balance scale, and more where those have groups: grouped.cuh; or their directions: directions.cuh
    float* sums;            // [tokens of all chunks][kv_heads * GROUP][D] what launches leave to each other of outputs, in the place of `out` or another; null of one alone
    float* kept;            // [tokens of all chunks][kv_heads * GROUP][KEPT] and beside that; the same
    CkvStrides query_strides;
    CkvStrides out_strides;
};
