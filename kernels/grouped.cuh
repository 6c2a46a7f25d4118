// Keys in groups of unlike width, math.md (2.19c): what a launch is told of a head's, and their rotation. Twin of grouped.rs.
//
// Of a head a launch has words of 32 bits: centre and balance scale by channel, as of other keys of a calibration, then a table. By place, in the order of (2.18), the channel that it
// has, and which place of the first round of a rotation becomes it in the second, a byte each; signs of both rounds, a bit a place; four words for each tile of 16 places; magnitudes of
// the levels of each width, 32 bytes; thresholds between them, 31 doubles. Tables are read where they lie, in memory of any kind.
#pragma once
#include "machine.cuh"

#if CKV_GROUPED
namespace ckv_grouped {

constexpr int DIM = CKV_DIM, HEAD_TILES = DIM / 16, PER = DIM / 32, MOST = 6, SLOTS = CKV_KEY_SLOTS;
constexpr int AT_CHANNELS = 0, AT_SECOND = AT_CHANNELS + DIM / 4, AT_SIGNS = AT_SECOND + DIM / 4, AT_TILES = AT_SIGNS + (2 * (DIM / 32) + 3) / 4 * 4;
constexpr int TILE_WORDS = 4, LEVEL_WORDS = 8, AT_LEVELS = AT_TILES + HEAD_TILES * TILE_WORDS, AT_THRESHOLDS = AT_LEVELS + MOST * LEVEL_WORDS, THRESHOLDS = 31;
constexpr int WORDS = AT_THRESHOLDS + 2 * MOST * THRESHOLDS;
static_assert(2 * DIM + WORDS == CKV_METRIC && AT_TILES % 4 == 0 && AT_LEVELS % 4 == 0 && AT_THRESHOLDS % 2 == 0 && WORDS % 4 == 0, "as the host counts");
// That of a head.
CKV_FN const u32* table_of(const float* metrics, u64 head) { return (const u32*)metrics + head * CKV_METRIC + 2 * DIM; }
// What decode keeps: words of tiles, then levels.
constexpr int KEPT = HEAD_TILES * TILE_WORDS + MOST * LEVEL_WORDS;
// Tiles of blocks of 16 tokens have 32 places and are two words; units of 512 codes of a tile.
constexpr int UNITS = CKV_BLOCK < 32 ? 1 : CKV_BLOCK / 32;

// What the first word of a tile says. The second is the bits of the tiles before it, added up. Of up to three bits the third and the fourth are what negative and positive codes stand for, plus 64, a byte each; of more
// the third is where its levels lie behind those of the first width, in bytes.
CKV_FN u32 bits_of(u32 tile) { return tile & 15; }
CKV_FN u32 group_of(u32 tile) { return tile >> 4 & 15; }
// Of the transform that the tile is part of, the logarithm of its channels and its first tile; whether there are two rounds of them.
CKV_FN u32 log_of(u32 tile) { return tile >> 8 & 15; }
CKV_FN u32 part_of(u32 tile) { return tile >> 12 & 15; }
CKV_FN bool is_twice(u32 tile) { return tile >> 17 & 1; }
// Whether it is its group's last.
CKV_FN bool ends(u32 tile) { return tile >> 16 & 1; }

CKV_FN u32 tile_at(const u32* table, u32 tile) { return table[AT_TILES + TILE_WORDS * tile]; }
// Bytes of codes that many bits of tiles before take.
CKV_FN u32 bytes_before(u32 bits) { return bits * (2 * CKV_BLOCK); }
CKV_FN u32 codes_before(const u32* table, u32 tile) { return bytes_before(table[AT_TILES + TILE_WORDS * tile + 1]); }
CKV_FN u32 channel_at(const u32* table, u32 place) { return ((const u8*)(table + AT_CHANNELS))[place]; }
CKV_FN u32 second_at(const u32* table, u32 place) { return ((const u8*)(table + AT_SECOND))[place]; }
CKV_FN u32 sign_at(const u32* table, int round, u32 m) { return table[AT_SIGNS + round * (DIM / 32) + m] >> lane() & 1; }

// The host's n^(-1/2) of a transform of n = 2^log channels, to the bit.
template <class T> CKV_FN T factor_of(u32 log) {
    return log == 4 ? (T)0.25 : log == 5 ? (T)0.1767766952966369 : log == 6 ? (T)0.125 : log == 7 ? (T)0.08838834764831845 : (T)0.0625;
}

// other + x, or `minus`, other - x: of single numbers one instruction.
CKV_FN float added(bool minus, float x, float other) { return fma_rn(minus ? -1.0f : 1.0f, x, other); }
CKV_FN double added(bool minus, double x, double other) { return minus ? other - x : other + x; }

// R of a row. `room(place)` is memory of the warp's for its numbers: where they lie, and where they are left for all lanes to see. Lane l has place 32 m + l, which is of tile 2 m + l / 16, in x[m]: tiles
// two and more apart meet in a lane, neighbours by an exchange between the halves of the warp. In single or double precision.
template <class T, class Room> CKV_FN void turn(const u32* table, Room room) {
    constexpr int STEPS = DIM > 128 ? 4 : DIM > 64 ? 3 : 2;
    const u32 half = lane() >> 4;
    // Bit t: tile t is rotated twice; in step n it is the first of two that meet, 2^n apart. Then those of this half's tiles, every other bit.
    const u32 own = tile_at(table, lane() < HEAD_TILES ? lane() : 0), number = lane() - part_of(own);
    const u32 twice = warp_ballot(lane() < HEAD_TILES && is_twice(own));
    u32 firsts[STEPS];
#pragma unroll
    for (int n = 0; n < STEPS; n++) firsts[n] = warp_ballot(lane() < HEAD_TILES && log_of(own) > 4 + n && !(number >> n & 1));
    const u32 seconds = firsts[0] << 1 >> half;
#pragma unroll
    for (int n = 0; n < STEPS; n++) firsts[n] >>= half;
    // Groups of one transform rest in the second round.
    u32 resting = 0;
#pragma unroll 1
    for (int round = 0; round < (twice ? 2 : 1); round++) {
        T x[PER];
        syncwarp();
#pragma unroll
        for (int m = 0; m < PER; m++) {
            const u32 place = 32 * m + lane();
            x[m] = room(round == 0 ? place : second_at(table, place));
            x[m] = sign_at(table, round, m) ? -x[m] : x[m];
        }
        syncwarp();
#pragma unroll
        for (u32 d = 1; d < 16; d *= 2) {
#pragma unroll
            for (int m = 0; m < PER; m++) x[m] = added(lane() & d, x[m], shfl_xor(x[m], (int)d));
        }
        T y[PER];
#pragma unroll
        for (int m = 0; m < PER; m++) y[m] = shfl_xor(x[m], 16);
#pragma unroll
        for (int m = 0; m < PER; m++) {
            const bool first = firsts[0] >> 2 * m & 1, second = seconds >> 2 * m & 1;
            const T beyond = half ? y[m + 1 < PER ? m + 1 : m] : y[m > 0 ? m - 1 : m], other = first == (half == 0) ? y[m] : beyond;
            x[m] = first ? x[m] + other : second ? other - x[m] : x[m];
        }
#pragma unroll
        for (int n = 1; n < STEPS; n++) {
            constexpr int APART[4] = {0, 1, 2, 4};
#pragma unroll
            for (int m = 0; m + APART[n] < PER; m++) {
                const bool first = firsts[n] >> 2 * m & 1;
                const T a = x[m], b = x[m + APART[n]];
                x[m] = first ? a + b : a, x[m + APART[n]] = first ? a - b : b;
            }
        }
#pragma unroll
        for (int m = 0; m < PER; m++) {
            const T left = x[m] * factor_of<T>(log_of(tile_at(table, 2 * m + half)));
            if (!(resting >> 2 * m & 1)) room(32 * m + lane()) = left;
        }
        resting = ~(twice >> half);
    }
    syncwarp();
}

}  // namespace ckv_grouped
#endif
