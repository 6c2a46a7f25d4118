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

// Eight pairs of a 2-bit plane.
CKV_FN void unit2(const u8* at, u32 (&h)[8]) {
    const u32 w = *(const u32*)at;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        h[i] = h2_add(lop_and_or(w >> (2 * i), 0x00030003u, H2_1024), minus_1024(0));
    }
}

// Eight pairs of a 1-bit plane.
CKV_FN void unit1(const u8* at, u32 (&h)[8]) {
    const u32 b = *(const u16*)at;
    const u32 w = (b & 0xffu) | (b & 0xff00u) << 8;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        h[i] = h2_add(lop_and_or(w >> i, 0x00010001u, H2_1024), minus_1024(0));
    }
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
        // Wider planes hold the high bits: x 2^shift, exactly, plus what is below.
        constexpr int LOW = BITS & 3;
        const u8* low = section + (BITS >= 4 ? COUNT / 2 : 0);
        if constexpr (LOW == 3) {
            u32 ones[8];
            unit2(low + unit * 128 + l * 4, h);
            unit1(low + COUNT / 4 + unit * 64 + l * 2, ones);
#pragma unroll
            for (int i = 0; i < 8; i++) h[i] = h2_fma(h[i], h2_const(0x4000u), ones[i]);
        } else if constexpr (LOW == 2) {
            unit2(low + unit * 128 + l * 4, h);
        } else {
            unit1(low + unit * 64 + l * 2, h);
        }
        if constexpr (BITS >= 4) {
            u32 high[8];
            unit4<0>(section + unit * 256 + l * 8, high);
            // 2^LOW as a half.
            constexpr u32 STEP = h2_const(0x3c00u + (LOW == 3 ? 3u : (u32)LOW) * 0x400u);
#pragma unroll
            for (int i = 0; i < 8; i++) h[i] = h2_fma(high[i], STEP, h[i]);
        }
        if constexpr (CENTRE != 0) {
            // -CENTRE as a half, CENTRE a power of two below 128.
            constexpr u32 LOG = CENTRE == 1 ? 0 : CENTRE == 2 ? 1 : CENTRE == 4 ? 2 : CENTRE == 16 ? 4 : CENTRE == 32 ? 5 : 6;
#pragma unroll
            for (int i = 0; i < 8; i++) h[i] = h2_add(h[i], h2_const(0xbc00u + LOG * 0x400u));
        }
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
