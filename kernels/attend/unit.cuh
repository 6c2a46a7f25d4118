// Units: 16 tokens x 32 channels in the order of the matrix unit's registers ("fragment order", core::fragment).
//
// A lane holds 16 codes of a unit, as eight pairs; a pair becomes one register of two halves. Codes become halves without
// arithmetic on integers: under the exponent of 1024 a code is the mantissa, and one subtraction removes the 1024.
#pragma once

// Sides of a record, as they are copied and refined.
enum Part { KEYS = 1, VALUES = 2, WHOLE = 3 };

// 1024 + x in both halves, as bits.
constexpr u32 H2_1024 = 0x64006400u;

// One half in both halves of a register: only for exact small integers and powers of two.
CKV_FN constexpr u32 h2_const(u32 half) { return half | half << 16; }

// Bits of the half -(1024 + x), 0 <= x < 1024.
CKV_FN constexpr u32 minus_1024(u32 x) { return h2_const(0xe400u + x); }

// Eight pairs of an 8-bit plane, `centre` subtracted.
template <u32 CENTRE>
CKV_FN void unit8(const u8* at, u32 (&h)[8]) {
    const Vec4 v = *(const Vec4*)at;
    const u32 w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        h[2 * i] = h2_add(prmt(w[i], H2_1024, 0x7250), minus_1024(CENTRE));
        h[2 * i + 1] = h2_add(prmt(w[i], H2_1024, 0x7351), minus_1024(CENTRE));
    }
}

// Eight pairs of a 4-bit plane, `centre` subtracted. Odd pairs come 16 times too large and are scaled back exactly.
template <u32 CENTRE>
CKV_FN void unit4(const u8* at, u32 (&h)[8]) {
    const Vec2 v = *(const Vec2*)at;
    const u32 w[2] = {v.x, v.y};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 next = w[i] >> 8;
        h[4 * i] = h2_add(lop_and_or(w[i], 0x000f000fu, H2_1024), minus_1024(CENTRE));
        h[4 * i + 1] = h2_fma(lop_and_or(w[i], 0x00f000f0u, H2_1024), h2_const(0x2c00u), h2_const(0xd400u + 16 * CENTRE));
        h[4 * i + 2] = h2_add(lop_and_or(next, 0x000f000fu, H2_1024), minus_1024(CENTRE));
        h[4 * i + 3] = h2_fma(lop_and_or(next, 0x00f000f0u, H2_1024), h2_const(0x2c00u), h2_const(0xd400u + 16 * CENTRE));
    }
}

// A lane's words of the planes of a unit.
struct Planes {
    u32 four[2], two, one;
};

// 2^k as a half, in both halves, and -n, 0 <= n < 2^14 of at most 11 significant bits.
CKV_FN constexpr u32 h2_power(int k) { return h2_const((u32)(0x3c00 + 0x400 * k)); }
CKV_FN constexpr u32 h2_minus(u32 n) {
    u32 e = 0;
    while (n >> e > 1) e++;
    return h2_const(n == 0 ? 0x8000u : 0x8000u | (15 + e) << 10 | ((e < 10 ? n << (10 - e) : n >> (e - 10)) & 0x3ffu));
}

