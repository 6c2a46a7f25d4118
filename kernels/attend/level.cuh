// One of several levels: formats that blocks of a sequence have, each with records of its own.
//
// A launch of a variant with CKV_LEVEL goes over the blocks that have one of them, and the open ones that were given to it. Its tables and lengths are those of
// that level, block after block without a gap; which block of the sequence each is, `homes` says, by which it finds its promoted words and leaves its masses.
// It writes no output: the state of every head goes to `kept`, as unite.cu takes it from all levels. Without levels (CKV_LEVEL 0) nothing of this is compiled.
//
// A length is twice the tokens, and 1 more where the last of the blocks is one that the step has filled and lies in its tail: which level has a row's open block the host
// says, so that a launch needs none for it alone. Launches of a pass over all heads run beside each other, each on as many CTAs as the host gives it (`ctas`), or on all, where a CTA
// begins as one of the launch ahead ends. The first waits for what is ahead of the pass, and is so far when the next begins; that waits for the first at its end (`beside`), so that the
// end of the last is that of all.
#pragma once

constexpr bool LEVELLED = CKV_LEVEL == 1;
static_assert(!LEVELLED || (!CORRECTS && !REFINABLE && !WINDOWED && !DRAFTED), "levels are codes alone, of single tokens that see everything");

// CTAs that attend.
CKV_FN u32 ctas_of_pass(const CkvAttendArgs& a) {
    if (!LEVELLED || !a.ctas || a.only) return gridDim.x;
    const u32 own = ldg(a.ctas);
    return own < 1 ? 1 : own < gridDim.x ? own : gridDim.x;
}

// Number in the sequence of the j-th of a row's blocks at the level.
CKV_FN u32 home_of(const CkvAttendArgs& a, u32 row, u32 j) { return LEVELLED ? ldg(a.homes + (u64)row * a.table_stride + j) : j; }

// Leaves a slice of what head `h` sums to, as it is and not rotated.
CKV_FN void leave_outputs(const CkvAttendArgs& a, u64 head, int h, int channel, const float (&x)[VECTOR]) {
    float* at = a.kept + head * PARTIAL_STRIDE + h * D + channel;
#pragma unroll
    for (int v = 0; v < VECTOR; v++) at[v] = x[v];
}

// And its scalars. What rounding may have taken from the sums depends on the format, so that it is said in their own unit, in the place of the chain:
// (5.27) times the sum of weights.
CKV_FN void leave_scalars(const CkvAttendArgs& a, u64 head, int h, const float* s, u32 tokens) {
    float* at = a.kept + head * PARTIAL_STRIDE + GROUP * D + h * SCALARS;
    const float floors = (float)tokens * 6.0e-8f;
    const float accumulated = (s[AT_NORM] * (digits_of(s[AT_CHAIN] + MERGED_CHAIN) * s[AT_L] + floors) + floors * LARGEST_CODE * ROOT_D) * UP;
#pragma unroll
    for (int k = 0; k < SCALARS; k++) at[k] = k == AT_CHAIN ? accumulated : s[k];
}
