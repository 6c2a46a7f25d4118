// Arguments of the ladder kernel. The twin in Rust is `LadderArgs`; both are checked against each other's size.
#pragma once
#include "attend/args.cuh"
#include "select/args.cuh"

// Passes of a launch at most.
constexpr u32 MOST_PASSES = 2;
// Words that a launch counts its stages in: see turns.cuh.
constexpr u32 TURN_WORDS = 2 * (1 + MOST_PASSES) + 1;

struct CkvLadderArgs {
    CkvSelectArgs select;              // REPAIR or REFINE, for the heads that the first pass is over
    CkvAttendArgs passes[MOST_PASSES]; // each over a list of heads, `only`; that of the second is what the first adds to
    u32* turns;                        // [TURN_WORDS] zero between launches
    u32 chooses;                       // 1: `select` comes first
    u32 count;                         // passes, at least 1
};
