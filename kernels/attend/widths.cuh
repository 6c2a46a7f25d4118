// Codes of keys in groups of unlike width as halves, math.md (2.17b). Their width is data, the same for all lanes; a unit is 512 codes of a tile
// (core::fragment, grouped_place): of 32 tokens x 16 places, or of blocks of 16 tokens those x 32 places, two operands of a product one behind the other.
#pragma once
#include "grouped.cuh"

#if CKV_GROUPED
// Four bits of each of a lane's sixteen codes. Up to four bits selectors of levels (turn.cuh); of more the lower bits of the magnitude, pair i of eight at bits 4 i and 4 i + 16 of a word of
// four. `top`: what lies above those, by pair, the second element 16 bits higher.
struct Nibbles {
    u32 four[2], top;
};
CKV_FN Nibbles load_nibbles(const u8* tile, int unit, u32 bits) {
    constexpr int UNITS = ckv_grouped::UNITS;
    const int l = (int)lane();
    Nibbles n = {{0, 0}, 0};
    if (bits >= 4) {
        const Vec2 v = *(const Vec2*)(tile + unit * 256 + l * 8);
        n.four[0] = v.x, n.four[1] = v.y;
        const u8* above = tile + 256 * UNITS;
        if (bits == 5) {
            const u32 b = *(const u16*)(above + unit * 64 + l * 2);
            n.top = (b & 0xffu) | (b & 0xff00u) << 8;
        }
        if (bits == 6) n.top = *(const u32*)(above + unit * 128 + l * 4);
        return n;
    }
    u32 two = 0, one = 0;
    if (bits >= 2) two = *(const u32*)(tile + unit * 128 + l * 4);
    if (bits & 1) one = *(const u16*)(tile + (bits == 3 ? 128 * UNITS : 0) + unit * 64 + l * 2);
    if (bits == 3) few_selectors<3>(two, one, n.four);
    else if (bits == 2) few_selectors<2>(two, one, n.four);
    else few_selectors<1>(two, one, n.four);
    return n;
}

// Bits 0, 2, 4, 6 as bytes of ones.
CKV_FN u32 bytes_of(u32 x) {
    x &= 0x55u;
    return ((x | x << 6 | x << 12 | x << 18) & 0x01010101u) * 0xffu;
}

// Levels of a unit, in pairs. `levels`: magnitudes of the group's, a byte each: eight, or, of more than four bits, sixteen or 32.
CKV_FN void look_up(const Nibbles& n, u32 bits, const u32* levels, u32 (&h)[8]) {
    const Vec2 low = *(const Vec2*)levels;
    if (bits <= 3) return look_up_few(n.four, 0x40404040u - low.x, 0x40404040u + low.x, h);
    if (bits == 4) {
        const u32 below[2] = {0x40404040u - low.x, 0x40404040u - low.y}, above[2] = {0x40404040u + low.x, 0x40404040u + low.y};
        const Levels both = {{below[0], below[1]}, {above[0], above[1]}};
        look_up_signed(n.four, both, h);
        return;
    }
    const Vec2 next = *(const Vec2*)(levels + 2), third = *(const Vec2*)(levels + 4), last = *(const Vec2*)(levels + 6);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 at = n.four[half], other = at ^ 0x88888888u;
        // As in look_up_signed: a table that does not have it gives 0.
        u32 a = prmt(low.x, low.y, at) | prmt(next.x, next.y, other);
        u32 b = prmt(low.x, low.y, at >> 16) | prmt(next.x, next.y, other >> 16);
        if (bits == 6) {
            const u32 c = prmt(third.x, third.y, at) | prmt(last.x, last.y, other), d = prmt(third.x, third.y, at >> 16) | prmt(last.x, last.y, other >> 16);
            const u32 first = bytes_of(n.top >> (8 * half)), second = bytes_of(n.top >> (16 + 8 * half));
            a = (a & ~first) | (c & first), b = (b & ~second) | (d & second);
        }
        const u32 first = prmt(a, b, 0x5140), second = prmt(a, b, 0x7362);
        const u32 pairs[4] = {prmt(first, H2_1024, 0x7150), prmt(first, H2_1024, 0x7352), prmt(second, H2_1024, 0x7150), prmt(second, H2_1024, 0x7352)};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            // 1024 + magnitude less 1024, and the sign, which is set for positive ones.
            const int pair = 4 * half + i, to = bits == 5 ? 15 - pair : 14 - 2 * pair;
            h[pair] = h2_add(pairs[i], minus_1024(0)) ^ (~n.top << to & 0x80008000u);
        }
    }
}

// Unit `unit` of a tile that `word` describes. `table`: words of tiles, then levels.
CKV_FN void load_grouped(const u8* section, u32 word, int unit, const u32* table, u32 (&h)[8]) {
    const u32 bits = ckv_grouped::bits_of(word);
    const Nibbles n = load_nibbles(section + ckv_grouped::codes_before(word), unit, bits);
    look_up(n, bits, table + ckv_grouped::HEAD_TILES + ckv_grouped::LEVEL_WORDS * ckv_grouped::group_of(word), h);
}
#endif
