// Fragment order: where the 16 codes of a lane lie, and their bit planes. The device twin of certkv-core's fragment.rs.
//
// A unit is 16 tokens x 32 channels; code p = 2 pair + el of a lane, p = 0..15.
#pragma once
#include "machine.cuh"

namespace ckv_encode {

// Token, inside its tile of 16, and channel, inside its 32, of code p of lane `l`.
template <bool KEY> CKV_FN u32 token_of(u32 l, u32 p) {
    return KEY ? l / 4 + 8 * (p >> 1 & 1) : 2 * (l % 4) + (p & 1) + 8 * (p >> 2 & 1);
}
template <bool KEY> CKV_FN u32 channel_of(u32 l, u32 p) {
    return KEY ? 8 * (l % 4) + 4 * (p >> 3) + 2 * (p >> 2 & 1) + (p & 1) : 16 * (p >> 3) + l / 4 + 8 * (p >> 1 & 1);
}
// Where element (token, channel) of a 16-bit side lies, in elements; fragment.rs: original_index.
template <bool KEY, u32 DIM> CKV_FN u32 original_index(u32 token, u32 channel) {
    const u32 w = channel % 8, row = channel % 16, half = token / 8 % 2;
    const u32 at = KEY ? token % 8 * 4 + channel % 32 / 8 : row % 8 * 4 + token % 8 / 2;
    const u32 pair = KEY ? w / 4 * 4 + w % 4 / 2 * 2 + half : channel % 32 / 16 * 4 + half * 2 + row / 8;
    return (token / 16 * (DIM / 32) + channel / 32) * 512 + at * 16 + pair * 2 + (KEY ? w : token) % 2;
}

// The codes of a lane, a byte each: sixteen registers would be too many.
struct Codes {
    u32 four[4];

    // `p` may be a variable: masks, not addresses, choose the word, which so stays a register.
    __device__ __forceinline__ void set(u32 p, u32 code) {
        const u32 byte = 0xffu << (8 * (p % 4)), value = code * 0x01010101u;
#pragma unroll
        for (u32 w = 0; w < 4; ++w) {
            const u32 mask = w == p / 4 ? byte : 0u;
            four[w] = (four[w] & ~mask) | (value & mask);
        }
    }
    __device__ __forceinline__ void set_four(u32 word, u32 codes) {
#pragma unroll
        for (u32 w = 0; w < 4; ++w) four[w] = w == word ? codes : four[w];
    }
    __device__ __forceinline__ u32 bits(u32 p, u32 shift, u32 mask) const { return four[p / 4] >> (8 * (p % 4) + shift) & mask; }
};

// One plane of WIDTH bits of the warp's unit: bits shift .. shift + WIDTH of every code.
template <int WIDTH> CKV_FN void store_plane(u8* plane, u32 unit, const Codes& codes, u32 shift) {
    constexpr u32 half = WIDTH == 1 ? 8 : 16, per_word = half / WIDTH, words = 8 / per_word, mask = (1u << WIDTH) - 1;
    u32 out[words];
#pragma unroll
    for (u32 w = 0; w < words; ++w) {
        out[w] = 0;
#pragma unroll
        for (u32 i = 0; i < per_word; ++i) {
            const u32 pair = w * per_word + i;
            const u32 lo = codes.bits(2 * pair, shift, mask), hi = codes.bits(2 * pair + 1, shift, mask);
            out[w] |= lo << (WIDTH * i) | hi << (WIDTH * i + half);
        }
    }
    u8* at = plane + unit * (64 * WIDTH) + lane() * (2 * WIDTH);
    if constexpr (WIDTH == 8) *(Vec4*)at = Vec4{out[0], out[1], out[2], out[3]};
    if constexpr (WIDTH == 4) *(Vec2*)at = Vec2{out[0], out[1]};
    if constexpr (WIDTH == 2) *(u32*)at = out[0];
    if constexpr (WIDTH == 1) *(u16*)at = (u16)out[0];
}

// All planes of the warp's unit in a section of COUNT codes of BITS bits: widest first, it holds the high bits.
template <int BITS, u32 COUNT> CKV_FN void store_unit(u8* section, u32 unit, const Codes& codes) {
    if constexpr (BITS & 8) store_plane<8>(section, unit, codes, 0);
    if constexpr (BITS & 4) store_plane<4>(section, unit, codes, BITS & 3);
    if constexpr (BITS & 2) store_plane<2>(section + COUNT * (BITS & 4) / 8, unit, codes, BITS & 1);
    if constexpr (BITS & 1) store_plane<1>(section + COUNT * (BITS & 6) / 8, unit, codes, 0);
}

// The same of codes that stand for levels, up to 4 bits: selectors of look-ups, fragment.rs: level_position. Of more, the magnitude's lower four
// bits, then the rest.
template <int WIDTH> CKV_FN void store_level_plane(u8* plane, u32 unit, const Codes& codes, u32 shift) {
    constexpr u32 mask = (1u << WIDTH) - 1;
    u32 out[2] = {0, 0};
#pragma unroll
    for (u32 p = 0; p < 16; ++p) {
        const u32 half = p / 8, n = p % 8, bits = codes.bits(p, shift, mask);
        if constexpr (WIDTH == 4) out[half] |= bits << (4 * n);
        if constexpr (WIDTH == 2) out[0] |= bits << (4 * n + 2 * half);
        if constexpr (WIDTH == 1) out[0] |= bits << (n % 4 * 4 + 2 * half + n / 4);
    }
    u8* at = plane + unit * (64 * WIDTH) + lane() * (2 * WIDTH);
    if constexpr (WIDTH == 4) *(Vec2*)at = Vec2{out[0], out[1]};
    if constexpr (WIDTH == 2) *(u32*)at = out[0];
    if constexpr (WIDTH == 1) *(u16*)at = (u16)out[0];
}
template <int BITS, u32 COUNT> CKV_FN void store_levels(u8* section, u32 unit, const Codes& codes) {
    if constexpr (BITS > 4) {
        store_plane<4>(section, unit, codes, 0), store_plane<BITS - 4>(section + COUNT / 2, unit, codes, 4);
    } else {
        if constexpr (BITS & 4) store_level_plane<4>(section, unit, codes, BITS & 3);
        if constexpr (BITS & 2) store_level_plane<2>(section + COUNT * (BITS & 4) / 8, unit, codes, BITS & 1);
        if constexpr (BITS & 1) store_level_plane<1>(section + COUNT * (BITS & 6) / 8, unit, codes, 0);
    }
}

// The code of BITS bits of element (token, channel) out of a section of COUNT codes; fragment.rs: read_code.
template <bool KEY, int BITS, u32 COUNT, u32 DIM> CKV_FN u32 read_code(const u8* section, u32 token, u32 channel) {
    const u32 place = original_index<KEY, DIM>(token, channel);
    const u32 unit = place / 512, at = place / 16 % 32, pair = place / 2 % 8, el = place % 2;
    u32 code = 0;
#pragma unroll
    for (u32 width = 8; width > 0; width /= 2) {
        if ((BITS & width) == 0) continue;
        const u32 step = width == 1 ? 8 : 16, per_word = step / width;
        const u32 bit = pair / per_word * 2 * step + el * step + width * (pair % per_word);
        // Wider planes, which are the binary digits of BITS above this one, lie in front.
        const u8* plane = section + COUNT / 8 * (BITS & ~(2 * width - 1));
        const u32 part = (u32)plane[unit * 64 * width + at * 2 * width + bit / 8] >> (bit % 8) & ((1u << width) - 1);
        code |= part << (BITS & (width - 1));
    }
    return code;
}

}  // namespace ckv_encode
