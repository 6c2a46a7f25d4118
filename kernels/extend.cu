// Attention of chunks of queries over packed pages: each token of a chunk sees all before it, from codes, and its chunk up to itself, from originals.
//
// A CTA takes some tokens of a chunk with the query heads of one KV head, and goes over the blocks that they see: records first, then blocks
// of staging. A block comes into shared memory once for all warps, which decode it there, a share each, to operands of products of halves; each
// then multiplies them with its own queries, 32 of them (16 of 256 channels). Memory beside the arguments is none: outputs stay in registers from the first block to the last. A certificate for every
// query and head is computed where one is wanted. Several launches can share what a chunk sees, each of which takes over what those before it have left (extend/relay.cuh).
#include "machine.cuh"
#include "extend/args.cuh"
#include "extend/shape.cuh"
#include "attend/unit.cuh"
#include "attend/turn.cuh"
#include "attend/widths.cuh"
#include "extend/tile.cuh"
#include "fold.cuh"
#include "extend/query.cuh"
#include "extend/decode.cuh"
#include "extend/rows.cuh"
#include "extend/key_groups.cuh"
#include "extend/key_directions.cuh"
#include "extend/certificate.cuh"
#include "extend/relay.cuh"

// Starts to copy block `b` to slot number `slot`, if there is one: CODED of the records, else of the blocks of originals. All threads.
template <bool CODED>
CKV_FN void fetch(const CkvExtendArgs& a, const Tile& t, u32 b, u8* shared, int slot) {
    if (b < (CODED ? t.packed : t.blocks)) {
        const u32 to = smem_addr(shared + slot * (CODED ? RECORD_SLOT : ORIGINAL_SLOT));
        const int first = 16 * (int)threadIdx.x;
        if constexpr (CODED) {
            const u8* from = a.packed + ldg(a.table + (u64)t.chunk.row * a.table_stride + b) * a.page_stride + t.head * a.head_stride;
#pragma unroll
            for (int at = 0; at < CKV_RECORD; at += 16 * THREADS) {
                if (at + first < CKV_RECORD) cp_async16(to + at + first, from + at + first);
            }
        } else {
            const u8* from = a.staged + (u64)(t.chunk.staged + b - t.chunk.from) * a.staged_stride + (u64)t.head * (2 * SIDE_BYTES);
#pragma unroll
            for (int at = 0; at < ORIGINAL_SLOT; at += 16 * THREADS) {
                if (at + first < ORIGINAL_SLOT) cp_async16(to + at + first, from + at + first);
            }
        }
    }
    cp_async_commit();
}

// The records that a tile sees, or its blocks of originals, in their order, and the slots that they get.
struct Line {
    u32 block, ahead;  // the one at hand; the next one to be asked for
    int slot;
};

// From block `first` on.
template <bool CODED>
CKV_FN Line begin(const CkvExtendArgs& a, const Tile& t, u32 first, u8* shared) {
    Line line = {seen_from(t, first), seen_from(t, first), 0};
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++) fetch<CODED>(a, t, line.ahead, shared, i), line.ahead = seen_from(t, line.ahead + 1);
    return line;
}

CKV_FN void pass(const Tile& t, Line& line) {
    line.block = seen_from(t, line.block + 1);
    line.slot = line.slot + 1 == STAGES ? 0 : line.slot + 1;
}

// Waits for the block at hand, and asks for another in the place of the one before it. All threads.
template <bool CODED>
CKV_FN u8* await(const CkvExtendArgs& a, const Tile& t, u8* shared, Line& line) {
    u32* norms = (u32*)(shared + AT_NORMS) + 2 * line.slot;
    if constexpr (STAGES == 1) {
        sync_threads();
        if (threadIdx.x < 2) norms[threadIdx.x] = 0;
        fetch<CODED>(a, t, line.block, shared, 0);
        cp_async_wait<0>();
        sync_threads();
        return shared;
    }
    cp_async_wait<STAGES < 2 ? 0 : STAGES - 2>();
    if (threadIdx.x < 2) norms[threadIdx.x] = 0;
    // It is there for every thread, and nobody is at the one before it.
    sync_threads();
    fetch<CODED>(a, t, line.ahead, shared, line.slot == 0 ? STAGES - 1 : line.slot - 1);
    line.ahead = seen_from(t, line.ahead + 1);
    return shared + line.slot * (CODED ? RECORD_SLOT : ORIGINAL_SLOT);
}

