// The certificate inside the pass: math.md (5.11) per block, (5.10) and (5.26)-(5.28) at the end.
//
// The numbers of query head h live in one lane, that of row h % 8, column h % 8 of an 8 x 8 result: there the matrix unit
// leaves the block's sum of weights W, its sum of squares, and the sums of |q sigma| and (q sigma)^2, without a shuffle.
#pragma once
#include "bound.cuh"

// What a pair of halves misses of the number it stands for.
constexpr float U_PAIR = 2.4e-7f;
// The same for a pair of bf16, which stands in where originals are bf16.
constexpr float U_ROW = CKV_STORE == 1 ? 1.6e-5f : U_PAIR;

// Products in a chain of logits: codes or rows, and offsets.
// Each group of a width adds its own to the others once. Residuals are products behind those of the codes, in the same chain, and theirs with the scales weigh at most a quarter of a code each.
constexpr float CODE_CHAIN = (PAIRED ? 2.0f : 4.0f) * CHUNKS * ((CKV_KEY == 1 ? 2.0f : 1.0f) + (REFINABLE ? 1.0f : 0.0f)) + (REFINABLE ? 6.0f : 4.0f) + (GROUPED ? (float)CKV_KEY_SLOTS : 0.0f);
constexpr float ROW_CHAIN = (PAIRED ? 2.0f : 4.0f) * CHUNKS + 4.0f;

// A coded value is summed as code times scale and offset apart: together they are at most this many times the value's norm,
// because both lie within the range of their group. Residuals reach up to a step and half a step back, and double a chain.
constexpr float RESIDUAL_STEP = REFINABLE ? 1.5f : 0.0f;
// TurboQuant's levels are below 1, those of more than 4 bits below 2: see add_codes.
constexpr float LARGEST_CODE = CKV_VALUE == 1 ? (float)((1 << CKV_VALUE_BITS) - 1) + RESIDUAL_STEP : CKV_VALUE == 2 ? (CKV_VALUE_BITS > 4 ? 2.0f : 1.0f) : 0.0f;
constexpr float SPREAD =
    CKV_VALUE == 1 ? 1.0f + 2.0f * (1.0f + RESIDUAL_STEP / (float)((1 << CKV_VALUE_BITS) - 1)) * root((float)CKV_VALUE_GROUP) * UP : 1.0f;
// Codes with scales per block are summed apart first, and with offsets their weights besides.
constexpr int VALUE_CHAIN = (TILES + (CKV_VALUE == 6 ? 3 : 0)) * (REFINABLE ? 2 : 1) + (CKV_VALUE >= 3 && CKV_VALUE <= 5 ? 1 : 0);
// A rotation of what was summed, in products of a chain.
constexpr float TURN_CHAIN = TURN_ROUNDING / U_MMA * UP, MERGED_CHAIN = TURBO_VALUES ? TURN_CHAIN : 0.0f;

// Of a block scored from codes. `square`: sum over channels of (q sigma)^2 in units of the query's step.
CKV_FN LogitBound code_bound(const Summary& b, float reach, float step, float square) {
    LogitBound r;
#if CKV_KEY == 1
    // The products were rounded to f16 before they were squared.
    const float norm = root_up(square) * 1.001f + ROOT_D * 6.0e-8f;
    // (4.15) for a pair of halves: 2^-21 of the product and 2^-24, against codes of at most half the levels, and residuals of at most half a step; the
    // channels' sum by Cauchy-Schwarz.
    constexpr float MOST = (float)(1 << (CKV_KEY_BITS - 1)) + 1.0f;
    const float digit = (step * (MOST * (2.0f * U_PAIR * ROOT_D * norm + D * 6.0e-8f)) + step * (3.0e-8f * ROOT_D) * b.key_mag) * UP;
    // (4.5): by the largest error of a token, which is less than half a step in every channel of (4.2) on all but the
    // most aligned data.
    r.delta = reach * b.eps * UP + digit;
    r.lambda = b.kappa * step * norm * UP + ROOT_BLOCK * digit;
#elif CKV_KEY == 7
    // (2.22c). What underflows, in the products or in those with radii, is nothing beside it.
    const float lost = (step * b.key_mag * 1.0e-30f + 1.0e-36f) * UP;
    r.delta = reach * b.eps * UP + lost;
    r.lambda = reach * b.kappa * UP + ROOT_BLOCK * lost;
    // (2.22d): a product with a direction is a chain of its channels.
    r.zeta = reach * b.key_mag * ((float)(ckv_directions::GROUPS + ckv_directions::WIDTH + 4) * 6.0e-8f) * UP;
#else
    constexpr float ROOT_GROUP = root((float)(CKV_KEY == 2 || CKV_KEY >= 4 ? CKV_KEY_GROUP : D));
    const float digit = (reach * U_PAIR * ROOT_D + step * D * 3.0e-8f) * (b.key_mag / ROOT_GROUP) * UP;
    r.delta = reach * b.eps * UP + digit;
    r.lambda = reach * b.kappa * UP + ROOT_BLOCK * digit;
#endif
#if CKV_KEY != 7
    r.zeta = reach * b.key_mag * (CODE_CHAIN * U_MMA + 4.0f * U_PAIR + (TURBO_KEYS ? KEY_TURN_ROUNDING : 0.0f)) * UP;
#endif
    return r;
}

