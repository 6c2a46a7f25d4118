// TurboQuant sides, math.md 2.7: what codes stand for, and the rotation R = H D / sqrt(n) of query and output, (2.10).
//
// Keys are scored with the rotated query; what values sum to is rotated while codes are added and is turned back for promoted originals and
// at the end (what an open block adds, turn_open.cuh). A rotation is additions between registers and between lanes: no memory.
#pragma once
#include "rotate.cuh"

constexpr bool TURBO_KEYS = CKV_KEY == 3, TURBO_VALUES = CKV_VALUE == 2;
static_assert(!((TURBO_KEYS && !GROUPED) || TURBO_VALUES) || (D & (D - 1)) == 0, "one transform");

// Roundings of a rotated vector, each relative to its norm: stages, the factor and its product (rotation.rs: roundings), and where an open block is turned
// beside what came before, the sums of a head's two columns and of both.
constexpr int TURN_STAGES = D == 64 ? 6 : D == 128 ? 7 : 8;
constexpr float TURN_ROUNDING = (TURN_STAGES + 4) * 6.0e-8f;
// Of a query whose groups are rotated apart: two rounds of transforms of up to half of its channels, or one of all of them.
constexpr float KEY_TURN_ROUNDING = GROUPED ? 2.0f * TURN_ROUNDING : TURN_ROUNDING;

#if CKV_ROTATES
CKV_FN float with_sign(float x, u32 bit) { return u32_as_float(float_as_u32(x) ^ bit << 31); }

// R q of one column: x[j][i] is channel 32 j + 8 (lane % 4) + i. The four lanes of a column together.
CKV_FN void turn_query(float (&x)[CHUNKS][8]) {
    const int c4 = lane() & 3;
#pragma unroll
    for (int j = 0; j < CHUNKS; j++) {
        const u32 signs = turn_signs(j) >> (8 * c4);
#pragma unroll
        for (int i = 0; i < 8; i++) x[j][i] = with_sign(x[j][i], signs >> i & 1);
#pragma unroll
        for (int half = 1; half < 8; half *= 2) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                if (i & half) continue;
                const float a = x[j][i], b = x[j][i + half];
                x[j][i] = a + b, x[j][i + half] = a - b;
            }
        }
#pragma unroll
        for (int d = 1; d < 4; d *= 2) {
            const bool upper = c4 & d;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float other = shfl_xor(x[j][i], d);
                x[j][i] = upper ? other - x[j][i] : x[j][i] + other;
            }
        }
    }
#pragma unroll
    for (int half = 1; half < CHUNKS; half *= 2) {
#pragma unroll
        for (int j = 0; j < CHUNKS; j++) {
            if (j & half) continue;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float a = x[j][i], b = x[j + half][i];
                x[j][i] = a + b, x[j + half][i] = a - b;
            }
        }
    }
#pragma unroll
    for (int j = 0; j < CHUNKS; j++) {
#pragma unroll
        for (int i = 0; i < 8; i++) x[j][i] *= (float)TURN_FACTOR;
    }
}
#endif

#if CKV_VALUE == 2
// What a column tile has summed becomes R of it, or, BACK, is turned back. o[2 j + e][i] is channel 32 j + 16 e + 8 (i / 2) + lane / 4.
CKV_FN void turn_sums(float (&o)[2 * CHUNKS][4], bool back) {
    const int r = lane() >> 2;
    // Which signs are this lane's: bit 2 e + i / 2 of chunk j.
#pragma unroll
    for (int c = 0; c < 2 * CHUNKS; c++) {
        const u32 signs = turn_signs(c / 2) >> (16 * (c & 1) + r);
#pragma unroll
        for (int i = 0; i < 4; i++) o[c][i] = with_sign(o[c][i], back ? 0 : signs >> (8 * (i / 2)) & 1);
#pragma unroll
        for (int d = 1; d < 8; d *= 2) {
            const bool upper = r & d;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float other = shfl_xor(o[c][i], 4 * d);
                o[c][i] = upper ? other - o[c][i] : o[c][i] + other;
            }
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float a = o[c][i], b = o[c][i + 2];
            o[c][i] = a + b, o[c][i + 2] = a - b;
        }
    }
