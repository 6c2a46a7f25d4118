// Where the outputs alone fill most registers: numbers that wait in shared memory until they are needed. Each lane has its own words,
// word i of lane l at 32 i + l, so nothing waits for another lane.
#pragma once

struct Aside {
    float* words;
};

// Words of the sums, then those of each column tile, two of the query, then, for the largest heads, logits from codes while those from originals are
// compared with them.
constexpr int ASIDE_SUMS = CORRECTS ? 10 : 9, ASIDE_TILE = 10, ASIDE_QUERY = ASIDE_SUMS + (ASIDE ? NT * ASIDE_TILE : 0), ASIDE_LOGITS = ASIDE_QUERY + (ASIDE ? 2 : 4);
constexpr bool LOGITS_ASIDE = ASIDE && D == 256;
// Where residuals are read and twelve warps share the registers, those logits wait in place of the codes that they were made from.
constexpr bool LOGITS_IN_SLOT = !LOGITS_ASIDE && REFINABLE && WARPS > 8 && BLOCK * D / 8 * CKV_KEY_BITS >= 512 * TILES * COLUMNS;
constexpr int ASIDE_WORDS = ASIDE_LOGITS + (LOGITS_ASIDE ? TILES * COLUMNS * 4 : 0);
static_assert(!ASIDE || SUMMARY_WORDS + 32 * ASIDE_WORDS <= PARTIAL_STRIDE, "they fit into a warp's partial result");

// Refining takes registers, too, and twelve warps have fewer: then what the certificate needs waits there, if there is room.
constexpr bool FEW = REFINABLE || WARPS > 8;
constexpr bool SUMS_ASIDE = ASIDE || (FEW && SUMMARY_WORDS + 32 * ASIDE_SUMS <= PARTIAL_STRIDE);
constexpr bool QUERY_ASIDE = ASIDE || (FEW && SUMMARY_WORDS + 32 * ASIDE_LOGITS <= PARTIAL_STRIDE);

CKV_FN float& aside_word(const Aside& aside, int i) { return aside.words[32 * i + (int)lane()]; }

CKV_FN void put_sums(const Aside& aside, const Sums& s) {
    const float x[10] = {s.m, s.g, s.gr, s.h, s.v, s.g_rows, s.gr_rows, s.radius, s.value_norm, s.gross};
#pragma unroll
    for (int i = 0; i < ASIDE_SUMS; i++) aside_word(aside, i) = x[i];
}
CKV_FN void take_sums(const Aside& aside, Sums& s) {
    float x[10];
    x[9] = 0.0f;
#pragma unroll
    for (int i = 0; i < ASIDE_SUMS; i++) x[i] = aside_word(aside, i);
    s = Sums{x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8], x[9]};
}

// The exponents, sums of weights and offsets of column tile `nt`, and its logit units, which do not change.
CKV_FN void put_tile(const Aside& aside, int nt, const State& st) {
    const int at = ASIDE_SUMS + nt * ASIDE_TILE;
#pragma unroll
    for (int i = 0; i < 2; i++) aside_word(aside, at + i) = st.m[nt][i], aside_word(aside, at + 2 + i) = st.l[nt][i];
#if CKV_VALUE == 1
#pragma unroll
    for (int i = 0; i < 4; i++) aside_word(aside, at + 4 + i) = st.offset[nt][i];
#endif
}
CKV_FN void take_tile(const Aside& aside, int nt, State& st) {
    const int at = ASIDE_SUMS + nt * ASIDE_TILE;
#pragma unroll
    for (int i = 0; i < 2; i++) st.m[nt][i] = aside_word(aside, at + i), st.l[nt][i] = aside_word(aside, at + 2 + i);
#if CKV_VALUE == 1
#pragma unroll
    for (int i = 0; i < 4; i++) st.offset[nt][i] = aside_word(aside, at + 4 + i);
#endif
}
CKV_FN void put_units(const Aside& aside, int nt, const Query& q) {
#pragma unroll
    for (int i = 0; i < 2; i++) aside_word(aside, ASIDE_SUMS + nt * ASIDE_TILE + 8 + i) = q.unit[nt][i];
}
CKV_FN void take_units(const Aside& aside, int nt, Query& q) {
#pragma unroll
    for (int i = 0; i < 2; i++) q.unit[nt][i] = aside_word(aside, ASIDE_SUMS + nt * ASIDE_TILE + 8 + i);
}

// Where logits from codes wait: word i of lane l at 32 i + l.
CKV_FN float* logits_of(const Aside& aside, const u8* record) {
    return LOGITS_IN_SLOT ? (float*)(record + CKV_KEY_CODES) : aside.words + 32 * ASIDE_LOGITS;
}
CKV_FN void put_logits(float* words, const Logits& s) {
#pragma unroll
    for (int i = 0; i < TILES * COLUMNS * 4; i++) words[32 * i + (int)lane()] = s.x[i / (4 * COLUMNS)][i / 4 % COLUMNS][i % 4];
}
CKV_FN float take_logit(const float* words, const Logits& s, int t, int nt, int i) {
    return LOGITS_ASIDE || LOGITS_IN_SLOT ? words[32 * ((t * COLUMNS + nt) * 4 + i) + (int)lane()] : s.x[t][nt][i];
}

CKV_FN float take_reach(const Aside& aside, const Query& q) { return QUERY_ASIDE ? aside_word(aside, ASIDE_QUERY) : q.reach; }
CKV_FN float take_step(const Aside& aside, const Query& q) { return QUERY_ASIDE ? aside_word(aside, ASIDE_QUERY + 1) : q.step; }

// What a head begins with.
CKV_FN void put_all(const Aside& aside, const State& st, const Sums& sums, const Query& q) {
    if constexpr (SUMS_ASIDE) put_sums(aside, sums);
    if constexpr (ASIDE) {
#pragma unroll
        for (int nt = 0; nt < NT; nt++) put_tile(aside, nt, st), put_units(aside, nt, q);
    }
    if constexpr (QUERY_ASIDE) aside_word(aside, ASIDE_QUERY) = q.reach, aside_word(aside, ASIDE_QUERY + 1) = q.step;
    if constexpr (QUERY_ASIDE && !ASIDE) aside_word(aside, ASIDE_QUERY + 2) = q.unit[0][0], aside_word(aside, ASIDE_QUERY + 3) = q.unit[0][1];
}

// The logit units of a head's only column tile.
CKV_FN void take_only_units(const Aside& aside, Query& q) {
    q.unit[0][0] = aside_word(aside, ASIDE_QUERY + 2), q.unit[0][1] = aside_word(aside, ASIDE_QUERY + 3);
}
