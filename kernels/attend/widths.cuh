// Codes of keys in groups of unlike width as halves, math.md (2.17b). Their width is data, the same for all lanes; a unit is 512 codes of a tile
// (core::fragment, grouped_place): of 32 tokens x 16 places, or of blocks of 16 tokens those x 32 places, two operands of a product one behind the other.
#pragma once
#include "grouped.cuh"

#if CKV_GROUPED
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
        look_up_wide<BITS>(w, BITS == 5 ? halves_apart(b) : b, wide_levels_at(levels), h);
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
