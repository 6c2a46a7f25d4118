// Arguments of the attend kernel. The twin in Rust is `AttendArgs`; both are checked against each other's size.
#pragma once
#include "strides.cuh"
#include "verdict.cuh"

// Addresses of a promoted block's 16-bit sides in fragment order, 0 where a side is not promoted.
struct CkvSides {
    u64 keys;
    u64 values;
};

// How many blocks of a KV head are corrected, and of how many of them keys and values.
struct alignas(16) CkvPicked {
    u32 blocks, keys, values, unused;
};

// New tokens of a sequence that one launch attends: how many tokens the first of them sees, how many they are, which token of the queries and the outputs
// the first one is (the others follow it), and where the block before the last one is, if the step's tokens have filled it and it has no record yet: 1 + the
// slot of its tail, else 0. Only with `closing`.
struct alignas(16) CkvDraft {
    u32 first, count, row, tail;
};

// What is remembered of a query head from one step to the next; all zero in a new row.
struct alignas(16) CkvDemand {
    float norm;    // least ||O'|| of late: an old one counts for a little more with every step
    float radius;  // the last ||O' - c||
    float kappa;   // even shares of the tolerance that a side of a block may add unrefined; 0: nothing is known
    float unused;
};

// Tables are indexed by row: the number of a sequence in the tables, which append shares; outputs by place in the batch.
struct CkvAttendArgs {
    const u8* packed;       // record of page p, head h: packed + p * page_stride + h * head_stride
    u64 page_stride;
    u64 head_stride;
    const u32* rows;        // [seqs] row of each sequence of the batch; null: its own number
    const u32* table;       // [rows][table_stride] page of each full block
    const u32* lens;        // [rows] visible tokens, at least 1
    const u32* promoted;    // [rows][kv_heads][table_stride]: 0, or 1 + index into sides; null: nothing is promoted
    const CkvSides* sides;
    const u32* tails;       // [rows] slot of the open block
    const u8* tail_base;    // slot t: tail_base + t * tail_stride, [kv_heads][keys, values] in fragment order
    u64 tail_stride;
    const Vec2* row_norms;  // of all rows of tails: row_norm.cuh
    const float* centres;   // [rows][kv_heads][d] value centres; null: zero
    const void* query;      // [seqs][kv_heads * group][d], of type query_type, as query_strides has it; with drafts of their tokens: [tokens][kv_heads * heads of a token][d]
    void* out;              // the same shape, of type out_type, as out_strides has it
    CkvCertificate* certificates; // [seqs][kv_heads * group]; with drafts a group's heads are token by token, those of a missing one the last one's
    u32* masses;            // [rows][kv_heads][table_stride][group]: see mass_word; null: not wanted
    u32* only;              // count, then seq * kv_heads + head of each head to compute, once; behind room for all heads, where their order is
                            // written, as much room; null: all
    u32* failures;          // count, then seq * kv_heads + head of each head over tolerance; null: not wanted
    float* partials;        // [ctas + heads of the launch][PARTIAL_STRIDE]
    u32* counters;          // [heads of the launch], zero between launches
    u32 seqs;
    u32 kv_heads;
    u32 table_stride;
    u32 query_type;         // 0 f16, 1 bf16, 2 f32
    u32 out_type;           // 0 f16, 1 bf16, 2 f32
    float scale;            // of the logits
    float relative;         // tolerance as a share of the output's norm
    float absolute;         // and as a length: a head passes under the larger
    CkvDemand* demands;     // [rows][kv_heads * group], see refine.cuh; null: residuals are not read
    u32* refined;           // [2] counted up: sides whose residuals were read, keys and values; null: not wanted
    u8* looks;              // [rows][kv_heads][table_stride] sides (1 keys, 2 values) whose residuals the pass has read; null: not wanted
    float* kept;            // [seqs * kv_heads][PARTIAL_STRIDE] state of every head when its pass is over, which a correction starts from; null: not wanted
    const u32* picks;       // of a correction: [seqs * kv_heads][table_stride] 16 * block + 4 * (sides that the pass read finely) + sides that are to be
    const CkvPicked* picked; // [seqs * kv_heads]
    u32 refine_all;         // 1: all residuals are read, and nothing is learned
    u32 settled;            // 1: lengths, tables, promoted words and records are what they will be before the launches ahead of this one
                            // end: they are looked up, and the first records asked for, meanwhile
    u32 closing;            // 1: a block that the last token fills still lies in its tail, as close.cu comes later; 0: it has a record
    u32 window;             // of a variant with windows: newest tokens that a query sees, its own among them, at least 1
    u32 sinks;              // and first tokens of the sequence
    const CkvDraft* drafts; // of a variant with drafts: [seqs]; draft.cuh
    const CkvLimit* limits; // [kv_heads * group] a tolerance for each query head, in place of `relative` and `absolute`; null: those for all
    const float* metrics;   // of a variant whose keys are a calibration's: of each KV head their centre, then their balance scale, and more where those have groups: grouped.cuh; or their directions: directions.cuh
    CkvStrides query_strides;
    CkvStrides out_strides;
    const u32* homes;       // of a variant for one of several levels: [rows][table_stride] which block of the sequence each of its blocks is, by which promoted
                            // words and masses are found: level.cuh; null of others
    const u32* ctas;        // of such a variant, in a launch over all heads: how many of its CTAs attend; null: all
    u32 beside;             // 1: the launch ahead is another level's of the same pass, and this one runs beside it
    u32 unused;
};
