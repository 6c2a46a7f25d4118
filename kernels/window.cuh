// What a query sees of a sequence in a layer with a sliding window and sinks: the one of the last of `tokens` tokens, at position p, sees
// token t if t < sinks or t + window > p.
//
// Blocks that it sees wholly or in part are numbered as they are visible, so that lines, picks and histograms have no gap: first those
// that hold sinks, then those from the window's first token on. What is between is not read. It follows from the length alone, which
// is in device memory, so that a recorded launch stays right while sequences grow. Without windows (CKV_WINDOW 0) numbers are as they
// are, and nothing of this is compiled.
#pragma once

constexpr bool WINDOWED = CKV_WINDOW == 1;

struct Seen {
    u32 first, end;   // hidden tokens, first..end; none where both are 0
    u32 fixed, skip;  // blocks that hold sinks; blocks behind them that are hidden as a whole

    // Number in the sequence of the j-th block that is seen.
    __device__ __forceinline__ u32 number(u32 j) const { return WINDOWED && j >= fixed ? j + skip : j; }

    // Hidden tokens of block `block`, first | end << 8; 0 for none.
    __device__ __forceinline__ u32 hidden(u32 block) const {
        constexpr u32 SIZE = (u32)BLOCK;
        const u32 at = block * SIZE, from = first > at ? first - at : 0, to = end > at ? end - at : 0;
        const u32 stop = to < SIZE ? to : SIZE;
        return WINDOWED && from < stop ? from | stop << 8 : 0;
    }
};

// Whether a row of a block is among its hidden ones, as Seen::hidden has them.
CKV_FN bool hides(u32 hidden, u32 row) { return row >= (hidden & 0xffu) && row < hidden >> 8; }

// `a`: arguments with `window` and `sinks`.
template <class Args> CKV_FN Seen seen_of(const Args& a, u32 tokens) {
    Seen s = {0, 0, 0, 0};
    if constexpr (WINDOWED) {
        const u32 start = tokens > a.window ? tokens - a.window : 0;
        constexpr u32 SIZE = (u32)BLOCK;
        s.fixed = (a.sinks + SIZE - 1) / SIZE;
        if (start > a.sinks) {
            s.first = a.sinks, s.end = start;
            s.skip = start / SIZE > s.fixed ? start / SIZE - s.fixed : 0;
        }
    }
    return s;
}

// Blocks of a sequence that have records: the full ones, but for one that the last token fills while it still lies in its tail (`closing`).
template <class Args> CKV_FN u32 recorded_blocks(const Args& a, u32 tokens) { return tokens > a.closing ? (tokens - a.closing) / (u32)BLOCK : 0; }
// Rows of the block behind them, which lies in the tail: 0 for none.
template <class Args> CKV_FN u32 open_rows(const Args& a, u32 tokens) { return tokens - recorded_blocks(a, tokens) * (u32)BLOCK; }

// How many tokens a query sees.
template <class Args> CKV_FN u32 seen_tokens(const Args& a, u32 tokens) {
    const Seen s = seen_of(a, tokens);
    return tokens - (s.end - s.first);
}
