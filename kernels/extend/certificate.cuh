// The certificate of a chunk's outputs: as of a decode step (math.md 5.3), with what decoding to halves and weights of one half round.
//
// A lane keeps the sums of one row: number lane % 4 of 2 mt + half, of those with its lane / 4.
#pragma once
#include "bound.cuh"
#include "extend/norms.cuh"

// A half misses of a number at most this share, or 2^-25.
constexpr float U_HALF = 4.89e-4f, HALF_FLOOR = 3.0e-8f;
// Keys and values that are codes are rounded once more (4.13); originals are halves, or bf16 within the halves' range, see HALVES.
// Radius and direction of spherical keys are halves, too; a direction's floor is relative to its radius.
constexpr bool DIRECTIONS = CKV_KEY == 7;
constexpr float KEY_ROUNDING = DIRECTIONS ? 3.01f * U_HALF + ROOT_D * HALF_FLOOR : KEYS_CODED ? U_HALF : 0.0f, VALUE_ROUNDING = VALUES_CODED ? U_HALF : 0.0f;
// What the constant of a centre is off by: its own rounding, relative to it, and those of the exponential and of what that is a factor of.
constexpr float CENTRED = 1.2e-6f;
// Products in a chain of logits.
constexpr float LOGIT_CHAIN = 2.0f * CHUNKS + 2.0f;

// Keys are multiplied as halves. One that is none (a bf16 beyond them, or codes that stand for more than their originals) makes its logit infinite, and if that is
// below everything its token is lost without a trace. A key whose norm stays below this has no such element, nor a radius.
constexpr float HALVES = 6.5e4f;
// What the logits of others are off by: more than any sum could hold, so that the cap is all that bounds.
constexpr float LOST_LOGITS = 1.0e30f;

// zeta of (5.28) for keys of norm at most `norm`: rounding of query, keys, sums and of the weight itself, which is one half. `coded`: they were
// decoded.
CKV_FN float rounding_of_logits(const Query& q, bool coded, bool wide_query, float norm) {
    // Originals of f16 are halves.
    if ((coded || CKV_STORE == 1) && !(norm < HALVES)) return LOST_LOGITS;
    const float query = wide_query || (coded && TURBO_KEYS) ? U_HALF : 0.0f, turn = coded && TURBO_KEYS ? KEY_TURN_ROUNDING : 0.0f;
    const float share = LOGIT_CHAIN * U_MMA + query + (coded ? KEY_ROUNDING : 0.0f) + turn;
    const float reach = reach_of(q), floors = reach * ROOT_D * (DIRECTIONS ? 2.0f : 1.0f) * HALF_FLOOR + step_of(q) * ROOT_D * HALF_FLOOR * norm;
#if CKV_FOLD
    // (4.12a): a quotient is rounded once; of the constant see add_centre.
    if (coded) return (reach * norm * (share + U_MMA) * 1.01f + FOLD_FLOORS * floors) * UP + U_HALF * 1.01f;
#endif
    return (reach * norm * share * 1.01f + floors) * UP + U_HALF * 1.01f;
}

#if CKV_FOLD
// Behind the last codes: their logits come to have what the keys' centre adds to every one, (2.19a), which until then is left out. The whole octaves of it
// are added to the running exponents, and what is left of it is a factor of all sums. The logits of all codes are off by the same then, at most 0.18.
CKV_FN void add_centre(const Query& q, State& st, Sums& sums) {
    const float own = own_shift(q), whole = floorf(own), part = ex2(own - whole);
    const float off = CENTRED * (1.0f + fabsf(own)), apart = own_row(st.l) * (part * off * 1.2f), up = part * (UP + 2.0f * off);
    sums.m += whole;
    sums.g *= up, sums.gr *= up, sums.h *= up, sums.v *= up, sums.g_rows *= up, sums.gr_rows *= up;
    sums.g_rows += apart, sums.gr_rows += apart * sums.radius, sums.h += apart;
#pragma unroll
    for (int mt = 0; mt < MT; mt++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float shift = shift_of(q, mt, half), octaves = floorf(shift), factor = ex2(shift - octaves);
            st.m[mt][half] += octaves;
            st.l[mt][half] *= factor;
#pragma unroll
            for (int n = 0; n < EIGHTHS; n++) st.o[mt][n][2 * half] *= factor, st.o[mt][n][2 * half + 1] *= factor;
        }
    }
}
#endif

#if CKV_KEY == 1
// Sum over the channels of (q sigma)^2 in units of step^2, of the lane's row.
CKV_FN float scaled_square(const u8* record, const Query& q) {
    float n[MT][2][4];
#pragma unroll
    for (int mt = 0; mt < MT; mt++) {
#pragma unroll
        for (int half = 0; half < 2; half++) n[mt][half][0] = n[mt][half][1] = n[mt][half][2] = n[mt][half][3] = 0.0f;
    }
#pragma unroll 1
    for (int j = 0; j < CHUNKS; j++) {
        KeyScales s;
        load_key_scales(record, j, s);
#pragma unroll
        for (int mt = 0; mt < MT; mt++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                u32 x[4];
                load_query(q, mt, j, e, x);
#pragma unroll
                for (int i = 0; i < 4; i++) x[i] = h2_mul(x[i], s.scale[2 * e + i / 2]);
                // The rows against themselves: on the diagonal their squares' sums.
                mma_f16(n[mt][0], x[0], x[1], x[2], x[3], x[0], x[2]);
                mma_f16(n[mt][1], x[0], x[1], x[2], x[3], x[1], x[3]);
            }
        }
    }
    const u32 r = lane() >> 2;
    float diagonal[MT][2];
