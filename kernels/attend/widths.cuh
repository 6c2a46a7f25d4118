// Codes of keys in groups of unlike width as halves, math.md (2.17b). Their width is data, the same for all lanes; a unit is 512 codes of a tile
// (core::fragment, grouped_place): of 32 tokens x 16 places, or of blocks of 16 tokens those x 32 places, two operands of a product one behind the other.
#pragma once
#include "grouped.cuh"

#if CKV_GROUPED
// Unit `unit` of a tile of codes of up to three bits, a width that is chosen between, not branched to: few_selectors for all of them. `size`: the magnitudes of its group, a byte each.
CKV_FN void load_few(const u8* tile, u32 bits, int unit, u32 size, u32 (&h)[8]) {
    constexpr int UNITS = ckv_grouped::UNITS;
    const int l = (int)lane();
    u32 two = 0, one = 0;
    if (bits >= 2) two = *(const u32*)(tile + unit * 128 + l * 4);
    if (bits & 1) one = *(const u16*)(tile + (bits == 3 ? 128 * UNITS : 0) + unit * 64 + l * 2);
    const u32 single = prmt(one, one >> 1, 0x5410);
    // Signs, with the upper bit of a magnitude, and its lower bit.
    const u32 upper = bits == 1 ? single << 1 : two, lower = bits == 3 ? single : two;
    const u32 uppers = bits == 3 ? 0x66666666u : 0x44444444u, lowers = bits == 1 ? 0u : 0x11111111u;
    const u32 w[2] = {(upper << 1 & uppers) | (lower & lowers), (upper >> 1 & uppers) | (lower >> 2 & lowers)};
    look_up_few(w, 0x40404040u - size, 0x40404040u + size, h);
}

// The same of codes of BITS bits, 4 to 6. `levels`: as many magnitudes as codes tell apart.
template <int BITS> CKV_FN void load_many(const u8* tile, int unit, const u32* levels, u32 (&h)[8]) {
    constexpr int UNITS = ckv_grouped::UNITS;
    const int l = (int)lane();
    const Vec2 v = *(const Vec2*)(tile + unit * 256 + l * 8);
    const u32 w[2] = {v.x, v.y};
    if constexpr (BITS == 4) {
        const Vec2 low = *(const Vec2*)levels;
        look_up_signed(w, Levels{{0x40404040u - low.x, 0x40404040u - low.y}, {0x40404040u + low.x, 0x40404040u + low.y}}, h);
    } else {
        const u8* above = tile + 256 * UNITS;
        const u32 b = BITS == 5 ? *(const u16*)(above + unit * 64 + l * 2) : *(const u32*)(above + unit * 128 + l * 4);
        look_up_wide<BITS>(w, BITS == 5 ? halves_apart(b) : b, wide_levels_at(levels), h);
    }
}

// Calls f with a function that loads units of a tile, of a width that all lanes agree on.
template <class F> CKV_FN void by_width(const u8* tile, u32 bits, const u32* levels, const F& f) {
    if (bits <= 3) f([&](int unit, u32 (&h)[8]) { load_few(tile, bits, unit, levels[0], h); });
    else if (bits == 4) f([&](int unit, u32 (&h)[8]) { load_many<4>(tile, unit, levels, h); });
    else if (bits == 5) f([&](int unit, u32 (&h)[8]) { load_many<5>(tile, unit, levels, h); });
    else f([&](int unit, u32 (&h)[8]) { load_many<6>(tile, unit, levels, h); });
}

// Levels of the group that a tile is of. `table`: words of tiles, then levels.
CKV_FN const u32* levels_of_tile(const u32* table, u32 word) { return table + ckv_grouped::HEAD_TILES + ckv_grouped::LEVEL_WORDS * ckv_grouped::group_of(word); }
#endif
