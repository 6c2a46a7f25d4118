// R of a row that a warp holds, channel 32 m + lane in x[m]: math.md (2.10), in the order of additions that rotation.rs has. Of rows that are coded in double precision, of queries in single.
//
// Macros: CKV_TURN_0 .. CKV_TURN_7, signs of the rotation, 32 channels each, where a side is rotated as a whole.
#pragma once
#include "machine.cuh"

// Sides of one width: those of several are another matter, grouped.cuh.
#define CKV_TURBO_KEYS (CKV_KEY == 3 && CKV_GROUPED == 0)
#define CKV_ROTATES (CKV_TURBO_KEYS || CKV_VALUE == 2)

#if CKV_ROTATES
// Signs of 32 channels: set bits are -1.
CKV_FN constexpr u32 turn_signs(int chunk) {
    constexpr u32 WORDS[8] = {CKV_TURN_0, CKV_TURN_1, CKV_TURN_2, CKV_TURN_3, CKV_TURN_4, CKV_TURN_5, CKV_TURN_6, CKV_TURN_7};
    return WORDS[chunk];
}
constexpr double TURN_FACTOR = CKV_DIM == 64 ? 0.125 : CKV_DIM == 128 ? 0.08838834764831845 : 0.0625;

template <class T> CKV_FN void turn_row(T (&x)[CKV_DIM / 32]) {
    constexpr u32 PARTS = CKV_DIM / 32;
#pragma unroll
    for (u32 m = 0; m < PARTS; ++m) {
        x[m] = turn_signs((int)m) >> lane() & 1 ? -x[m] : x[m];
#pragma unroll
        for (u32 d = 1; d < 32; d *= 2) {
            const T other = shfl_xor(x[m], (int)d);
            x[m] = lane() & d ? other - x[m] : x[m] + other;
        }
    }
#pragma unroll
    for (u32 half = 1; half < PARTS; half *= 2) {
#pragma unroll
        for (u32 m = 0; m < PARTS; ++m) {
            if (m & half) continue;
            const T a = x[m], b = x[m + half];
            x[m] = a + b, x[m + half] = a - b;
        }
    }
#pragma unroll
    for (u32 m = 0; m < PARTS; ++m) x[m] *= (T)TURN_FACTOR;
}
#endif