#pragma unroll
    for (int mt = 0; mt < MT; mt++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            // A mask: of a choice the compiler would make a table in memory.
            const u32 odd = 0u - (r & 1), even = ~odd;
            const float own = u32_as_float((float_as_u32(n[mt][half][2 * half + 1]) & odd) | (float_as_u32(n[mt][half][2 * half]) & even));
            diagonal[mt][half] = shfl(own, (int)(4 * r + (r >> 1)));
        }
    }
    return own_row(diagonal);
}
#endif

// Delta and Lambda of a record for the lane's row.
CKV_FN LogitBound bound_of(const u8* record, const Summary& b, const Query& q) {
    LogitBound k;
    k.delta = reach_of(q) * b.eps * UP;
#if CKV_KEY == 1
    // The products were rounded to halves before they were squared.
    const float norm = root_up(scaled_square(record, q)) * 1.001f + ROOT_D * 6.0e-8f;
    k.lambda = b.kappa * step_of(q) * norm * UP;
#else
    k.lambda = reach_of(q) * b.kappa * UP;
#endif
    k.zeta = 0.0f;
    return k;
}

// Whether the lane's row sees a token of the block from token `at` on: its weights may all be 0 although it does.
CKV_FN bool sees_block(const CkvExtendArgs& a, const Tile& t, i32 at) {
    const i32 own = position(t, warp() * ROWS + 8 * (lane() & 3) + (lane() >> 2));
    if constexpr (WINDOWED) {
        if (at >= (i32)a.sinks && at + BLOCK - 1 + (i32)a.window <= own) return false;
    }
    return at <= own;
}

// Adds a block to the lane's sums. `b`: its summary, of which a block of originals has norms and the distance from the centre alone.
template <bool CODED>
CKV_FN void certify_block(const CkvExtendArgs& a, const Tile& t, const u8* block, i32 at, const Summary& b, const Query& q, const State& st, const Mass& mass, Sums& kept) {
    float w[MT][2], square[MT][2];
#pragma unroll
    for (int mt = 0; mt < MT; mt++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float x = mass.square[mt][half];
            x += shfl_xor(x, 1);
            x += shfl_xor(x, 2);
            square[mt][half] = x;
            w[mt][half] = mass.weight[mt][2 * half];
        }
    }
    const float W = own_row(w), P = own_row(square), m = own_row(st.m);
    LogitBound k = {0.0f, 0.0f, 0.0f};
    if constexpr (CODED && KEYS_CODED) k = bound_of(block, b, q);
    if (!sees_block(a, t, at)) return;
    Sums s = kept;
    if (s.m != m) rescale(s, m);
    // Of codes in a metric no more is known than the largest of their products.
    const float norm = CODED && FOLDED ? b.key_mag : b.key_norm + b.eps;
    const float zeta = rounding_of_logits(q, CODED && KEYS_CODED, a.query_type == 2, norm);
    add_block(s, b, k, zeta, !CODED || !KEYS_CODED, !CODED || !VALUES_CODED, W, P);
    // Nor is such an output exact, from originals or not.
    if (zeta == LOST_LOGITS) s.g = s.gr = s.g_rows = s.gr_rows = u32_as_float(0x7f800000u);
    // Values are rounded, once decoded, relative to what they stand for.
    s.gr_rows += (W * 1.001f + BLOCK * 6.0e-8f) * ((CODED ? VALUE_ROUNDING : 0.0f) * 1.01f * (b.value_norm + b.eta) + ROOT_D * HALF_FLOOR) * UP;
    kept = s;
}

// What `norms` (see row_norms) say of a block of originals whose values' centre has norm `centre`.
CKV_FN Summary summary_of(const u32* norms, float centre) {
    const float up = 1.0001f, value = sqrt_ru(u32_as_float(norms[1]) * up + LOST_SQUARES);
    return Summary{0.0f, 0.0f, 0.0f, sqrt_ru(u32_as_float(norms[0]) * up + LOST_SQUARES), 0.0f, 0.0f, add_ru(value, centre), value};
}

// The certificate of the lane's row. `norm`, `radius`: of its output and of that less the centre; `off`: what rounding to 16 bits takes from it; `products`: in its longest chain of sums.
CKV_FN CkvCertificate certify_row(const CkvExtendArgs& a, const Sums& s, float l, float norm, float radius, float off, float products, u32 tokens, const CkvLimit& limit) {
    // Of several launches any may have turned values; what one leaves to the next is added in two roundings of each sum, for which its products count.
    const float digits = 2.0f * products * U_MMA + 8.0e-7f + (TURBO_VALUES || a.part ? TURN_ROUNDING : 0.0f);
    const float accumulated = (s.value_norm * (digits + (float)tokens * 6.0e-8f * (rcp(l) * UP)) + off) * UP;
    return conclude(Judged{s.m, l, s.g, s.gr, s.h, s.v, s.g_rows, s.gr_rows, s.radius, norm, radius}, accumulated, limit.relative, limit.absolute);
}
