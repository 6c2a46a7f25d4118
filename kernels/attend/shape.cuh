// What one variant of the decode kernels is made of: sizes fixed when it is compiled.
#pragma once
#include "directions.cuh"
#include "grouped.cuh"
#include "partial.cuh"
#include "sizes.cuh"

// Up to four query heads leave half of the matrix unit's eight columns free: the low digits of query and weights ride there,
// so that 16-bit operands carry 22 bits at no cost. More heads take a second product for the low digits.
constexpr bool PAIRED = GROUP <= 4;
// Column tiles of eight.
constexpr int NT = PAIRED ? 1 : (GROUP + 7) / 8;
// What keeps large variants inside the registers, which the outputs of all heads (NT D / 4 a lane) fill first.
// BY_CHUNK: blocks are scored chunk by chunk, so that one chunk of scaled queries lives at a time. LEAN: so is everything that can be.
constexpr bool LEAN = NT == 2 || D == 256;
// Heads whose outputs leave so few registers that a launch begins and ends with no more at once than it has to.
constexpr bool TIGHT = D == 256;
// Scaled queries of all chunks of a block of 64 tokens, beside the logits of its four tiles, are too many registers for twelve warps.
constexpr bool BY_CHUNK = LEAN || TILES == 4;
// Where registers are scarce (LEAN) what comes before and after the blocks is functions of their own, so that nothing of it waits in registers while blocks are read.
#if CKV_GROUP > 8 || CKV_DIM == 256
#define CKV_APART __attribute__((noinline)) __device__
#else
#define CKV_APART CKV_FN
#endif
// Whether blocks picked after a pass are corrected, and nothing else: correct.cuh.
constexpr bool CORRECTS = CKV_CORRECT == 1;
static_assert(!CORRECTS || REFINABLE, "with residuals");
// The query lies in shared memory where registers are scarce.
// Or where it is needed twice: as it is for originals, and rotated for TurboQuant's codes.
constexpr int QUERIES = CKV_KEY == 3 ? 2 : 1;
// Or where blocks are scored by what was made of it.
constexpr bool DIRECTIONS = CKV_KEY == 7;
constexpr bool QUERY_SHARED = LEAN || REFINABLE || QUERIES == 2 || DIRECTIONS;
static_assert(!REFINABLE || (CKV_KEY == 1 && (CKV_VALUE == 1 || CKV_VALUE == 6) && NT == 1), "what is refined is coded, for up to eight heads");
// Chunks that are unrolled while they are scored: all where the query, or what was made of all of it, lies in registers.
constexpr int UNROLL = LEAN ? (NT == 2 ? 1 : 2) : (REFINABLE && BY_CHUNK) || QUERIES == 2 || DIRECTIONS ? 1 : 16;
// What a unit of a key's residual is, in steps of its code: 2^-m.
constexpr float KEY_STEP = 1.0f / (float)(1u << CKV_KEY_REFINE);
static_assert((!REFINABLE || CKV_KEY_REFINE <= CKV_KEY_BITS) && CKV_VALUE_REFINE <= CKV_VALUE_BITS, "a plane fits where the codes were");
// ASIDE: two column tiles are worked off one after the other, COLUMNS at a time, and what is not needed all the time waits in shared
// memory, in what will hold the warp's partial result, behind the summary of the open block. See aside.cuh. Of 128 channels both fit beside each other
// where the kernel is nothing but a pass, and are faster (measured on an H200: drafts of four tokens take 0.78 of the time); not with what hides tokens,
// nor with values by channel, nor in the code for GPUs other than 9.0.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1000)
constexpr bool TOGETHER = false;
#else
constexpr bool TOGETHER = !LADDER && CKV_WINDOW == 0 && CKV_VALUE != 6;
#endif
constexpr bool ASIDE = NT == 2 && (D == 256 || (D == 128 && TILES == 4 && !TOGETHER));
constexpr int COLUMNS = ASIDE ? 1 : NT;
// Words of a record's error summary.
constexpr int SUMMARY_WORDS = REFINABLE ? 12 : 8;

constexpr int WARPS = CKV_WARPS;
constexpr int STAGES = CKV_STAGES;
constexpr int THREADS = 32 * WARPS;
// A ring of one slot is filled side by side: see ring.cuh.
constexpr bool SPLIT = STAGES == 1;
constexpr int PARTS = SPLIT ? 2 : 1;