#pragma unroll
    for (int half = 1; half < 2 * CHUNKS; half *= 2) {
#pragma unroll
        for (int c = 0; c < 2 * CHUNKS; c++) {
            if (c & half) continue;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float a = o[c][i], b = o[c + half][i];
                o[c][i] = a + b, o[c + half][i] = a - b;
            }
        }
    }
#pragma unroll
    for (int c = 0; c < 2 * CHUNKS; c++) {
        const u32 signs = turn_signs(c / 2) >> (16 * (c & 1) + r);
#pragma unroll
        for (int i = 0; i < 4; i++) o[c][i] = with_sign(o[c][i] * (float)TURN_FACTOR, back ? signs >> (8 * (i / 2)) & 1 : 0);
    }
}
#endif

#if CKV_VALUE == 2
// Where a warp merges a whole head, the merged output is turned back, once, and partial results are rotated; else each warp's sums are.
constexpr bool TURN_MERGED = SLICES == 1;

// R^T of a merged output: x[v] is channel VECTOR lane + v.
CKV_FN void turn_output(float (&x)[VECTOR]) {
    static_assert(!TURN_MERGED || D == 32 * VECTOR, "a head's channels");
#pragma unroll
    for (int half = 1; half < VECTOR; half *= 2) {
#pragma unroll
        for (int v = 0; v < VECTOR; v++) {
            if (v & half) continue;
            const float a = x[v], b = x[v + half];
            x[v] = a + b, x[v + half] = a - b;
        }
    }
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const bool upper = lane() & d;
#pragma unroll
        for (int v = 0; v < VECTOR; v++) {
            const float other = shfl_xor(x[v], d);
            x[v] = upper ? other - x[v] : x[v] + other;
        }
    }
    u32 signs = 0;
#pragma unroll
    for (int chunk = 0; chunk < VECTOR; chunk++) {
        // A mask: of a choice the compiler would make a table in memory.
        signs |= turn_signs(chunk) & (0u - (u32)((int)lane() * VECTOR / 32 == chunk));
    }
#pragma unroll
    for (int v = 0; v < VECTOR; v++) x[v] = with_sign(x[v] * (float)TURN_FACTOR, signs >> ((lane() * VECTOR + v) % 32) & 1);
}

// Has the sums of column tiles from FIRST on rotated, or as they are. LAST: no other tiles follow.
template <int FIRST, bool LAST, class S>
CKV_FN void turn_state(S& st, bool rotated) {
    if (rotated == (st.turns % 2 == 0)) return;
#pragma unroll
    for (int nt = 0; nt < COLUMNS; nt++) turn_sums(st.o[FIRST + nt], !rotated);
    if constexpr (LAST) st.turns++;
}
#endif

// What codes stand for, plus 64, a byte each: sixteen levels of eight magnitudes below 64. Those of up to 3 bits are found by one look-up of four bytes in eight, where a code is a sign (set: positive) and a
// magnitude: `negative`, `positive`. Sixteen take two look-ups; where bit 3 of a nibble says that the other table has it, prmt repeats the highest bit of what it found, which is 0.
struct Levels {
    u32 negative[2], positive[2];
};
CKV_FN constexpr Levels levels_of(u64 magnitudes) {
    constexpr u64 MIDDLE = 0x4040404040404040ull;
    const u64 below = MIDDLE - magnitudes, above = MIDDLE + magnitudes;
    return Levels{{(u32)below, (u32)(below >> 32)}, {(u32)above, (u32)(above >> 32)}};
}

// A word with 64 + level of pairs 0 and 1 of four in `a`, and of pairs 2 and 3 in `b`, as levels times 2^-SHIFT in halves. 1024 + 64 + level, and what that is too much.
template <u32 SHIFT>
CKV_FN void as_pairs(u32 a, u32 b, u32 (&h)[8], int half) {
    const u32 pairs[4] = {prmt(a, H2_1024, 0x7150), prmt(a, H2_1024, 0x7352), prmt(b, H2_1024, 0x7150), prmt(b, H2_1024, 0x7352)};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        h[4 * half + i] = SHIFT == 0 ? h2_add(pairs[i], minus_1024(64)) : h2_fma(pairs[i], h2_shift(SHIFT), h2_const(0xe440u - 0x400u * SHIFT));
    }
}