// One block into the state of those warps that see it. `rows`: those of its tokens that there are. All threads, with the block complete for all of them.
template <bool CODED>
CKV_FN void extend_block(const CkvExtendArgs& a, const Tile& t, u8* shared, u8* block, i32 at, int rows, Sight sight, bool certify, const Query& q, State& st,
                         Mass& mass) {
    clear(mass);
#pragma unroll 1
    for (int part = 0; part < TILES; part += PART) {
        // Nobody is at the operands of the part before; of the block before nobody is, either.
        if (part > 0) sync_threads();
        const Operands operands = decode<CODED>(block, shared + AT_DECODED, (const u32*)(shared + AT_TABLE), part, rows);
        sync_threads();
        if (sight == NOTHING) continue;
#pragma unroll 1
        for (int first = 0; first < PART; first += SUB) {
            Logits s;
            Weights w;
            score(operands.keys, first, q, s);
            if (sight == SOME) mask(a, q, at + 16 * (part + first), s);
            follow(q, s, st, mass);
            weigh(q, s, st, certify, w, mass);
            add(operands.values, first, w, st);
        }
    }
#pragma unroll
    for (int mt = 0; mt < MT; mt++) st.l[mt][0] += mass.weight[mt][0], st.l[mt][1] += mass.weight[mt][2];
}

// Returns the square of what rounding takes from the two.
CKV_FN float store_pair(const CkvExtendArgs& a, u64 at, float x, float y) {
    if (a.out_type == 2) {
        *(Vec2*)((float*)a.out + at) = Vec2{float_as_u32(x), float_as_u32(y)};
        return 0.0f;
    }
    const bool wide = a.out_type == 1;
    const u32 bits = wide ? b2_pack(x, y) : h2_pack(x, y);
    *(u32*)((u16*)a.out + at) = bits;
    const float u = x - (wide ? b_lo(bits) : h_lo(bits)), v = y - (wide ? b_hi(bits) : h_hi(bits));
    return fma_ru(u, u, fma_ru(v, v, 0.0f));
}

// Writes the warp's outputs, and leaves their norms, those less the centre, and what rounding took, squared.
CKV_FN void store_rows(const CkvExtendArgs& a, const Tile& t, const float* centre, const State& st, float (&norm)[MT][2], float (&radius)[MT][2], float (&lost)[MT][2]) {
#pragma unroll
    for (int mt = 0; mt < MT; mt++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 row = row_number(mt, half);
            const bool there = is_row(t, row);
            const u64 at = row_at(a.out_strides, t.chunk.first_row + t.first + token_of(row), t.head * GROUP + head_of(row)) + 2 * (lane() & 3);
            const float inverse = 1.0f / st.l[mt][half];
            float n = 0.0f, r = 0.0f, off = 0.0f;
#pragma unroll
            for (int e = 0; e < EIGHTHS; e++) {
                float x[2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    x[i] = st.o[mt][e][2 * half + i] * inverse;
                    const float away = x[i] - (centre ? ldg(centre + 8 * e + 2 * (lane() & 3) + i) : 0.0f);
                    n = fma_rn(x[i], x[i], n), r = fma_rn(away, away, r);
                }
                if (there) off += store_pair(a, at + 8 * e, x[0], x[1]);
            }
            n += shfl_xor(n, 1), r += shfl_xor(r, 1), off += shfl_xor(off, 1);
            n += shfl_xor(n, 2), r += shfl_xor(r, 2), off += shfl_xor(off, 2);
            norm[mt][half] = n, radius[mt][half] = r, lost[mt][half] = off;
        }
    }
}