// Queries are pairs of bf16 where all keys are, else of halves.
constexpr bool BF16_QUERY = CKV_STORE == 1 && !KEYS_CODED;
// Whether their low halves can be other than zero.
constexpr bool LOW_QUERY = CKV_QUERY_LOW || BF16_QUERY || QUERIES == 2;

// Query heads as lanes share them: 32 / HEADS blocks are certified at once.
constexpr int HEADS = GROUP <= 4 ? 4 : GROUP <= 8 ? 8 : 16;
constexpr int LOT = 32 / HEADS;


// First the slots of all warps, which lie close (measured: 3% at 8 x 32K), then what else each has, together, so that one register and constants
// name it: its partial result first.
constexpr int RING_BYTES = (WARPS * STAGES * CKV_RECORD + 127) / 128 * 128, AT_PARTIAL = 0;
// One of them for residuals.
constexpr int BARRIERS = STAGES * PARTS + (REFINABLE ? 1 : 0);
constexpr int AT_BARRIERS = AT_PARTIAL + PARTIAL_STRIDE * 4;
// What the ring remembers of a block in flight: addresses of promoted sides, and which kind of block it is.
constexpr int AT_FLIGHTS = AT_BARRIERS + (BARRIERS * 8 + 15) / 16 * 16;
// Blocks that wait for their certificate: 32 x four numbers, LOT summaries and descriptions.
constexpr int AT_LOT = AT_FLIGHTS + (STAGES * 24 + 15) / 16 * 16, LOT_BYTES = 32 * 16 + LOT * (4 * SUMMARY_WORDS + 8);
// Where its next blocks lie: two batches of 32.
constexpr int AT_PLACES = AT_LOT + LOT_BYTES;
// And which they are.
constexpr int AT_RANGE = AT_PLACES + 64 * 16, RANGE_BYTES = 16;
constexpr int WARP_BYTES = AT_RANGE + RANGE_BYTES;
static_assert(WARP_BYTES % 16 == 0 && AT_LOT % 16 == 0 && AT_PLACES % 16 == 0, "copies and loads of 16 bytes");
// Merged scalars, norms of slices (the output's, its distance from the centre, and from what is written of it), one word; what all warps know of the
// launch and of the head at hand.
constexpr int NORMS = 3;
constexpr int FINISH_BYTES = (4 * (GROUP * SCALARS + NORMS * GROUP * SLICES + 4) + 15) / 16 * 16;
constexpr int KNOWN_BYTES = 128;
// The queries of a head's group, of up to 32 bits; where they stay there, two registers of halves for every pair of channels in
// every column.
// With LEAN in the place of what they were made from, unless something else is, too.
constexpr int PREPARED_BYTES = QUERY_SHARED ? 8 * NT * D * 4 * QUERIES : 0, GIVEN_BYTES = LEAN && QUERIES == 1 && !DIRECTIONS ? 0 : GROUP * D * 4;
// And four numbers of every column where keys have a metric: see Fold. Behind them that itself, with what a step reads of a table where keys have several widths; of spherical keys the
// products of queries with directions, key_directions.cuh.
constexpr int FOLD_BYTES = FOLDED ? 8 * NT * 16 : 0;
#if CKV_GROUPED
constexpr int TABLE_BYTES = 4 * (2 * D + ckv_grouped::AT_THRESHOLDS);
#elif CKV_FOLD
constexpr int TABLE_BYTES = 4 * 2 * D;
#elif CKV_KEY == 7
constexpr int TABLE_BYTES = 4 * (8 * NT + (PAIRED ? 4 : 8 * NT) * ckv_directions::GROUPS * ckv_directions::WORDS);
#else
constexpr int TABLE_BYTES = 0;
#endif
constexpr int QUERY_BYTES = GIVEN_BYTES + PREPARED_BYTES + FOLD_BYTES + TABLE_BYTES;
// Of more than SAMPLES sequences or listed heads only every n-th is kept in shared memory.
constexpr int SAMPLES = 256;
constexpr int ENTRY_BYTES = 4 * (SAMPLES + 8);
// What a block may add unrefined, per head.
constexpr int LIMIT_BYTES = REFINABLE ? 8 * 16 : 0;
constexpr int SHARED_BYTES = RING_BYTES + WARPS * WARP_BYTES + LIMIT_BYTES + FINISH_BYTES + KNOWN_BYTES + QUERY_BYTES + ENTRY_BYTES;