// Levels of two words of nibbles, a sign and a magnitude of three bits each; nibble n of a word is element n % 2 of pair n / 2.
template <u32 SHIFT = 0>
CKV_FN void look_up_signed(const u32 (&w)[2], const Levels& levels, u32 (&h)[8]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 at = w[half], other = at ^ 0x88888888u;
        const u32 a = prmt(levels.negative[0], levels.negative[1], at) + prmt(levels.positive[0], levels.positive[1], other);
        const u32 b = prmt(levels.negative[0], levels.negative[1], at >> 16) + prmt(levels.positive[0], levels.positive[1], other >> 16);
        as_pairs<SHIFT>(a, b, h, half);
    }
}
// The same of a sign, bit 2, and a magnitude of two bits.
template <u32 SHIFT = 0>
CKV_FN void look_up_few(const u32 (&w)[2], u32 negative, u32 positive, u32 (&h)[8]) {
#pragma unroll
    for (int half = 0; half < 2; half++) as_pairs<SHIFT>(prmt(negative, positive, w[half]), prmt(negative, positive, w[half] >> 16), h, half);
}

// The selectors of a lane's codes of up to 3 bits, a sign at bit 2 of each nibble and a magnitude, from its words of the planes: fragment.rs, level_position. `one`: 16 bits.
template <int BITS>
CKV_FN void few_selectors(u32 two, u32 one, u32 (&w)[2]) {
    const u32 single = prmt(one, one >> 1, 0x5410);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if constexpr (BITS == 3) w[half] = (half == 0 ? two << 1 : two >> 1) & 0x66666666u | (single >> (2 * half) & 0x11111111u);
        if constexpr (BITS == 2) w[half] = (half == 0 ? two << 1 : two >> 1) & 0x44444444u | (two >> (2 * half) & 0x11111111u);
        if constexpr (BITS == 1) w[half] = single << (2 - 2 * half) & 0x44444444u;
    }
}

// Magnitudes of codes of 5 and 6 bits, a byte each, eight to a pair of words.
struct WideLevels {
    Vec2 of[4];
};
CKV_FN WideLevels wide_levels_at(const u32* at) {
    const Vec2* of = (const Vec2*)at;
    return WideLevels{{of[0], of[1], of[2], of[3]}};
}
CKV_FN constexpr Vec2 eight_levels(u64 magnitudes) { return Vec2{(u32)magnitudes, (u32)(magnitudes >> 32)}; }

// A lane's 16 codes of a plane of one bit, the second elements of its pairs 16 bits above the first.
CKV_FN u32 halves_apart(u32 b) { return (b & 0xffu) | (b & 0xff00u) << 8; }

// Bits 0, 2, 4, 6 as bytes of ones.
CKV_FN u32 bytes_of(u32 x) {
    x &= 0x55u;
    return ((x | x << 6 | x << 12 | x << 18) & 0x01010101u) * 0xffu;
}

