// A share of the line of blocks, by the warps of one CTA: what the kernels that attend have in common.
//
// Each warp streams whole records through its ring, scores the query heads of the group straight from the codes on the matrix unit,
// keeps a running softmax and the sums of the certificate, and adds the values; promoted blocks and the open one are read as 16-bit
// originals. Warps merge in shared memory, shares through one partial each; the last one of a head writes its outputs and certificates.
#pragma once
#include "attend/args.cuh"
#include "attend/shape.cuh"
#include "window.cuh"
#include "attend/unit.cuh"
#include "attend/turn.cuh"
#include "attend/widths.cuh"
#include "fold.cuh"
#include "attend/draft.cuh"
#include "attend/query.cuh"
#include "attend/rotated.cuh"
#include "attend/keys.cuh"
#include "attend/key_groups.cuh"
#include "attend/key_directions.cuh"
#include "attend/softmax.cuh"
#include "attend/values.cuh"
#include "attend/certificate.cuh"
#include "attend/aside.cuh"
#include "attend/level.cuh"
#include "attend/tasks.cuh"
#include "attend/lot.cuh"
#include "attend/tail.cuh"
#include "attend/demand.cuh"
#include "attend/merge.cuh"
#include "attend/turn_open.cuh"
#include "attend/ring.cuh"
#include "attend/refine.cuh"
#include "attend/correct.cuh"

// What a head's flags say.
constexpr u32 CANARY_FAILED = 1;

// Blocks that are read from their codes alone, which most are, have a loop of their own: with the code for originals in it, it is too
// long for the place where instructions are fetched from fast (5% at 32 x 32K, 6% at 1 x 1K). Where residuals are read or heads are
// large, registers do not suffice for two loops.
constexpr bool APART = !REFINABLE && D <= 128;