// Pair I and those behind it, of codes of BITS bits below 8, CENTRE subtracted.
//
// Each plane of a pair is masked where it lies, which leaves 1024 + 2^p c as a half, as long as that is below 2048, and adds c times what it is worth by
// one multiplication: the 1024 of all planes and the centre are one constant, where the sum begins. All of it is exact: whole numbers, multiples of what the first plane
// is worth, of at most 11 bits (the static_assert; what follows is smaller).
template <int BITS, u32 CENTRE, int I>
CKV_FN void planes_to_pairs(const Planes& planes, u32 (&h)[8]) {
    constexpr int LOW = BITS & 3, ONE = BITS & 1, P4 = 4 * (I % 2), P2 = 2 * (I < 5 ? I : I - 5), P1 = I;
    constexpr u32 FIRST = (BITS & 4 ? 1024u << LOW >> P4 : 0) + (BITS & 2 ? 1024u << ONE >> P2 : 0) + (BITS & 1 ? 1024u >> P1 : 0) + CENTRE;
    static_assert(FIRST < 2048 || (FIRST < 4096 && FIRST % 2 == 0) || (FIRST < 8192 && FIRST % 4 == 0) || (FIRST < 16384 && FIRST % 8 == 0), "exact");
    u32 x = h2_minus(FIRST);
    if constexpr (BITS & 4) {
        const u32 word = I % 4 < 2 ? planes.four[I / 4] : planes.four[I / 4] >> 8;
        x = h2_fma(lop_and_or(word, 0x000f000fu << P4, H2_1024), h2_power(LOW - P4), x);
    }
    if constexpr (BITS & 2) x = h2_fma(lop_and_or(I < 5 ? planes.two : planes.two >> 10, 0x00030003u << P2, H2_1024), h2_power(ONE - P2), x);
    if constexpr (BITS & 1) x = h2_fma(lop_and_or(planes.one, 0x00010001u << P1, H2_1024), h2_power(-P1), x);
    h[I] = x;
    if constexpr (I < 7) planes_to_pairs<BITS, CENTRE, I + 1>(planes, h);
}

// Pairs of unit `unit` of `BITS`-bit codes, `CENTRE` subtracted. `section` starts at the code section, which holds
// BLOCK * D codes in planes, the widest first.
template <int BITS, u32 CENTRE>
CKV_FN void load_codes(const u8* section, int unit, u32 (&h)[8]) {
    constexpr int COUNT = BLOCK * D;
    const int l = (int)lane();
    if constexpr (BITS == 8) {
        unit8<CENTRE>(section + unit * 512 + l * 16, h);
    } else if constexpr (BITS == 4) {
        unit4<CENTRE>(section + unit * 256 + l * 8, h);
    } else {
        Planes planes = {{0, 0}, 0, 0};
        if constexpr (BITS & 4) {
            const Vec2 v = *(const Vec2*)(section + unit * 256 + l * 8);
            planes.four[0] = v.x, planes.four[1] = v.y;
        }
        const u8* low = section + (BITS & 4 ? COUNT / 2 : 0);
        if constexpr (BITS & 2) planes.two = *(const u32*)(low + unit * 128 + l * 4);
        if constexpr (BITS & 1) {
            const u32 b = *(const u16*)(low + (BITS & 2 ? COUNT / 4 : 0) + unit * 64 + l * 2);
            planes.one = (b & 0xffu) | (b & 0xff00u) << 8;
        }
        planes_to_pairs<BITS, CENTRE, 0>(planes, h);
    }
}

// Eight pairs of 8-bit floating-point codes, which are the upper bits of a half: e5m2 as they are, e4m3, whose magnitude moves by one, 2^-8
// too small. Both exactly.
template <bool E4M3>
CKV_FN void unit_float(const u8* at, u32 (&h)[8]) {
    const Vec4 v = *(const Vec4*)at;
    const u32 w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const u32 x = prmt(w[i / 2], 0u, i % 2 == 0 ? 0x2404u : 0x3414u);
        h[i] = E4M3 ? lop_and_or(x, 0x80008000u, x >> 1 & 0x3f803f80u) : x;
    }
}

// Pairs of unit `unit` of codes with one scale per block, math.md (2.9a). KIND: as in codec/page_scale.cuh.
template <int KIND, int BITS>
CKV_FN void load_page(const u8* section, int unit, u32 (&h)[8]) {
    if constexpr (KIND == 0) load_codes<BITS, 1u << (BITS - 1)>(section, unit, h);
    else unit_float<KIND == 1>(section + unit * 512 + lane() * 16, h);
}
// What their scale is multiplied by.
constexpr float page_raise(int kind) { return kind == 1 ? 256.0f : 1.0f; }