// The centre of a tile's values; null: zero.
CKV_FN const float* centre_of(const CkvExtendArgs& a, const Tile& t) { return a.centres ? a.centres + ((u64)t.chunk.row * a.kv_heads + t.head) * D : nullptr; }
CKV_FN float centre_norm(const float* centre) {
    float square = 0.0f;
    for (int c = lane(); c < D; c += 32) square = fma_ru(ldg(centre + c), ldg(centre + c), square);
    return sqrt_ru(warp_sum(square) * 1.0001f + LOST_SQUARES);
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS) ckv_extend(const __grid_constant__ CkvExtendArgs a) {
    CKV_DYNAMIC_SHARED(shared);
    grid_dependency_wait();
    // What is needed once a block lies in shared memory: registers are for outputs.
    Tile& t = *(Tile*)(shared + AT_TILE);
    if (threadIdx.x == 0) t = tile_of(a);
    sync_threads();
    const bool certify = a.certificates != nullptr;
    const Query q = query_at(shared);
    put_positions(t, q);
    Sums& sums = ((Sums*)(shared + AT_SUMS + warp() * SUMS_BYTES))[lane()];
    static_assert(sizeof(Sums) * 32 == SUMS_BYTES, "SUMS_BYTES");
    // Where keys have groups, queries are rotated in their place first.
    if constexpr (!GROUPED) clear(sums);
    if (a.centres && certify) {
        const float norm = centre_norm(centre_of(a, t));
        if (lane() == 0) of_warp(q).centre = norm;
    }
    State st;
    Mass mass;
    clear(st);
    Line line = begin<true>(a, t, 0, shared);
    // Of a prompt all tiles see originals alone.
    const bool packed = t.packed > 0;
#if CKV_GROUPED
    if (packed) keep_table(a, t, (u32*)(shared + AT_TABLE));
    // Rows are rotated where the sums will be.
    static_assert(4 * D <= SUMS_BYTES, "a row");
    if (packed) prepare_grouped(a, t, q, (float*)(shared + AT_SUMS + warp() * SUMS_BYTES));
    clear(sums);
#elif CKV_KEY == 3
    if (packed) prepare_turned(a, t, q);
#else
    prepare_queries<false>(a, t, q);
#endif
#if CKV_KEY == 7
    // Complete for every thread behind the first block's wait.
    if (packed) keep_directions(a, t, (u32*)(shared + AT_TABLE));
#endif
#pragma unroll 1
    for (; line.block < t.packed; pass(t, line)) {
        u8* block = await<true>(a, t, shared, line);
        const i32 at = (i32)(line.block * BLOCK);
        const Sight sight = sight_of(a, of_warp(q).span, at);
        extend_block<true>(a, t, shared, block, at, BLOCK, sight, certify, q, st, mass);
        if (certify && sight != NOTHING) certify_block<true>(a, t, block, at, load_summary(block + CKV_SUMMARY), q, st, mass, sums);
    }
    // The slots are free for originals.
    sync_threads();
    line = begin<false>(a, t, t.chunk.from, shared);
#if CKV_VALUE == 2
    if (packed) turn_back(st);
#endif
#if CKV_FOLD
    if (packed) add_centre(q, st, sums);
#endif
    if (a.part & FOLLOWS) take_over(a, t, st, sums);
    if constexpr (TURBO_KEYS) prepare_queries<false>(a, t, q);
#pragma unroll 1
    for (; line.block < t.blocks; pass(t, line)) {
        u8* block = await<false>(a, t, shared, line);
        const i32 at = (i32)(line.block * BLOCK), left = (i32)(t.chunk.before + t.chunk.tokens) - at;
        const int rows = left < BLOCK ? left : BLOCK;
        u32* norms = (u32*)(shared + AT_NORMS) + 2 * line.slot;
        if (certify) {
            row_norms<WARPS>(block, rows, norms);
            sync_threads();
        }
        const Sight sight = sight_of(a, of_warp(q).span, at);
        extend_block<false>(a, t, shared, block, at, rows, sight, certify, q, st, mass);
        if (certify && sight != NOTHING) certify_block<false>(a, t, block, at, summary_of(norms, a.centres ? of_warp(q).centre : 0.0f), q, st, mass, sums);
    }
    if (a.part & LEAVES) return leave(a, t, st, sums);
    float norm[MT][2], radius[MT][2], lost[MT][2];
    store_rows(a, t, centre_of(a, t), st, norm, radius, lost);
    if (!certify) return;
    // The lane's row.
    const float n = own_row(norm), r = own_row(radius), l = own_row(st.l), off = sqrt_ru(own_row(lost) * UP);
    const u32 c4 = lane() & 3, row = warp() * ROWS + 8 * c4 + (lane() >> 2);
    if (c4 >= (u32)(2 * MT) || !is_row(t, row)) return;
    const u32 tokens = t.chunk.before + t.first + token_of(row) + 1;
    const float products = (float)((tokens + 15) / 16 + TILES);
    a.certificates[output_row(a, t, row)] = certify_row(a, sums, l, sqrt_rn(n), sqrt_ru(r * UP + LOST_SQUARES), off, products, tokens, limit_of(a, t.head * GROUP + head_of(row)));
}
