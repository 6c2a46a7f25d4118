// What an open block adds to rotated sums of values, math.md (2.10).
//
// Every head has one in nearly every step, and promoted blocks may not be near: so it is turned by itself, and the sums stay rotated. In the block's
// slot, which holds nothing, as rows of D floats: first what came before, then what the block adds. Where there is no room, or more heads, sums are
// turned (turn_state).
#pragma once

#if CKV_VALUE == 2
constexpr bool TURNS_OPEN = !ASIDE && D <= 128 && CKV_RECORD >= 2 * GROUP * D * 4;

// Rows become R of them. One warp.
CKV_FN void turn_rows(float* rows) {
    constexpr int AT_ONCE = GROUP < 4 ? GROUP : 4;
    syncwarp();
#pragma unroll 1
    for (int h = 0; h < GROUP; h += AT_ONCE) {
        float x[AT_ONCE][CHUNKS];
#pragma unroll
        for (int e = 0; e < AT_ONCE; e++) {
#pragma unroll
            for (int m = 0; m < CHUNKS; m++) {
                x[e][m] = h + e < GROUP ? with_sign(rows[(h + e) * D + 32 * m + lane()], turn_signs(m) >> lane() & 1) : 0.0f;
            }
        }
        // Few instructions: what is done once to a head is fetched from far away.
#pragma unroll 1
        for (int d = 1; d < 32; d *= 2) {
            const bool upper = lane() & d;
#pragma unroll
            for (int e = 0; e < AT_ONCE; e++) {
#pragma unroll
                for (int m = 0; m < CHUNKS; m++) {
                    const float other = shfl_xor(x[e][m], d);
                    x[e][m] = upper ? other - x[e][m] : x[e][m] + other;
                }
            }
        }
#pragma unroll
        for (int half = 1; half < CHUNKS; half *= 2) {
#pragma unroll
            for (int e = 0; e < AT_ONCE; e++) {
#pragma unroll
                for (int m = 0; m < CHUNKS; m++) {
                    if (m & half) continue;
                    const float a = x[e][m], b = x[e][m + half];
                    x[e][m] = a + b, x[e][m + half] = a - b;
                }
            }
        }
#pragma unroll
        for (int e = 0; e < AT_ONCE; e++) {
#pragma unroll
            for (int m = 0; m < CHUNKS; m++) {
                if (h + e < GROUP) rows[(h + e) * D + 32 * m + lane()] = x[e][m] * (float)TURN_FACTOR;
            }
        }
    }
    syncwarp();
}

// Before an open block: its sums begin with nothing.
CKV_FN void put_apart(State& st, float* rows) {
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        if constexpr (PAIRED) store_outputs_paired(st, rows);
        else store_outputs(st, nt, rows);
#pragma unroll
        for (int c = 0; c < 2 * CHUNKS; c++) {
#pragma unroll
            for (int i = 0; i < 4; i++) st.o[nt][c][i] = 0.0f;
        }
    }
}

// Behind it: they are turned, and join the others.
CKV_FN void join_turned(State& st, float* rows) {
    put_apart(st, rows + GROUP * D);
    turn_rows(rows + GROUP * D);
    const int r = lane() >> 2, first = 2 * (lane() & 3);
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            // What was in a head's low column is in its high one.
            const int column = 8 * nt + first + (i & 1);
            if (column >= GROUP) continue;
            const float* from = rows + column * D + 8 * (i / 2) + r;
#pragma unroll
            for (int c = 0; c < 2 * CHUNKS; c++) st.o[nt][c][i] = from[16 * c] + from[GROUP * D + 16 * c];
        }
    }
    // Twice, and no turn of the sums.
    st.turns += 2;
    fence_shared_async();
}
#endif
