// Codes of keys in groups of unlike width as halves, math.md (2.17b). Their width is data, the same for all lanes; a unit is 512 codes of a tile
// (core::fragment, grouped_place): of 32 tokens x 16 places, or of blocks of 16 tokens those x 32 places, two operands of a product one behind the other.
#pragma once
#include "grouped.cuh"

#if CKV_GROUPED
// Bits 0, 2, 4, 6 as bytes of ones.
CKV_FN u32 bytes_of(u32 x) {
    x &= 0x55u;
    return ((x | x << 6 | x << 12 | x << 18) & 0x01010101u) * 0xffu;
}

// Codes of 5 or 6 bits: `four` the lower bits of the magnitude, pair i of eight at bits 4 i and 4 i + 16 of a word of four; `top` what lies above those, by pair, the second element 16
// bits higher; `levels` sixteen or 32 magnitudes, a byte each.
template <int BITS>
CKV_FN void look_up_wide(const u32 (&four)[2], u32 top, const u32* levels, u32 (&h)[8]) {
    const Vec2 low = *(const Vec2*)levels, next = *(const Vec2*)(levels + 2), third = *(const Vec2*)(levels + 4), last = *(const Vec2*)(levels + 6);
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
            h[pair] = h2_add(pairs[i], minus_1024(0)) ^ (~top << to & 0x80008000u);
        }
    }
}

// Unit `unit` of a tile of codes of BITS bits. `levels`: magnitudes of the group's, a byte each, as many as its codes tell apart.
template <int BITS>
CKV_FN void load_grouped(const u8* tile, int unit, const u32* levels, u32 (&h)[8]) {
    constexpr int UNITS = ckv_grouped::UNITS;
    const int l = (int)lane();
    u32 w[2];
    if constexpr (BITS >= 4) {
        const Vec2 v = *(const Vec2*)(tile + unit * 256 + l * 8);
        w[0] = v.x, w[1] = v.y;
    } else {
        u32 two = 0, one = 0;
        if constexpr (BITS >= 2) two = *(const u32*)(tile + unit * 128 + l * 4);
        if constexpr (BITS & 1) one = *(const u16*)(tile + (BITS == 3 ? 128 * UNITS : 0) + unit * 64 + l * 2);
        few_selectors<BITS>(two, one, w);
    }
    if constexpr (BITS <= 3) {
        look_up_few(w, 0x40404040u - levels[0], 0x40404040u + levels[0], h);
    } else if constexpr (BITS == 4) {
        const Vec2 low = *(const Vec2*)levels;
        look_up_signed(w, Levels{{0x40404040u - low.x, 0x40404040u - low.y}, {0x40404040u + low.x, 0x40404040u + low.y}}, h);
    } else {
        const u8* above = tile + 256 * UNITS;
        const u32 b = BITS == 5 ? *(const u16*)(above + unit * 64 + l * 2) : *(const u32*)(above + unit * 128 + l * 4);
        look_up_wide<BITS>(w, BITS == 5 ? (b & 0xffu) | (b & 0xff00u) << 8 : b, levels, h);
    }
}

// Calls f.at<BITS>() with the width of a tile, which all lanes agree on.
template <class F>
CKV_FN void by_width(u32 bits, const F& f) {
    switch (bits) {
    case 1: f.template at<1>(); break;
    case 2: f.template at<2>(); break;
    case 3: f.template at<3>(); break;
    case 4: f.template at<4>(); break;
    case 5: f.template at<5>(); break;
    default: f.template at<6>(); break;
    }
}

// Levels of the group that a tile is of. `table`: words of tiles, then levels.
CKV_FN const u32* levels_of_tile(const u32* table, u32 word) { return table + ckv_grouped::HEAD_TILES + ckv_grouped::LEVEL_WORDS * ckv_grouped::group_of(word); }
#endif
