// What append.cu could not store: one word a row of the tables, with the first such token's position in its sequence and what was wrong with it; 0: nothing.
// It holds until the sequence is cut behind that position, by forgive.cu. Rows of tables whose words are not 0 have results that are worth nothing.
#pragma once
#include "machine.cuh"

namespace ckv_refused {

// What was wrong.
constexpr u32 NONFINITE = 1;  // an input was NaN or infinite
constexpr u32 ROUNDING = 2;   // an input was finite and its rounding to the store type is not
constexpr u32 NO_PLACE = 4;   // the sequence has no tail, or its tables end before the block

constexpr u32 CAUSE_BITS = 3, MOST = 0xffffffffu >> CAUSE_BITS;

// Of two words the larger is the earlier token's.
CKV_FN u32 word_of(u32 position, u32 causes) { return (MOST - (position < MOST ? position : MOST)) << CAUSE_BITS | causes; }
CKV_FN u32 position_of(u32 word) { return MOST - (word >> CAUSE_BITS); }

}  // namespace ckv_refused
