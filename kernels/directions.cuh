// Spherical keys, math.md 2.9: sizes, what a launch is told of a head's, and where codes lie. Twin of certkv-core's fragment/directions.rs.
//
// Of a head a launch has its directions, f32[group][word][channel]. Radii of a block are bytes, [group][row][tile of 16 tokens], indices lie behind them in
// bit planes of the same order, the widest first: what a lane needs of the tiles of its row lies together.
#pragma once
#include "machine.cuh"

#if CKV_KEY == 7
namespace ckv_directions {

constexpr int WIDTH = CKV_KEY_GROUP, GROUPS = CKV_DIM / WIDTH, BITS = CKV_KEY_BITS, WORDS = 1 << BITS;
// Tiles of 16 tokens, of each of which a row has one.
constexpr int PER_ROW = CKV_BLOCK / 16, CODES = CKV_BLOCK * GROUPS;
static_assert(GROUPS * WORDS * WIDTH == CKV_METRIC && BITS <= 7, "as the host counts");

// Those of a head.
CKV_FN const float* words_of(const float* metrics, u64 head) { return metrics + head * CKV_METRIC; }

// Where a plane of W of the BITS bits begins, in the section of codes, and the lowest of its bits.
template <int W> constexpr int plane_at() { return CODES + CODES / 8 * (BITS & ~(2 * W - 1)); }
template <int W> constexpr int shift_of() { return BITS & (W - 1); }

// Fields of W bits of the tiles of row `at / PER_ROW`.
template <int W> CKV_FN u32 fields(const u8* plane, int at) {
    constexpr int N = W * PER_ROW;
    if constexpr (N == 32) return *(const u32*)(plane + at);
    if constexpr (N == 16) return *(const u16*)(plane + at * W / 8);
    return (u32)plane[at * W / 8] >> (at * W % 8) & ((1u << (N < 8 ? N : 8)) - 1);
}

// A row's codes of one group, a tile of 16 tokens at a time.
struct Codes {
    u32 radii, four, two, one;

    __device__ __forceinline__ float radius(int tile) const { return (float)(radii >> (8 * tile) & 255); }
    __device__ __forceinline__ u32 word(int tile) const {
        u32 index = 0;
        if constexpr (BITS & 4) index |= (four >> (4 * tile) & 15) << shift_of<4>();
        if constexpr (BITS & 2) index |= (two >> (2 * tile) & 3) << shift_of<2>();
        if constexpr (BITS & 1) index |= one >> tile & 1;
        return index;
    }
};
CKV_FN Codes codes_of(const u8* section, int group, int row) {
    const int at = group * CKV_BLOCK + row * PER_ROW;
    Codes c = {fields<8>(section, at), 0, 0, 0};
    if constexpr (BITS & 4) c.four = fields<4>(section + plane_at<4>(), at);
    if constexpr (BITS & 2) c.two = fields<2>(section + plane_at<2>(), at);
    if constexpr (BITS & 1) c.one = fields<1>(section + plane_at<1>(), at);
    return c;
}

}  // namespace ckv_directions
#endif
