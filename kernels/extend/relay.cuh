// Several launches over what a chunk sees: over records of several levels, formats that blocks before it have, or over more originals than staging holds.
//
// They run one behind the other. Each begins with nothing, and when its own records are over takes over what those before it have left, in no format's terms (outputs as they are and not rotated, logits with
// what a keys' centre adds); it goes on with its originals and leaves the sum. The last one writes outputs and certificates. Sums of outputs may be left in the place of the outputs: a lane
// finds there what the same lane has left, however CTAs are cut.
#pragma once

// Of `part`: a launch before has left something; one behind takes it over.
constexpr u32 FOLLOWS = 1, LEAVES = 2;

// What is left of a row beside its outputs: m, l and the sums of its certificate.
constexpr int KEPT = 12;

CKV_FN float* kept_of(const CkvExtendArgs& a, const Tile& t, u32 row) { return a.kept + output_row(a, t, row) * KEPT; }
CKV_FN float* sums_of(const CkvExtendArgs& a, const Tile& t, u32 row) { return a.sums + output_row(a, t, row) * D + 2 * (lane() & 3); }

// The row whose sums the lane keeps, and whether there is one.
CKV_FN u32 kept_row() { return warp() * ROWS + 8 * (lane() & 3) + (lane() >> 2); }
CKV_FN bool keeps_row(const Tile& t) { return (lane() & 3) < (u32)(2 * MT) && is_row(t, kept_row()); }

CKV_FN void take_over(const CkvExtendArgs& a, const Tile& t, State& st, Sums& sums) {
#pragma unroll
    for (int mt = 0; mt < MT; mt++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 row = row_number(mt, half);
            if (!is_row(t, row)) continue;
            const float *from = kept_of(a, t, row), *outputs = sums_of(a, t, row);
            const float m = fmaxf(st.m[mt][half], from[0]), own = power_of_two(st.m[mt][half] - m), other = power_of_two(from[0] - m);
            st.m[mt][half] = m, st.l[mt][half] = fma_rn(from[1], other, st.l[mt][half] * own);
#pragma unroll
            for (int e = 0; e < EIGHTHS; e++) {
                const Vec2 x = *(const Vec2*)(outputs + 8 * e);
                st.o[mt][e][2 * half] = fma_rn(u32_as_float(x.x), other, st.o[mt][e][2 * half] * own);
                st.o[mt][e][2 * half + 1] = fma_rn(u32_as_float(x.y), other, st.o[mt][e][2 * half + 1] * own);
            }
        }
    }
    const float m = own_row(st.m);
    if (!keeps_row(t)) return;
    const float* from = kept_of(a, t, kept_row());
    Sums of = sums, left = {from[0], from[2], from[3], from[4], from[5], from[6], from[7], from[8], from[9], 0.0f};
    rescale(of, m), rescale(left, m);
    // Terms from above, whose order is fixed.
    of.g = (of.g + left.g) * UP, of.gr = (of.gr + left.gr) * UP, of.h = (of.h + left.h) * UP, of.v = (of.v + left.v) * UP;
    of.g_rows = (of.g_rows + left.g_rows) * UP, of.gr_rows = (of.gr_rows + left.gr_rows) * UP;
    of.radius = most(of.radius, left.radius), of.value_norm = most(of.value_norm, left.value_norm);
    sums = of;
}

// For a launch that takes over. What this one has taken over lies in the same place.
CKV_FN void leave(const CkvExtendArgs& a, const Tile& t, const State& st, const Sums& sums) {
    const float m = own_row(st.m), l = own_row(st.l);
    // Exponents have been read by all lanes of a row.
    syncwarp();
#pragma unroll
    for (int mt = 0; mt < MT; mt++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 row = row_number(mt, half);
            if (!is_row(t, row)) continue;
            float* to = sums_of(a, t, row);
#pragma unroll
            for (int e = 0; e < EIGHTHS; e++) *(Vec2*)(to + 8 * e) = Vec2{float_as_u32(st.o[mt][e][2 * half]), float_as_u32(st.o[mt][e][2 * half + 1])};
        }
    }
    if (!keeps_row(t)) return;
    Sums s = sums;
    rescale(s, m);
    float* to = kept_of(a, t, kept_row());
    const float scalars[KEPT] = {m, l, s.g, s.gr, s.h, s.v, s.g_rows, s.gr_rows, s.radius, s.value_norm, 0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < KEPT; k++) to[k] = scalars[k];
}