// The same for head `head` of the group, whose query has `reach` and `step`.
CKV_FN LogitBound bound_of_codes(const Summary& b, [[maybe_unused]] const Query& q, [[maybe_unused]] int head, float reach, float step, float square) {
#if CKV_FOLD
    // (2.19b), (4.12a): with the norm and the unit of q/S. A quotient is rounded once; so is the constant, and its sum with the rest of the logit.
    const Fold fold = fold_of(q, head);
    LogitBound r = code_bound(b, fold.reach, FOLD_FLOORS * step * fold.ratio, square);
    r.zeta += (fold.reach * b.key_mag * (U_MMA + 6.0e-8f) + fold.constant * ((CODE_CHAIN + 1.0f) * U_MMA + 4.0f * U_PAIR)) * UP;
    return r;
#else
    return code_bound(b, reach, step, square);
#endif
}

// zeta of a block whose keys are 16-bit rows of norm at most `norm`.
CKV_FN float row_zeta(float norm, float reach, float step) {
    return (reach * (ROW_CHAIN * U_MMA + 2.0f * U_ROW) + step * ROOT_D * 3.0e-8f) * norm * UP;
}

#if CKV_CORRECT
// Takes back what a block has added to the sums of (5.11), and never more: by the formulas of add_block, which grow with every operand, of
// operands that are no larger than those were.
//
// The logits are those of the pass to the bit: the same instructions make them from the same operands. Weights differ by the rounding of
// x - m, which depends on m, and of ex2 and its pair of halves, by less than 1e-5; of both passes that stays in the output, (6.14), and is counted as
// the rounding of rows is.
CKV_FN void take_back(Sums& s, const Summary& b, const LogitBound& k, float w, float square) {
    constexpr float LESS = 0.9999f;
    const float W = fmaxf(w * 1.0009f - BLOCK * 1.2e-7f, 0.0f), P = fmaxf(root_up(square) * 1.0009f - ROOT_BLOCK * 1.2e-7f, 0.0f);
    // What codes cost is least without any rounding. What rounding adds grows with it: that of the logits alone, less what the floors of
    // weights could make of it.
    const float x = k.delta, g = key_term(k, 0.0f, W, P).codes * LESS;
    s.g -= g, s.gr -= g * b.radius;
    const float rows = fmaxf(key_term(k, k.zeta, W, P).rounding * 0.99f - BLOCK * 4.0e-7f * (x * phi_up(x + k.zeta)), 0.0f);
    s.g_rows -= rows, s.gr_rows -= rows * b.radius;
    s.h -= least(W * least(x * (1.0f - x * (0.5f - x * 0.16667f)), 1.0f), P * k.lambda) * LESS;
    s.v -= least(W * b.eta, P * b.sop) * LESS;
    // Below 2^-50 of the largest there is no weight.
    constexpr float APART = 2.0f * (64.0f * 6.0e-8f + 8.0e-7f) * UP;
    const float most_w = w * 1.001f + BLOCK * 6.0e-8f, apart = most_w * APART;
    s.g_rows += apart, s.gr_rows += apart * ((b.radius + b.eta) * UP), s.h += apart;
    s.gross += most_w;
}
#endif

// x in steps, at least `least` and at most `most`.
CKV_FN u32 steps(float x, float least, float most) { return (u32)(x > least ? (x < most ? x : most) : least); }

// One word per block and query head for those who choose what to promote: log2 of the block's mass (m + log2 W) in 15 bits, steps of
// 1/32 from -512; of G/W in 12 bits, steps of 1/64 from -32; of W/P in 5 bits, steps of 1/8, so that P is never said to be less than it
// is; 0 for no mass. `MassWord` in Rust; the select kernel reads it.
CKV_FN u32 mass_word(float m, float w, const Found& f) {
    if (!(w > 0.0f)) return 0;
    const u32 mass = steps((m + lg2(w) + 512.0f) * 32.0f + 0.5f, 1.0f, 32767.0f);
    const u32 share = steps((lg2(f.share) + 32.0f) * 64.0f, 0.0f, 4095.0f);
    const u32 even = steps(-8.0f * lg2(f.evenness), 0.0f, 31.0f);
    return mass << 17 | share << 5 | even;
}

// (5.27), relative to the norm of what was summed: sums of products of the matrix unit, the pairs' own rounding of weight and of weight times scale.
// Differences of weights are pairs of halves that miss a little more.
CKV_FN float digits_of(float chain) {
    return (2.0f * chain * U_MMA + (CORRECTS ? 7.0f : 2.0f) * U_PAIR) * SPREAD + 8.0e-7f + (CKV_STORE == 1 ? U_ROW : 0.0f);
}

// The certificate of one head from its merged scalars. `norm`, `radius`: ||O'|| and ||O' - c|| as computed; `lost`: how far what was written lies from the
// former; `tokens`: so many were summed;
// `gross`: all weights added or taken away, of which `l` is left.
CKV_FN CkvCertificate certify(const CkvAttendArgs& a, float m, float l, float gross, float g, float gr, float h, float v, float g_rows,
                              float gr_rows, float most_radius, float nu, float chain, float norm, float radius,
                              float lost, u32 tokens, const CkvLimit& limit) {
    const float inverse = rcp(l) * UP;
    // (5.27), with what underflows as a half: 2^-24 a token, times a code and the root of d.
    const float digits = digits_of(chain);
    const float floors = (float)tokens * 6.0e-8f * LARGEST_CODE * ROOT_D * inverse;
    const float accumulated = (nu * (digits * (CORRECTS ? gross * inverse : 1.0f) + (float)tokens * 6.0e-8f * inverse) + floors + lost) * UP;
    return conclude(Judged{m, l, g, gr, h, v, g_rows, gr_rows, most_radius, norm, radius}, accumulated, limit.relative, limit.absolute);
}
