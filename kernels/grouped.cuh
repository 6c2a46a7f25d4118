// Keys in groups of unlike width, math.md (2.19c): what a launch is told of a head's, and their rotation. Twin of grouped.rs.
//
// Of a head a launch has words of 32 bits: centre and balance scale by channel, as of other keys of a calibration, then a table. By place, in the order of (2.18), the channel that it
// has, and which place of the first round of a rotation becomes it in the second, a byte each; signs of both rounds, a bit a place; a word for each tile of 16 places; magnitudes of
// the levels of each width, 32 bytes; thresholds between them, 31 doubles. Tables are read where they lie, in memory of any kind.
#pragma once
#include "machine.cuh"

#if CKV_GROUPED
namespace ckv_grouped {

constexpr int DIM = CKV_DIM, HEAD_TILES = DIM / 16, PER = DIM / 32, MOST = 6, SLOTS = CKV_KEY_SLOTS;
constexpr int AT_CHANNELS = 0, AT_SECOND = AT_CHANNELS + DIM / 4, AT_SIGNS = AT_SECOND + DIM / 4, AT_TILES = AT_SIGNS + 2 * (DIM / 32);
constexpr int LEVEL_WORDS = 8, AT_LEVELS = AT_TILES + HEAD_TILES, AT_THRESHOLDS = AT_LEVELS + MOST * LEVEL_WORDS, THRESHOLDS = 31;
constexpr int WORDS = AT_THRESHOLDS + 2 * MOST * THRESHOLDS;
static_assert(2 * DIM + WORDS == CKV_METRIC && AT_LEVELS % 2 == 0 && AT_THRESHOLDS % 2 == 0 && WORDS % 4 == 0, "as the host counts");
// That of a head.
CKV_FN const u32* table_of(const float* metrics, u64 head) { return (const u32*)metrics + head * CKV_METRIC + 2 * DIM; }
// What the decode kernel keeps: words of tiles, then levels.
constexpr int KEPT = HEAD_TILES + MOST * LEVEL_WORDS;
// Tiles of blocks of 16 tokens have 32 places and are two words; units of 512 codes of a tile.
constexpr int UNITS = CKV_BLOCK < 32 ? 1 : CKV_BLOCK / 32;

// What the word of a tile says.
CKV_FN u32 bits_of(u32 tile) { return tile & 15; }
CKV_FN u32 group_of(u32 tile) { return tile >> 4 & 15; }
// Of the transform that the tile is part of, the logarithm of its channels and its first tile; whether there are two rounds of them.
CKV_FN u32 log_of(u32 tile) { return tile >> 8 & 15; }
CKV_FN u32 part_of(u32 tile) { return tile >> 12 & 15; }
CKV_FN bool is_twice(u32 tile) { return tile >> 17 & 1; }
// Whether it is its group's last.
CKV_FN bool ends(u32 tile) { return tile >> 16 & 1; }
// Bytes of codes before it.
CKV_FN u32 codes_before(u32 tile) { return (tile >> 20) * (2 * CKV_BLOCK); }

CKV_FN u32 tile_at(const u32* table, u32 tile) { return table[AT_TILES + tile]; }
CKV_FN u32 channel_at(const u32* table, u32 place) { return ((const u8*)(table + AT_CHANNELS))[place]; }
CKV_FN u32 second_at(const u32* table, u32 place) { return ((const u8*)(table + AT_SECOND))[place]; }
CKV_FN u32 sign_at(const u32* table, int round, u32 m) { return table[AT_SIGNS + round * (DIM / 32) + m] >> lane() & 1; }

// R of a row that a warp holds, place 32 m + lane in x[m]. `room(place)` is memory for a number of the row, the warp's own, which has the rotated row at the end,
// for all lanes to see.
template <class T, class Room> CKV_FN void turn(const u32* table, T (&x)[PER], Room room) {
    u32 tile[PER];
    bool twice = false;
#pragma unroll
    for (int m = 0; m < PER; m++) tile[m] = tile_at(table, 2 * m + (lane() >> 4)), twice |= is_twice(tile[m]);
    const int rounds = warp_any(twice) ? 2 : 1;
#pragma unroll 1
    for (int round = 0; round < rounds; round++) {
        // Groups of one transform rest in the second round.
#pragma unroll
        for (int m = 0; m < PER; m++) {
            const T from = round == 0 ? x[m] : room(second_at(table, 32 * m + lane()));
            x[m] = sign_at(table, round, m) ? -from : from;
        }
#pragma unroll
        for (u32 d = 1; d < 16; d *= 2) {
#pragma unroll
            for (int m = 0; m < PER; m++) {
                const T other = shfl_xor(x[m], (int)d), sum = lane() & d ? other - x[m] : x[m] + other;
                x[m] = round == 0 || is_twice(tile[m]) ? sum : x[m];
            }
        }
        // Tiles of a transform of more than 16 places, which begins at any of them.
#pragma unroll 1
        for (u32 step = 1, log = 5; 16 * step < (u32)DIM; step *= 2, log++) {
            syncwarp();
#pragma unroll
            for (int m = 0; m < PER; m++) room(32 * m + lane()) = x[m];
            syncwarp();
#pragma unroll
            for (int m = 0; m < PER; m++) {
                const u32 own = 2 * m + (lane() >> 4) - part_of(tile[m]);
                if (log_of(tile[m]) < log || (round == 1 && !is_twice(tile[m]))) continue;
                const T other = room(16 * (part_of(tile[m]) + (own ^ step)) + (lane() & 15));
                x[m] = own & step ? other - x[m] : x[m] + other;
            }
        }
        syncwarp();
#pragma unroll
        for (int m = 0; m < PER; m++) {
            const u32 log = log_of(tile[m]);
            // The host's m^(-1/2), to the bit.
            const T factor = log == 4 ? (T)0.25 : log == 5 ? (T)0.1767766952966369 : log == 6 ? (T)0.125 : log == 7 ? (T)0.08838834764831845 : (T)0.0625;
            x[m] = round == 0 || is_twice(tile[m]) ? x[m] * factor : x[m];
            room(32 * m + lane()) = x[m];
        }
        syncwarp();
    }
}

}  // namespace ckv_grouped
#endif