// 2^-k as a half, in both halves.
CKV_FN constexpr u32 h2_shift(u32 k) { return h2_const(0x3c00u - 0x400u * k); }

// Pairs of unit `unit` of residuals of BITS bits as the parts of a step that they say, (2.23): (r + 1/2) 2^-BITS, exactly.
template <int BITS>
CKV_FN void load_residuals(const u8* section, int unit, u32 (&h)[8]) {
    if constexpr (BITS == 4) {
        // Sixteen steps above the 1024, so that the half is a bit, too: (1024 + 16 c + 8)/256 - 4.5 = (c - 8 + 1/2)/16.
        const Vec2 v = *(const Vec2*)(section + unit * 256 + lane() * 8);
        const u32 w[2] = {v.x, v.y};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const u32 word = w[i / 4], at = i % 4 == 0 ? word << 4 : word >> (4 * (i % 4) - 4);
            h[i] = h2_fma(lop_and_or(at, 0x00f000f0u, H2_1024 | 0x00080008u), h2_shift(8), h2_const(0xc480u));
        }
    } else {
        load_codes<BITS, 1u << (BITS - 1)>(section, unit, h);
#pragma unroll
        for (int i = 0; i < 8; i++) h[i] = h2_fma(h[i], h2_shift(BITS), h2_shift(BITS + 1));
    }
}

// How pairs of a 4-bit plane become halves: even and odd pairs, the latter 16 times too large, each by a factor and an offset. Codes
// c become c; residuals (c + 1/2)/16, the part of (2.23) that fits beside them.
struct Steps4 {
    u32 even, even_offset, odd, odd_offset;
};
CKV_FN Steps4 steps4(bool residuals) {
    return residuals ? Steps4{h2_const(0x2c00u), h2_const(0xd3ffu), h2_const(0x1c00u), h2_const(0xc3f0u)}
                     : Steps4{h2_const(0x3c00u), h2_const(0xe400u), h2_const(0x2c00u), h2_const(0xd400u)};
}
CKV_FN void load_steps4(const u8* section, int unit, const Steps4& by, u32 (&h)[8]) {
    const Vec2 v = *(const Vec2*)(section + unit * 256 + lane() * 8);
    const u32 w[2] = {v.x, v.y};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const u32 word = i % 4 < 2 ? w[i / 4] : w[i / 4] >> 8;
        h[i] = i % 2 == 0 ? h2_fma(lop_and_or(word, 0x000f000fu, H2_1024), by.even, by.even_offset)
                          : h2_fma(lop_and_or(word, 0x00f000f0u, H2_1024), by.odd, by.odd_offset);
    }
}

// Pairs of unit `unit` of 16-bit originals, from memory of any kind.
CKV_FN void load_original(const u8* side, int unit, u32 (&h)[8]) {
    const u8* at = side + unit * 1024 + lane() * 32;
    const Vec4 a = *(const Vec4*)at, b = *(const Vec4*)(at + 16);
    h[0] = a.x, h[1] = a.y, h[2] = a.z, h[3] = a.w;
    h[4] = b.x, h[5] = b.y, h[6] = b.z, h[7] = b.w;
}

// c += A B for originals of the cache's type.
CKV_FN void mma_store(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if CKV_STORE == 1
    mma_bf16(c, a0, a1, a2, a3, b0, b1);
#else
    mma_f16(c, a0, a1, a2, a3, b0, b1);
#endif
}

// Two floats as a register of the cache's type, and back.
CKV_FN u32 store_pack(float lo, float hi) {
#if CKV_STORE == 1
    return b2_pack(lo, hi);
#else
    return h2_pack(lo, hi);
#endif
}
CKV_FN float store_lo(u32 x) {
#if CKV_STORE == 1
    return b_lo(x);
#else
    return h_lo(x);
#endif
}
CKV_FN float store_hi(u32 x) {
#if CKV_STORE == 1
    return b_hi(x);
#else
    return h_hi(x);
#endif
}