// One block into the state, for column tiles from FIRST on. CODED: none of it is read as originals, which the compiler then leaves out.
template <int FIRST, bool CODED>
CKV_FN void attend_columns(const CkvAttendArgs& a, const Ring& ring, const Block& b, const Aside& aside, Query& q, State& st,
                           Lot& lot, u32* flags) {
    constexpr bool LAST = FIRST + COLUMNS >= NT;
    // Where such blocks have a loop of their own, the others keep their place until they are done.
    constexpr bool LATE = APART && !CODED;
    Logits s;
    Weights w;
    KeySums key_sums;
    if constexpr (ASIDE) {
#pragma unroll
        for (int nt = 0; nt < COLUMNS; nt++) take_tile(aside, FIRST + nt, st), take_units(aside, FIRST + nt, q);
    }
    if constexpr (QUERY_ASIDE && !ASIDE) take_only_units(aside, q);
    const Flight flight = CODED ? Flight{0, 0, 0, 0} : b.flight;
    const bool open = PARTLY ? (flight.tail & 1) != 0 : flight.tail != 0;
    const u32* summary = (const u32*)(b.record + CKV_SUMMARY);
    float mass[COLUMNS][4];
    u32 kind = 0;
    bool by_rows, exact_keys, exact_values;
    clear(s);
    // FINER: the residuals of the keys lie where their codes were, and the block is scored and weighed again.
    bool finer = false;
#pragma unroll 1
    while (true) {
        if (!open) {
            score_codes<FIRST>(b.record, q, finer, s, key_sums);
        } else {
#pragma unroll
            for (int nt = 0; nt < COLUMNS; nt++) key_sums.square[nt] = 0.0f;
        }
        if (!finer) {
            // Residuals take the place of the codes: until it is known whether they come, it stays.
            if constexpr (SPLIT && LAST && !REFINABLE && !LATE) free_slot<KEYS>(a, ring, b);
            if constexpr (SPLIT && FIRST == 0) wait_slot<VALUES, LAST && !LATE>(ring, b.slot, b.parity);
            if (flight.keys) {
                Logits exact;
                float* waiting = logits_of(aside, b.record);
                if constexpr (LOGITS_ASIDE || LOGITS_IN_SLOT) {
                    if (!open) put_logits(waiting, s);
                }
                score_originals<FIRST>((const u8*)flight.keys, q, exact);
                if (open) {
                    mask_rows(exact, b.rows);
                    summary = b.room;
                } else if (KEYS_CODED) {
                    // The canary (7.4): codes and originals of one block must agree within the bound.
                    if (!canary<FIRST>(aside, waiting, s, exact, key_sums, load_summary((const u8*)summary), q)) *flags = CANARY_FAILED;
                    if constexpr (LOGITS_IN_SLOT) fence_shared_async();
                }
                s = exact;
            }
            by_rows = !CODED && (LATE ? ring.flights[b.slot].values : flight.values) != 0;
            exact_keys = flight.keys != 0 || !KEYS_CODED, exact_values = by_rows || !VALUES_CODED;
        }
        // Behind the canary, which compares whole blocks. Again behind the residuals, which are added to what is here.
        if (WINDOWED && !CODED) hide_rows(s, hidden_of(flight.tail));
        if (DRAFTED && !CODED) hide_unseen<FIRST>(s, hidden_of(flight.tail));
        follow<FIRST>(s, q, exact_values ? 0.0f : lift_of(u32_as_float(summary[7])), st);
        weigh<FIRST>(s, q, st, w, mass);
        if constexpr (!REFINABLE) break;
#if CKV_KEY_REFINE > 0 && !CKV_CORRECT
        if (finer) break;
        kind = kind_of(exact_keys, exact_values, open);
        const u32 wants = open || !(a.demands || a.refine_all) ? 0 : wanted(aside, summary, q, st, mass, key_sums, b.limits, b.index, (u32)(b.k - ring.range->begin));
        if ((wants & VALUES) && !exact_values) {
            // They are copied once the codes have been added.
            kind |= REFINED_VALUES;
            if (lane() == 0) bulk_prefetch_l2(stored(ring, b.k) + CKV_VALUE_RESIDUALS, VALUE_PLANE);
        }
        if (!(wants & KEYS) || exact_keys) break;
        kind |= REFINED_KEYS;
        fetch_residuals<CKV_KEY_CODES>(ring, b.k, b.slot, CKV_KEY_RESIDUALS, KEY_PLANE);
        if (lane() == 0) atomic_add(b.refined, 1);
        await_residuals(ring);
        finer = true;
#endif
    }
    if constexpr (SPLIT && REFINABLE && !LATE) free_slot<KEYS>(a, ring, b);
    count_mass<FIRST>(mass, st);
#if CKV_VALUE == 2
    // Codes add to rotated sums. Those that are read from codes alone find them so.
    static_assert(!TURNS_OPEN || APART, "an open block has its slot until it is done");
    const bool apart = TURNS_OPEN && !CODED && open && st.turns % 2 == 0;
    if (apart) put_apart(st, (float*)b.record);
    else if constexpr (!(APART && CODED)) turn_state<FIRST, LAST>(st, !by_rows);
#endif
    if (by_rows) {
        // Read again rather than kept where the block is still in flight.
        add_originals<FIRST, true>((const u8*)(LATE ? ring.flights[b.slot].values : flight.values), b.rows, w, st);
    } else {
        finer = false;
#pragma unroll 1
        while (true) {
            add_codes<FIRST>(b.record, w, finer, st);
            if constexpr (!REFINABLE) break;
#if CKV_KEY_REFINE > 0 && !CKV_CORRECT
            if (finer || !(kind & REFINED_VALUES)) break;
            fetch_residuals<CKV_VALUE_CODES>(ring, b.k, b.slot, CKV_VALUE_RESIDUALS, VALUE_PLANE);
            if (lane() == 0) atomic_add(b.refined + 1, 1);
            await_residuals(ring);
            finer = true;
#endif
        }
    }
#if CKV_VALUE == 2
    if (apart) join_turned(st, (float*)b.record);
#endif
    // Formed here where residuals do not need it, it takes no register before.
    if constexpr (!REFINABLE) kind = kind_of(exact_keys, exact_values, open);
#if CKV_CERTIFY
    leave<FIRST>(lot, st, mass, key_sums, summary, b.index, kind);
#endif
    if constexpr (ASIDE) {
#pragma unroll
        for (int nt = 0; nt < COLUMNS; nt++) put_tile(aside, FIRST + nt, st);
    }
    if constexpr (LAST) {
        if constexpr (SPLIT && LATE) free_slot<KEYS>(a, ring, b);
        free_slot<SPLIT ? VALUES : WHOLE>(a, ring, b);
    } else {
        // Also keeps the compiler from saving what it read for the next column tile.
        syncwarp();
        attend_columns<FIRST + COLUMNS, CODED>(a, ring, b, aside, q, st, lot, flags);
    }
}

