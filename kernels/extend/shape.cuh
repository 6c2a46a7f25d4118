// How a CTA of the extend kernel is cut.
#pragma once
#include "directions.cuh"
#include "grouped.cuh"
#include "sizes.cuh"

constexpr int WARPS = CKV_EXTEND_WARPS, THREADS = 32 * WARPS;
constexpr int STAGES = CKV_EXTEND_STAGES;
// CTAs to a multiprocessor: one decodes and weighs while the other multiplies.
constexpr int CTAS = CKV_EXTEND_CTAS;
// A warp's queries: as many as leave registers for their outputs. In tiles of 16, the rows of a product.
constexpr int MT = D <= 128 ? 2 : 1, ROWS = 16 * MT;
// A CTA's: the query heads of whole tokens.
constexpr int TILE = WARPS * ROWS / GROUP;
static_assert(TILE >= 1, "the heads of a token");
// Tiles of 16 tokens whose logits live at once.
constexpr int SUB = TILES < 2 ? 1 : 2;

// What keys of several widths are; of spherical ones the directions, as halves.
#if CKV_GROUPED
constexpr int TABLE_BYTES = (4 * ckv_grouped::KEPT + 15) / 16 * 16;
#elif CKV_KEY == 7
constexpr int TABLE_BYTES = 2 * CKV_METRIC;
#else
constexpr int TABLE_BYTES = 0;
#endif
// Slots of records, behind them what their codes are decoded by and to; in the same place, once all records are read, slots of both sides of a block of originals,
// which become operands where they lie.
constexpr int RECORD_SLOT = (CKV_RECORD + 127) / 128 * 128, ORIGINAL_SLOT = 2 * SIDE_BYTES, CODED_SIDES = (KEYS_CODED ? 1 : 0) + (VALUES_CODED ? 1 : 0);
constexpr int AT_TABLE = STAGES * RECORD_SLOT, AT_DECODED = AT_TABLE + TABLE_BYTES;
// Tiles that are decoded at once: a block where that needs no more memory than originals do.
constexpr int PART = AT_DECODED + CODED_SIDES * SIDE_BYTES <= STAGES * ORIGINAL_SLOT ? TILES : SUB;
constexpr int DECODED_BYTES = CODED_SIDES * (SIDE_BYTES / TILES * PART);
constexpr int SLOT_BYTES = AT_DECODED + DECODED_BYTES > STAGES * ORIGINAL_SLOT ? AT_DECODED + DECODED_BYTES : STAGES * ORIGINAL_SLOT;

// A warp's queries as operands, and numbers of each: see query.cuh.
constexpr int QUERY_NUMBERS = FOLDED ? 5 : 4, OF_WARP_BYTES = 16, QUERY_BYTES = ROWS * (2 * D + 4 * QUERY_NUMBERS) + OF_WARP_BYTES;
// Sums of the certificate, a row a lane.
constexpr int SUMS_BYTES = 32 * 40;
// Largest norms of a block of originals, of its keys and of its values, by slot.
constexpr int NORM_BYTES = STAGES * 8;
constexpr int AT_QUERIES = SLOT_BYTES, AT_SUMS = AT_QUERIES + WARPS * QUERY_BYTES, AT_NORMS = AT_SUMS + WARPS * SUMS_BYTES;
constexpr int AT_TILE = AT_NORMS + NORM_BYTES, TILE_BYTES = 64;
constexpr int SHARED_BYTES = (AT_TILE + TILE_BYTES + 15) / 16 * 16;
static_assert(SHARED_BYTES == CKV_EXTEND_SHARED, "CKV_EXTEND_SHARED");

// Names that headers of the decode kernel want.
constexpr int COLUMNS = 1;
constexpr bool CORRECTS = false;