// Codes of 5 or 6 bits: `four` the lower bits of the magnitude, pair i of eight at bits 4 i and 4 i + 16 of a word of four; `top` what lies above those, by pair, the second element 16
// bits higher; as levels times 2^-SHIFT.
template <int BITS, u32 SHIFT = 0>
CKV_FN void look_up_wide(const u32 (&four)[2], u32 top, const WideLevels& levels, u32 (&h)[8]) {
    const Vec2 low = levels.of[0], next = levels.of[1], third = levels.of[2], last = levels.of[3];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 at = four[half], other = at ^ 0x88888888u;
        // As in look_up_signed: a table that does not have it gives 0.
        u32 a = prmt(low.x, low.y, at) | prmt(next.x, next.y, other);
        u32 b = prmt(low.x, low.y, at >> 16) | prmt(next.x, next.y, other >> 16);
        if constexpr (BITS == 6) {
            const u32 c = prmt(third.x, third.y, at) | prmt(last.x, last.y, other), d = prmt(third.x, third.y, at >> 16) | prmt(last.x, last.y, other >> 16);
            const u32 first = bytes_of(top >> (8 * half)), second = bytes_of(top >> (16 + 8 * half));
            a = (a & ~first) | (c & first), b = (b & ~second) | (d & second);
        }
        const u32 first = prmt(a, b, 0x5140), second = prmt(a, b, 0x7362);
        const u32 pairs[4] = {prmt(first, H2_1024, 0x7150), prmt(first, H2_1024, 0x7352), prmt(second, H2_1024, 0x7150), prmt(second, H2_1024, 0x7352)};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            // 1024 + magnitude less 1024, and the sign, which is set for positive ones.
            const int pair = 4 * half + i, to = BITS == 5 ? 15 - pair : 14 - 2 * pair;
            const u32 size = SHIFT == 0 ? h2_add(pairs[i], minus_1024(0)) : h2_fma(pairs[i], h2_shift(SHIFT), h2_const(0xe400u - 0x400u * SHIFT));
            h[pair] = size ^ (~top << to & 0x80008000u);
        }
    }
}

// What codes of BITS bits stand for, as load_levels takes it.
template <int BITS>
CKV_FN constexpr auto levels_of_side(u64 first, u64 second, u64 third, u64 fourth) {
    if constexpr (BITS > 4) return WideLevels{{eight_levels(first), eight_levels(second), eight_levels(third), eight_levels(fourth)}};
    else return levels_of(first);
}
#if CKV_KEY == 3 && !CKV_GROUPED
CKV_FN constexpr auto key_levels() { return levels_of_side<CKV_KEY_BITS>(CKV_KEY_LEVELS, CKV_KEY_LEVELS_1, CKV_KEY_LEVELS_2, CKV_KEY_LEVELS_3); }
#endif
#if CKV_VALUE == 2
CKV_FN constexpr auto value_levels() { return levels_of_side<CKV_VALUE_BITS>(CKV_VALUE_LEVELS, CKV_VALUE_LEVELS_1, CKV_VALUE_LEVELS_2, CKV_VALUE_LEVELS_3); }
#endif

// Pairs of unit `unit` of codes of BITS bits, 1 to 4, as levels times 2^-SHIFT.
template <int BITS, u32 SHIFT>
CKV_FN void load_levels(const u8* section, int unit, const Levels& levels, u32 (&h)[8]) {
    static_assert(BITS >= 1 && BITS <= 4, "");
    constexpr int COUNT = BLOCK * D;
    const int l = (int)lane();
    u32 w[2];
    if constexpr (BITS == 4) {
        const Vec2 v = *(const Vec2*)(section + unit * 256 + l * 8);
        w[0] = v.x, w[1] = v.y;
        look_up_signed<SHIFT>(w, levels, h);
    } else {
        u32 two = 0, one = 0;
        if constexpr (BITS >= 2) two = *(const u32*)(section + unit * 128 + l * 4);
        if constexpr (BITS & 1) one = *(const u16*)(section + (BITS == 3 ? COUNT / 4 : 0) + unit * 64 + l * 2);
        few_selectors<BITS>(two, one, w);
        look_up_few<SHIFT>(w, levels.negative[0], levels.positive[0], h);
    }
}

// The same of 5 and 6 bits.
template <int BITS, u32 SHIFT>
CKV_FN void load_levels(const u8* section, int unit, const WideLevels& levels, u32 (&h)[8]) {
    static_assert(BITS == 5 || BITS == 6, "");
    constexpr int COUNT = BLOCK * D;
    const int l = (int)lane();
    const Vec2 v = *(const Vec2*)(section + unit * 256 + l * 8);
    const u8* above = section + COUNT / 2;
    const u32 four[2] = {v.x, v.y}, top = BITS == 5 ? halves_apart(*(const u16*)(above + unit * 64 + l * 2)) : *(const u32*)(above + unit * 128 + l * 4);
    look_up_wide<BITS, SHIFT>(four, top, levels, h);
}