// Whether block k of this warp, which lies in `slot`, is read from its codes alone. Waits for its keys.
CKV_FN bool is_coded(const Ring& ring, int slot, u32 parity) {
    wait_slot<SPLIT ? KEYS : WHOLE>(ring, slot, parity);
    const Flight& flight = ring.flights[slot];
    return (flight.keys | flight.values | flight.tail) == 0;
}

// Where a warp is in its blocks. Block k lies in slot k % STAGES; the parity of its copies is that of k / STAGES.
struct Cursor {
    int k, slot;
    u32 parity;

    __device__ __forceinline__ void next() {
        k++;
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        parity ^= slot == 0;
    }
    // With one slot the parity is k's own, and takes no register.
    __device__ __forceinline__ u32 phase() const { return SPLIT ? (u32)k & 1 : parity; }
};

// Whether a head's open block lies in a share of the line.
CKV_FN bool holds_tail(u32 lo, u32 hi, const Segment& seg) {
    const u32 at = seg.start + seg.blocks - 1;
    return seg.open != 0 && at >= lo && at < hi;
}
// Which of the head's blocks in tails is this warp's, or none of them.
constexpr u32 NO_TAIL = 2;
CKV_FN u32 own_tail(const Ring& ring, u32 hi, const Segment& seg) {
    const u32 lo = ring.range->lo;
    if constexpr (!DRAFTED) return holds_tail(lo, hi, seg) && (seg.start + seg.blocks - 1 - lo) % WARPS == 0 ? 0 : NO_TAIL;
#pragma unroll 1
    for (u32 which = 0; which < tails_of(seg); which++) {
        const u32 at = seg.start + full_blocks(seg) + which;
        if (at >= lo && at < hi && (at - lo) % WARPS == 0) return which;
    }
    return NO_TAIL;
}
// Tokens of block k of a warp: all but in the open block.
CKV_FN int rows_of(const Segment& seg, const Ring& ring, int k) {
    const u32 j = ring.range->lo + (u32)k * WARPS - seg.start;
    return j < full_blocks(seg) ? BLOCK : (int)tail_rows(seg, j - full_blocks(seg));
}
// How many of a warp's blocks lie before a place of the line.
CKV_FN int blocks_before(const Ring& ring, u32 place) {
    const Range& range = *ring.range;
    return place > range.lo ? least_of(range.count, (int)((place - range.lo + WARPS - 1) / WARPS)) : 0;
}

// Asks for what the head that begins at `at` starts with. One warp.
CKV_APART void look_ahead(const CkvAttendArgs& a, const Tasks& t, u32 at) {
    const Segment next = segment_at(a, t, at);
    if (!CORRECTS && lane() == 0 && next.open) prefetch_tail(a, next);
#if CKV_KEY_REFINE > 0 && !CKV_CORRECT
    const u32 full = full_blocks(next);
    if (lane() >= 1 && lane() < PROBES && full >= lane()) {
        bulk_prefetch_l2(record_of(a, next, seen_of(a, next.tokens).number(probed(full, (int)lane()))), KEY_PART);
    }
#endif
}

#if CKV_VALUE == 2
// All column tiles.
CKV_FN void turn_all(State& st, bool rotated) {
    turn_state<0, NT == COLUMNS>(st, rotated);
    if constexpr (NT > COLUMNS) turn_state<COLUMNS, true>(st, rotated);
}
#endif

struct Known {
    Tasks tasks;
    Segment segment;
    u32 flags;  // of the head at hand, by any warp
    u32 lo, hi;  // this CTA's share of the line
    u32 refined[2];
    u32 done;     // warps that have read their blocks of it
    u32 first, last;  // shares that hold blocks of it
};
static_assert(sizeof(Known) <= KNOWN_BYTES, "KNOWN_BYTES");

