// Codes of keys in groups of unlike width as halves, math.md (2.17b). Their width is data, the same for all lanes; a unit is 512 codes of a tile
// (core::fragment, grouped_place): of 32 tokens x 16 places, or of blocks of 16 tokens those x 32 places, two operands of a product one behind the other.
#pragma once
#include "grouped.cuh"

#if CKV_GROUPED
// What is kept of a head's tile: see bits_of.
CKV_FN Vec4 kept_tile(const u32* kept, int tile) { return ((const Vec4*)kept)[tile]; }

// Unit `unit` of a tile of codes of BITS bits, which begin at `codes`. `kept`: of all tiles, then levels.
template <int BITS>
CKV_FN void load_grouped(const u8* codes, int unit, const Vec4& tile, const u32* kept, u32 (&h)[8]) {
    constexpr int UNITS = ckv_grouped::UNITS;
    const int l = (int)lane();
    u32 w[2];
    if constexpr (BITS >= 4) {
        const Vec2 v = *(const Vec2*)(codes + unit * 256 + l * 8);
        w[0] = v.x, w[1] = v.y;
    } else {
        u32 two = 0, one = 0;
        if constexpr (BITS >= 2) two = *(const u32*)(codes + unit * 128 + l * 4);
        if constexpr (BITS & 1) one = *(const u16*)(codes + (BITS == 3 ? 128 * UNITS : 0) + unit * 64 + l * 2);
        few_selectors<BITS>(two, one, w);
    }
    const u32* levels = (const u32*)((const u8*)(kept + ckv_grouped::HEAD_TILES * ckv_grouped::TILE_WORDS) + tile.z);
    if constexpr (BITS <= 3) {
        look_up_few(w, tile.z, tile.w, h);
    } else if constexpr (BITS == 4) {
        const Vec2 low = *(const Vec2*)levels;
        look_up_signed(w, Levels{{0x40404040u - low.x, 0x40404040u - low.y}, {0x40404040u + low.x, 0x40404040u + low.y}}, h);
    } else {
        const u8* above = codes + 256 * UNITS;
        const u32 b = BITS == 5 ? *(const u16*)(above + unit * 64 + l * 2) : *(const u32*)(above + unit * 128 + l * 4);
        look_up_wide<BITS>(w, BITS == 5 ? halves_apart(b) : b, wide_levels_at(levels), h);
    }
}

// Calls f with the width of a tile, which all lanes agree on, as a type.
template <int BITS> struct Width {
    static constexpr int VALUE = BITS;
};
template <class F>
CKV_FN void by_width(u32 bits, const F& f) {
    switch (bits) {
    case 1: f(Width<1>{}); break;
    case 2: f(Width<2>{}); break;
    case 3: f(Width<3>{}); break;
    case 4: f(Width<4>{}); break;
    case 5: f(Width<5>{}); break;
    default: f(Width<6>{}); break;
    }
}
#endif
