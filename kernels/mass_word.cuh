// What a step has left of a block for a query head, in one word: `mass_word` of attend/certificate.cuh writes it and says how, `MassWord` is the twin in Rust. All are
// logarithms to base 2. The select kernel, which sums many of them, reads its own way (select/score.cuh).
#pragma once
#include "machine.cuh"

// The block's sum of exponentials. Of a word of 0 there is none.
CKV_FN float log2_mass_of(u32 word) { return (float)(word >> 17) * (1.0f / 32.0f) - 512.0f; }
// g_b (5.9) over that, as if its keys were read from codes.
CKV_FN float log2_share_of(u32 word) { return (float)(word >> 5 & 0xfffu) * (1.0f / 64.0f) - 32.0f; }
// P_b / W_b.
CKV_FN float log2_evenness_of(u32 word) { return (float)(word & 0x1fu) * -0.125f; }
