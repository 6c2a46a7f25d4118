// Spherical keys, math.md (2.22), in a decode step: the products of a head's queries with its directions, once, and logits by looking them up.
//
// The products lie in shared memory in single precision, [group][word][head], in units of the query's halves: a lane reads those of its two heads at once. Nothing is
// multiplied by the matrix unit, and no key is decoded.
#pragma once
#include "directions.cuh"

#if CKV_KEY == 7
// Heads that a row of products has room for.
constexpr int TABLE_COLUMNS = PAIRED ? 4 : 8 * NT;

// Behind the queries: what each column's query was multiplied by, then the products.
CKV_FN float* factors_of(const Vec4* prepared) { return (float*)(prepared + QUERY_STRIDE); }
CKV_FN float* products_of(const Vec4* prepared) { return factors_of(prepared) + 8 * NT; }

// All threads of the CTA: a thread takes a direction at a time, for all heads. `given`: the queries as they are.
CKV_FN void fill_directions(const CkvAttendArgs& a, u32 kv_head, const Vec4* given, const Vec4* prepared) {
    using namespace ckv_directions;
    const float* factors = factors_of(prepared);
    float* products = products_of(prepared);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < GROUPS * WORDS; i += THREADS) {
        float word[WIDTH];
        const Vec4* from = (const Vec4*)(words_of(a.metrics, kv_head) + i * WIDTH);
#pragma unroll
        for (int c = 0; c < WIDTH / 4; c++) {
            const Vec4 v = ldg(from + c);
            word[4 * c] = u32_as_float(v.x), word[4 * c + 1] = u32_as_float(v.y), word[4 * c + 2] = u32_as_float(v.z), word[4 * c + 3] = u32_as_float(v.w);
        }
#pragma unroll 1
        for (int h = 0; h < TABLE_COLUMNS; h++) {
            float sum = 0.0f;
            if (h < GROUP) {
                const float factor = factors[h];
#pragma unroll
                for (int c = 0; c < WIDTH; c += 8) {
                    float x[8];
                    query_elements(a, given, h * D + i / WORDS * WIDTH + c, x);
#pragma unroll
                    for (int e = 0; e < 8; e++) sum = fma_rn(x[e] * factor, word[c + e], sum);
                }
            }
            products[i * TABLE_COLUMNS + h] = sum;
        }
    }
}

// Logits from radii and indices. Paired columns would hold every logit twice: each lane of a pair takes one of its two rows.
template <int FIRST>
CKV_FN void score_codes(const u8* record, const Query& q, bool, Logits& s, KeySums& sums) {
    using namespace ckv_directions;
    constexpr int HALVES = PAIRED ? 1 : 2;
    const bool second = PAIRED && (lane() & 2) != 0;
    const float* products = products_of(q.shared) + (PAIRED ? 2 * (lane() & 1) : 8 * FIRST + 2 * (lane() & 3));
    const u8* section = record + CKV_KEY_CODES;
    const int row = (int)(lane() >> 2) + (second ? 8 : 0);
#pragma unroll
    for (int nt = 0; nt < COLUMNS; nt++) sums.square[nt] = 0.0f;
    clear(s);
#pragma unroll 1
    for (int g = 0; g < GROUPS; g++) {
        const float scale = h_value(*(const u16*)(record + CKV_KEY_SCALES + 2 * g));
        const float* of_group = products + g * (WORDS * TABLE_COLUMNS);
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            const Codes codes = codes_of(section, g, row + 8 * half);
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                // A scale times a radius has 19 bits.
                const float r = scale * codes.radius(t);
                const Vec2* at = (const Vec2*)(of_group + codes.word(t) * TABLE_COLUMNS);
#pragma unroll
                for (int nt = 0; nt < COLUMNS; nt++) {
                    const Vec2 v = at[4 * nt];
                    float(&x)[4] = s.x[t][nt];
                    x[2 * half] = fma_rn(r, u32_as_float(v.x), x[2 * half]), x[2 * half + 1] = fma_rn(r, u32_as_float(v.y), x[2 * half + 1]);
                }
            }
        }
    }
    if constexpr (PAIRED) {
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            float(&x)[4] = s.x[t][0];
            const float own[2] = {x[0], x[1]}, other[2] = {shfl_xor(own[0], 2), shfl_xor(own[1], 2)};
#pragma unroll
            for (int i = 0; i < 2; i++) x[i] = second ? other[i] : own[i], x[2 + i] = second ? own[i] : other[i];
        }
    }
}
#endif
