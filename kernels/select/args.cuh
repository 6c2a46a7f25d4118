// Arguments of the select kernel. The twin in Rust is `SelectArgs`; both are checked against each other's size.
#pragma once

// What a launch does.
constexpr u32 PLAN = 0;    // the next step's promoted set of every head of the batch, and the copies it needs
constexpr u32 REPAIR = 1;  // more for the heads in `only`, at once
constexpr u32 FORGET = 2;  // nothing is known any more of the pages and rows in `only`
constexpr u32 REFINE = 3;  // sides of refinable records whose residuals the heads in `only` need, for a correction

// An entry of a FORGET list: a page, or with one of these bits a row, or a row * table_stride + block.
constexpr u32 ROW_ENTRY = 0x80000000u, BLOCK_ENTRY = 0x40000000u;
// No host page.
constexpr u32 NO_PAGE = 0xffffffffu;

// Places in `stats`.
constexpr u32 STAT_KEYS = 0;       // key sides wanted exactly
constexpr u32 STAT_VALUES = 1;     // value sides wanted exactly
constexpr u32 STAT_RESIDENT = 2;   // of those, found in scratch
constexpr u32 STAT_MISSING = 3;    // and not found
constexpr u32 STAT_COPIES = 4;     // copies queued
constexpr u32 STAT_EVICTIONS = 5;  // sides that lost their slot to a copy
constexpr u32 STAT_REFUSED = 6;    // sides left on codes: no host page, no slot, no room on the list
constexpr u32 STAT_DIRECT = 7;     // sides to be read over the link (REPAIR)
constexpr u32 STAT_SET_KEYS = 8;   // key sides in the set that a PLAN leaves, those kept included
constexpr u32 STAT_SET_VALUES = 9;
constexpr u32 STAT_REFINED_KEYS = 10;   // sides picked for their residuals (REFINE)
constexpr u32 STAT_REFINED_VALUES = 11;
constexpr u32 STATS = 12;

// One copy, laid out as CkvGatherItem of gather.cu has it.
struct CkvSelectCopy {
    u64 from;
    u64 to;
    u64 bytes;
    u64 mark;
};

// Slots of one side in fast memory: slot i at base + i * side bytes.
struct CkvSlotPool {
    u8* base;
    u32* owner;  // [count] 0, or 1 + the item in it; item (page * kv_heads + head) * 2 + side, 1 for values
    u32* stamp;  // [count] the last step that used it
    u32* hand;   // where the search for a slot goes on
    u32 count;
    u32 unused;
};

// Records of a level (attend/level.cuh): of page p, `first` and up, head h: packed + (p - first) * page_stride + h * head_stride.
struct alignas(16) CkvLevel {
    u64 packed;
    u64 page_stride;
    u32 head_stride;
    u32 first;
    u32 summary;  // where the error summary is in a record
    u32 unused;
};

// Rows and tables are those of attend. `pages`: page numbers in use are below it.
struct CkvSelectArgs {
    const u8* packed;       // record of page p, head h: packed + p * page_stride + h * head_stride
    u64 page_stride;
    u64 head_stride;
    const u32* rows;        // [seqs] row of each sequence of the batch; null: its own number
    const u32* table;       // [rows][table_stride]
    const u32* lens;        // [rows]
    const CkvCertificate* certificates;  // [seqs][kv_heads * group]
    const u32* masses;      // [rows][kv_heads][table_stride][group]
    const u32* only;        // REPAIR: count, then seq * kv_heads + head; FORGET: count, then pages and rows
    u32* promoted;          // [rows][kv_heads][table_stride]
    CkvSides* sides;        // [2][pages * kv_heads]: what is in scratch; behind it what REPAIR reads from anywhere; then [rows][kv_heads][places] those of
                            // protected blocks: protect.cu
    u32* resident;          // [pages * kv_heads][2]: 0, or 1 + slot
    CkvSlotPool keys;
    CkvSlotPool values;
    const u32* hosts;       // [rows][table_stride] host page of each full block, NO_PAGE for none; null: none
    const CkvSides* originals;  // [host pages][kv_heads] where each page's originals are, in fragment order; 0 for nowhere near
    CkvSelectCopy* copies;  // [capacity]
    u32* queue;             // {length of `copies`, places given out}; both zero before the first PLAN that fills it
    const u32* step;        // at least 1, grows by 1 from step to step
    u32* stats;             // [STATS] counted up; null: not wanted
    const u8* looks;        // REFINE, REPAIR: [rows][kv_heads][table_stride] sides whose residuals the pass has read; null: none
    u32* picks;             // REFINE: [seqs * kv_heads][table_stride] see CkvAttendArgs, by block
    CkvPicked* picked;      // REFINE: [seqs * kv_heads] how many
    u32* failures;          // REFINE: count, then the heads that no residuals bring under their tolerance are added
    u32* clear[4];          // words set to 0 by this launch; null: none
    const CkvDraft* drafts; // [seqs] see CkvAttendArgs; null: of single tokens
    Vec2* held;             // [rows][kv_heads][places] see protect.cu; null: nothing is protected
    u32 mode;
    u32 seqs;
    u32 kv_heads;
    u32 table_stride;
    u32 pages;
    u32 capacity;           // copies at most on the list, also what one PLAN may queue for a step
    float target;           // share of the tolerance that may be left unpromoted
    u32 progress;           // REPAIR promotes at least 1/progress of the blocks more where the target asks for nothing new
    u32 window;             // see CkvAttendArgs
    u32 sinks;
    u32 closing;            // see CkvAttendArgs
    u32 places;             // of protected blocks, a head
    const CkvLevel* levels; // of a variant for levels: [level_count] by `first`, from 0; null of others
    u64 level_count;
};