// Which shares hold blocks of the head at hand. One thread.
CKV_FN void note_shares(Known& known) {
    const Segment& seg = known.segment;
    known.first = share_of(known.tasks, seg.start, seg.number), known.last = share_of(known.tasks, seg.start + seg.blocks - 1, seg.number);
}

// The host and the kernel count the same bytes of shared memory.
static_assert(SHARED_BYTES == CKV_SHARED, "CKV_SHARED");

// What a CTA has in shared memory, and its warps of that.
struct Rooms {
    u8* shared;

    __device__ __forceinline__ u8* own() const { return shared + RING_BYTES + warp() * WARP_BYTES; }
    __device__ __forceinline__ Vec4* queries() const { return (Vec4*)(shared + RING_BYTES + WARPS * WARP_BYTES); }
    __device__ __forceinline__ Limit* limits() const { return (Limit*)((u8*)queries() + QUERY_BYTES); }
    __device__ __forceinline__ float* finish() const { return (float*)((u8*)limits() + LIMIT_BYTES); }
    // In shared memory rather than registers: the loop over blocks needs every register it can get.
    __device__ __forceinline__ Known& known() const { return *(Known*)((u8*)finish() + FINISH_BYTES); }
    // Blocks before the entries of a launch: see `plan`.
    __device__ __forceinline__ u32* before() const { return (u32*)((u8*)&known() + KNOWN_BYTES); }

    __device__ __forceinline__ Ring ring() const {
        Ring ring;
        ring.slots = shared + warp() * (STAGES * CKV_RECORD);
        ring.barriers = (u64*)(own() + AT_BARRIERS);
        ring.flights = (Flight*)(own() + AT_FLIGHTS);
        ring.places = (Place*)(own() + AT_PLACES);
        ring.range = (const Range*)(own() + AT_RANGE);
        return ring;
    }
};

// Asks for what blocks are looked up in and scored with while lengths are awaited: every CTA for its part of all of it. One warp.
CKV_FN void ask_ahead(const CkvAttendArgs& a) {
    const u32 queries = a.query_strides.head == D ? a.seqs * a.kv_heads * OF_TOKEN * D * (a.query_type == 2 ? 4 : 2) : 0;
    const u32 entries = a.rows ? 0 : a.seqs * a.table_stride * 4, most = queries < entries ? entries : queries;
#pragma unroll 1
    for (u32 at = (blockIdx.x * 32 + lane()) * 128; at < most; at += gridDim.x * 32 * 128) {
        if (at < queries) prefetch_l2((const u8*)a.query + at);
        if (at < entries) prefetch_l2((const u8*)a.table + at);
    }
}

// Makes a warp's barriers. Before its first share, and before another once they are given back.
CKV_FN void open_ring(const Ring& ring) {
#if CKV_BULK
    if (lane() < BARRIERS) barrier_init(ring.barriers + lane(), 1);
    fence_barrier_init();
#endif
}

// Gives them back: nothing is in flight. A sync comes before what follows.
CKV_FN void close_ring(const Ring& ring) {
#if CKV_BULK
    syncwarp();
    if (lane() < BARRIERS) barrier_end(ring.barriers + lane());
#endif
}

