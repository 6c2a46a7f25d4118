// Which queries a CTA and a warp have, and which tokens those see.
#pragma once
#include "window.cuh"

// A CTA's share: TILE tokens of a chunk, or fewer, with the query heads of one KV head.
struct Tile {
    CkvChunk chunk;
    u32 head;          // KV head
    u32 first;         // its first token in the chunk
    u32 tokens;        // its tokens
    u32 packed;        // records that the launch goes over
    u32 blocks;        // blocks of the sequence up to the one of its last token, or the launch's last
    u32 fixed, after;  // of blocks it sees those below `fixed` and those from `after` on
};
static_assert(sizeof(Tile) == TILE_BYTES, "TILE_BYTES");

CKV_FN Tile tile_of(const CkvExtendArgs& a) {
    // Late tokens see the most: their tiles start first.
    const u32 number = a.tiles - 1 - blockIdx.x / a.kv_heads;
    u32 low = 0, high = a.chunk_count - 1;
#pragma unroll 1
    while (low < high) {
        const u32 middle = (low + high + 1) / 2;
        if (ldg(&a.chunks[middle].first_tile) <= number) low = middle;
        else high = middle - 1;
    }
    const u32* words = (const u32*)(a.chunks + low);
    Tile t;
    t.chunk = CkvChunk{ldg(words), ldg(words + 1), ldg(words + 2), ldg(words + 3), ldg(words + 4), ldg(words + 5), ldg(words + 6), ldg(words + 7), ldg(words + 8)};
    t.head = blockIdx.x % a.kv_heads;
    t.first = (number - t.chunk.first_tile) * TILE;
    const u32 left = t.chunk.tokens - t.first;
    t.tokens = left < (u32)TILE ? left : (u32)TILE;
    t.packed = t.chunk.coded;
    t.blocks = (t.chunk.before + t.first + t.tokens - 1) / BLOCK + 1;
    if (t.chunk.to < t.blocks) t.blocks = t.chunk.to;
    t.fixed = t.after = 0;
    if constexpr (WINDOWED) {
        // By its first token, which sees the oldest.
        const u32 length = t.chunk.before + t.first + 1, start = length > a.window ? length - a.window : 0;
        t.fixed = (a.sinks + BLOCK - 1) / BLOCK;
        t.after = start / BLOCK;
    }
    return t;
}

// The first block from `b` on that the tile sees.
CKV_FN u32 seen_from(const Tile& t, u32 b) { return WINDOWED && b >= t.fixed && b < t.after ? t.after : b; }

// Of row 16 mt + 8 half + lane / 4 of a warp: which token of the tile, and which head of the group.
CKV_FN u32 row_number(int mt, int half) { return warp() * ROWS + 16 * mt + 8 * half + (lane() >> 2); }
CKV_FN u32 token_of(u32 row) { return row / GROUP; }
CKV_FN u32 head_of(u32 row) { return row % GROUP; }
CKV_FN bool is_row(const Tile& t, u32 row) { return row < (u32)(TILE * GROUP) && token_of(row) < t.tokens; }
// Its position in the sequence. Rows that do not exist have one that sees nothing.
CKV_FN i32 position(const Tile& t, u32 row) { return is_row(t, row) ? (i32)(t.chunk.before + t.first + token_of(row)) : -1; }

// Where a row is among outputs and certificates: [token of all chunks][query head].
CKV_FN u64 output_row(const CkvExtendArgs& a, const Tile& t, u32 row) {
    const u64 token = (u64)t.chunk.first_row + t.first + token_of(row);
    return (token * a.kv_heads + t.head) * GROUP + head_of(row);
}

// First and last position among a warp's rows: first > last if it has none.
struct Span {
    i32 first, last;
};
CKV_FN Span span_of(const Tile& t) {
    const u32 row = warp() * ROWS;
    if (!is_row(t, row)) return Span{0, -1};
    u32 last = (row + ROWS - 1) / GROUP;
    if (last >= t.tokens) last = t.tokens - 1;
    if (last >= (u32)TILE) last = TILE - 1;
    return Span{position(t, row), (i32)(t.chunk.before + t.first + last)};
}

// Whether the query at `position` sees a token.
CKV_FN bool sees(const CkvExtendArgs& a, i32 position, i32 token) {
    if constexpr (WINDOWED) {
        if (token >= (i32)a.sinks && token + (i32)a.window <= position) return false;
    }
    return token <= position;
}

// What a warp sees of the block from token `at` on: nothing, some of it, or every row all of it.
enum Sight { NOTHING, SOME, EVERYTHING };
CKV_FN Sight sight_of(const CkvExtendArgs& a, const Span& r, i32 at) {
    const i32 end = at + BLOCK;
    if (at > r.last) return NOTHING;
    bool hidden = false;
    if constexpr (WINDOWED) {
        if (at >= (i32)a.sinks && end - 1 + (i32)a.window <= r.first) return NOTHING;
        hidden = end > (i32)a.sinks && at + (i32)a.window <= r.last;
    }
    // Rows that do not exist weigh what they like: nothing of them is written.
    return end - 1 <= r.first && !hidden ? EVERYTHING : SOME;
}
