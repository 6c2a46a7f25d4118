// Sizes that every kernel that attends shares: of the records, and of the heads.
#pragma once

constexpr int D = CKV_DIM;
constexpr int BLOCK = CKV_BLOCK;
constexpr int GROUP = CKV_GROUP;
// What a sum of D squares in single precision may lack: those of numbers below 2^-63 can be 0, or have a few bits.
constexpr float LOST_SQUARES = (float)D * 1.2e-38f;
// Tiles of 16 tokens in a block, chunks of 32 channels in a row.
constexpr int TILES = BLOCK / 16;
constexpr int CHUNKS = D / 32;
// Whether records have residual planes, of both sides: attend/refine.cuh.
constexpr bool REFINABLE = CKV_KEY_REFINE > 0;
constexpr bool KEYS_CODED = CKV_KEY != 0;
constexpr bool VALUES_CODED = CKV_VALUE != 0;
// Whether keys are coded in the metric of a calibration: fold.cuh.
constexpr bool FOLDED = CKV_FOLD == 1;
static_assert(!FOLDED || CKV_KEY == 3, "rotated keys");
// Whether they are groups of unlike width: grouped.cuh.
constexpr bool GROUPED = CKV_GROUPED > 0;
static_assert(!GROUPED || FOLDED, "groups are a calibration's");
// Bytes of one side of a block as 16-bit originals.
constexpr int SIDE_BYTES = 2 * BLOCK * D;
// A warp merges 32 * VECTOR channels of one head at a time.
constexpr int VECTOR = D % 128 == 0 ? 4 : D % 64 == 0 ? 2 : 1;
constexpr int SLICES = D / (32 * VECTOR);