// Attends to the blocks lo..hi of the line, those of share number `share`, which is not empty. All threads of the CTA, with open rings.
CKV_FN void attend_share(const CkvAttendArgs& a, const Rooms& rooms, const Tasks& planned, const u32& share, u32 lo, u32 hi) {
    u8* own = rooms.own();
    float* mine = (float*)(own + AT_PARTIAL);
    u8* shared = rooms.shared;
    Vec4* queries = rooms.queries();
    Limit* limits = rooms.limits();
    float* finish = rooms.finish();
    Known& known = rooms.known();
    const u32 me = warp();
    const Ring ring = rooms.ring();
    if (lane() == 0) {
        ring.flights[0].phase = 0;
        *(Range*)(own + AT_RANGE) = Range{lo + me, lo + me < hi ? (int)((hi - lo - me + WARPS - 1) / WARPS) : 0, 0, 0};
    }
    const Tasks& t = known.tasks;
    const Segment& seg = known.segment;
    {
        const Segment first = segment_at(a, planned, lo);
        // Where nobody has asked for it ahead.
        if constexpr (LADDER || CKV_METRIC > 0) prefetch_query(a, first.seq, first.kv);
        if (!LADDER && threadIdx.x == 0) known.tasks = planned;
        if (threadIdx.x == 0) known.segment = first, known.flags = 0, known.lo = lo, known.hi = hi, known.refined[0] = known.refined[1] = known.done = 0;
    }
    sync_threads();
    // The first keys are asked for before the query, which waits for its writer where that is a launch ahead, else behind it; what else a warp has room
    // for queues behind both. One copy of the instructions, of which each is fetched once, at the cost of several. In one order where registers are scarce.
#pragma unroll 1
    for (u32 turn = TIGHT ? 1 : 0; turn < 2; turn++) {
        if (turn == 1) {
            fetch_batch(a, t, seg, ring, 0);
            issue<SPLIT ? KEYS : WHOLE>(a, ring, 0, 0);
            if (threadIdx.x == 0) note_shares(known);
            // Queries, and the rows of open blocks, wait for their writers.
            if (a.settled && !(LEVELLED && a.beside)) grid_dependency_wait();
            grid_dependency_launch();
        }
        if (turn == (TIGHT || a.settled ? 1 : 0)) read_query(a, seg.seq, seg.kv, queries);
    }
    if constexpr (SPLIT) issue<VALUES>(a, ring, 0, 0);
#pragma unroll 1
    for (int k = 1; k < STAGES; k++) issue_block(a, ring, k, k);

    const Merge merge = {finish, finish + GROUP * SCALARS, (u32*)(finish + GROUP * SCALARS + NORMS * GROUP * SLICES)};
    Lot lot = lot_at(own + AT_LOT);
    Cursor cursor = {0, 0, 0};
    while (true) {
        // Looked up again where it is needed rather than kept in a register.
        auto row_head = [&] { return seg.row * a.kv_heads + seg.kv; };
        Query q;
        await_query();
        prepare_query(a, seg.kv, queries, (HeadNumbers*)finish, q);
        if (seg.start + seg.blocks < known.hi) prefetch_query(a, seg.seq, seg.kv + 1);
#if CKV_KEY_REFINE > 0 && !CKV_CORRECT
        // The partials are written behind the last block.
        probe(a, seg, q, (float*)(shared + RING_BYTES + AT_PARTIAL), limits);
#endif
        // While nothing of the state lives in registers.
        if constexpr (!CORRECTS) {
            const u32 which = own_tail(ring, known.hi, seg);
            if (which != NO_TAIL) tail_summary(a, seg, DRAFTED ? which : 0, (u32*)mine);
        }
        State st;
        Sums sums;
        clear(st);
        clear(sums);
        const Aside aside = {mine + SUMMARY_WORDS};
        put_all(aside, st, sums, q);
        int& k = cursor.k;
        k = blocks_before(ring, seg.start);
        if (lane() == 0) {
            Range* range = (Range*)(own + AT_RANGE);
            range->begin = k, range->end = blocks_before(ring, least_of(seg.start + seg.blocks, known.hi));
        }
        syncwarp();
        auto block_at = [&](int rows) {
            return Block{ring.slots + cursor.slot * CKV_RECORD, ring.flights[cursor.slot], rows, ring.range->lo + (u32)k * WARPS - seg.start,
                         (const u32*)mine, k, cursor.slot, cursor.phase(), limits, known.refined};
        };
#pragma unroll 1
        while (k < ring.range->end) {
            // The batch that holds the next block to be copied, and half of a ring of places ahead.
            const int into = (k + STAGES) % 32;
            if (into == 0) fetch_batch(a, t, seg, ring, k + STAGES);
            if constexpr (APART) {
                const int stop = least_of(CKV_CERTIFY ? least_of(k + 32 - into, k + LOT - lot.count) : k + 32 - into, ring.range->end);
                bool coded = true;
#if CKV_VALUE == 2
                if (st.turns % 2 && k < stop && is_coded(ring, cursor.slot, cursor.phase())) turn_all(st, true);
#endif
#pragma unroll 1
                while (k < stop && (coded = is_coded(ring, cursor.slot, cursor.phase()))) {
                    attend_columns<0, true>(a, ring, block_at(BLOCK), aside, q, st, lot, &known.flags);
                    cursor.next();
                }
                if (!coded) {
                    attend_columns<0, false>(a, ring, block_at(rows_of(seg, ring, k)), aside, q, st, lot, &known.flags);
                    cursor.next();
                }
            } else {
                // What is left over from whole lots; not kept from block to block, for a register.
                lot.count = (k - ring.range->begin) * (CORRECTS ? 2 : 1) % LOT;
                wait_slot<SPLIT ? KEYS : WHOLE>(ring, cursor.slot, cursor.phase());
#if CKV_CORRECT
                correct_block(a, ring, block_at(BLOCK), aside, q, st, lot);
#else
                attend_columns<0, false>(a, ring, block_at(rows_of(seg, ring, k)), aside, q, st, lot, &known.flags);
#endif
                cursor.next();
            }
            if (CKV_CERTIFY && lot.count == LOT) certify_lot(a, lot, q, row_head(), seg, sums, aside);
        }
        if (CKV_CERTIFY) certify_lot(a, lot, q, row_head(), seg, sums, aside);
        if constexpr (ASIDE) {
#pragma unroll
            for (int nt = 0; nt < NT; nt++) take_tile(aside, nt, st);
            syncwarp();
        }
        float chain = (float)((ring.range->end - ring.range->begin) * VALUE_CHAIN);
#if CKV_VALUE == 2
        turn_all(st, TURN_MERGED);
        chain += (float)st.turns * TURN_CHAIN;
#endif
        store_partial(st, sums, chain, known.flags, mine);
        const u32 after = seg.start + seg.blocks;
        // The first warp that is done would only wait.
        if (after < known.hi && shfl(lane() == 0 ? atomic_add(&known.done, 1) : 0, 0) == 0) look_ahead(a, t, after);
        sync_threads();

        const u32 first = known.first, last = known.last;
        const u32 launch_head = a.only ? seg.entry : seg.head;
        const float* centre = a.centres ? a.centres + (u64)row_head() * D : nullptr;
        // First this CTA's warps; the last CTA of a head then goes over what all of them left.
        const float* from = (const float*)(shared + RING_BYTES + AT_PARTIAL);
        int count = WARPS, stride = WARP_BYTES / 4;
        const float* kept = CORRECTS ? a.kept + (u64)seg.head * PARTIAL_STRIDE : nullptr;
        float* to = first == last ? nullptr : a.partials + (u64)(share + launch_head) * PARTIAL_STRIDE;
#pragma unroll 1
        while (true) {
            merge_partials(a, Parts{from, count, stride, to ? nullptr : kept}, to, merge, seg, centre);
            sync_threads();
            if (!to) {
                certify_head(a, merge, seg);
                break;
            }
            // One thread speaks for all: what they wrote before the barrier is released with its count.
            if (threadIdx.x == 0) *merge.word = atomic_add_acq_rel(a.counters + launch_head, 1);
            sync_threads();
            if (*merge.word != last - first) break;
            if (threadIdx.x == 0) a.counters[launch_head] = 0;
            from = a.partials + (u64)(first + launch_head) * PARTIAL_STRIDE;
            count = (int)(last - first) + 1, stride = PARTIAL_STRIDE;
            to = nullptr;
        }
        if (after >= known.hi) break;
        const Segment next = segment_at(a, t, after);
        sync_threads();
        if (threadIdx.x == 0) known.segment = next, known.flags = 0, known.done = 0, note_shares(known);
        read_query(a, next.seq, next.kv, queries);
        sync_threads();
    }
#if CKV_KEY_REFINE > 0
    // Behind the last merge, which all warps were in step for.
    if (a.refined && threadIdx.x < 2 && known.refined[threadIdx.x]) atomic_add(a.refined + threadIdx.x, known.refined[threadIdx.x]);
#endif
}
