// One decode step of attention over packed pages, certified, in one pass and one launch.
//
// A persistent grid walks all blocks of a ragged batch. Each warp streams whole records through its ring, scores the query heads
// of the group straight from the codes on the matrix unit, keeps a running softmax and the sums of the certificate, and adds
// the values; promoted blocks and the open one are read as 16-bit originals. Warps merge in shared memory, CTAs through one
// partial each; the last CTA of a head writes its outputs and certificates. Nothing is read twice and nothing waits for the host.
#include "machine.cuh"
#include "attend/args.cuh"
#include "attend/shape.cuh"
#include "attend/unit.cuh"
#include "attend/query.cuh"
#include "attend/keys.cuh"
#include "attend/softmax.cuh"
#include "attend/values.cuh"
#include "attend/certificate.cuh"
#include "attend/aside.cuh"
#include "attend/lot.cuh"
#include "attend/tail.cuh"
#include "attend/demand.cuh"
#include "attend/merge.cuh"
#include "attend/tasks.cuh"
#include "attend/ring.cuh"
#include "attend/refine.cuh"

// What a head's flags say.
constexpr u32 CANARY_FAILED = 1;

// What attend_columns must know of a block.
struct Block {
    const u8* record;
    Flight flight;
    int rows;  // tokens that exist: all but in the open block
    u32 row, index;
    u32* room;  // for the summary of the open block
    int k, slot;  // which of this warp's, and where it lies
    u32 parity;
    const Limit* limits;
    u32* refined;  // sides whose residuals were read, keys and values
};

// Block k's keys, or all of it, have been read: their place is free for another's.
template <Part PART> CKV_FN void free_slot(const CkvAttendArgs& a, const Ring& ring, const Block& b) {
    syncwarp();
    issue<PART>(a, ring, b.k + STAGES, b.slot);
}

// One block into the state, for column tiles from FIRST on.
template <int FIRST>
CKV_FN void attend_columns(const CkvAttendArgs& a, const Ring& ring, const Block& b, const Aside& aside, Query& q, State& st,
                           Lot& lot, u32* flags) {
    constexpr bool LAST = FIRST + COLUMNS >= NT;
    Logits s;
    Weights w;
    KeySums key_sums;
    if constexpr (ASIDE) {
#pragma unroll
        for (int nt = 0; nt < COLUMNS; nt++) take_tile(aside, FIRST + nt, st), take_units(aside, FIRST + nt, q);
    }
    if constexpr (QUERY_ASIDE && !ASIDE) take_only_units(aside, q);
    const Flight& flight = b.flight;
    const bool open = flight.tail != 0;
    const u32* summary = (const u32*)(b.record + CKV_SUMMARY);
    if (!open) {
        score_codes<FIRST>(b.record, q, s, key_sums);
    } else {
#pragma unroll
        for (int nt = 0; nt < COLUMNS; nt++) key_sums.square[nt] = 0.0f;
    }
    // Residuals take the place of the codes: until it is known whether they come, it stays.
    if constexpr (SPLIT && LAST && !REFINABLE) free_slot<KEYS>(a, ring, b);
    if constexpr (SPLIT && FIRST == 0) wait_slot<VALUES>(ring, b.slot, b.parity);
    if (flight.keys) {
        Logits exact;
        if constexpr (LOGITS_ASIDE) put_logits(aside, s);
        score_originals<FIRST>((const u8*)flight.keys, q, exact);
        if (open) {
            mask_rows(exact, b.rows);
            if constexpr (FIRST == 0) {
                tail_summary(a, (const u8*)flight.keys, (const u8*)flight.values, b.rows, b.row, b.room);
            }
            summary = b.room;
        } else if (KEYS_CODED) {
            // The canary (7.4): codes and originals of one block must agree within the bound.
            if (!canary<FIRST>(aside, s, exact, key_sums, load_summary((const u8*)summary), q)) *flags = CANARY_FAILED;
        }
        s = exact;
    }
    const bool exact_keys = flight.keys != 0 || !KEYS_CODED, exact_values = flight.values != 0 || !VALUES_CODED;
    float mass[COLUMNS][4];
    follow<FIRST>(s, q, exact_values ? 0.0f : lift_of(u32_as_float(summary[7])), st);
    weigh<FIRST>(s, q, st, w, mass);
#if CKV_KEY_REFINE > 0
    u32 kind = kind_of(exact_keys, exact_values, open);
    const u32 wants = open || !(a.demands || a.refine_all) ? 0 : wanted(aside, summary, q, st, mass, key_sums, b.limits);
    if ((wants & VALUES) && !exact_values) {
        // They are copied once the codes have been added.
        kind |= REFINED_VALUES;
        if (lane() == 0) bulk_prefetch_l2(stored(ring, b.k) + CKV_VALUE_RESIDUALS, VALUE_PLANE);
    }
    if ((wants & KEYS) && !exact_keys) {
        fetch_residuals<CKV_KEY_CODES>(ring, b.k, b.slot, CKV_KEY_RESIDUALS, KEY_PLANE);
        kind |= REFINED_KEYS;
        if (lane() == 0) atomic_add(b.refined, 1);
        await_residuals(ring);
        refine_logits(b.record, q, s);
        follow<FIRST>(s, q, exact_values ? 0.0f : lift_of(u32_as_float(summary[7])), st);
        weigh<FIRST>(s, q, st, w, mass);
    }
    if constexpr (SPLIT) free_slot<KEYS>(a, ring, b);
#endif
    count_mass<FIRST>(mass, st);
    if (flight.values) {
        add_originals<FIRST, true>((const u8*)flight.values, b.rows, w, st);
    } else {
        add_codes<FIRST>(b.record, w, st);
    }
#if CKV_KEY_REFINE > 0
    if (kind & REFINED_VALUES) {
        fetch_residuals<CKV_VALUE_CODES>(ring, b.k, b.slot, CKV_VALUE_RESIDUALS, VALUE_PLANE);
        if (lane() == 0) atomic_add(b.refined + 1, 1);
        await_residuals(ring);
        add_codes<FIRST, true>(b.record, w, st);
    }
#endif
#if CKV_KEY_REFINE == 0
    // Formed here, it takes no register before.
    const u32 kind = kind_of(exact_keys, exact_values, open);
#endif
#if CKV_CERTIFY
    leave<FIRST>(lot, st, mass, key_sums, summary, b.index, kind);
#endif
    if constexpr (ASIDE) {
#pragma unroll
        for (int nt = 0; nt < COLUMNS; nt++) put_tile(aside, FIRST + nt, st);
    }
    if constexpr (LAST) {
        free_slot<SPLIT ? VALUES : WHOLE>(a, ring, b);
    } else {
        // Also keeps the compiler from saving what it read for the next column tile.
        syncwarp();
        attend_columns<FIRST + COLUMNS>(a, ring, b, aside, q, st, lot, flags);
    }
}

// Block k of this warp into the state.
CKV_FN void attend_block(const CkvAttendArgs& a, Ring& ring, const Aside& aside, Query& q, u32 row, u32 j, int rows, int k, int slot,
                         u32 parity, State& st, Lot& lot, u32* flags, u32* room, const Limit* limits, u32* refined) {
    wait_slot<SPLIT ? KEYS : WHOLE>(ring, slot, parity);
    const Block b = {ring.slots + slot * CKV_RECORD, ring.flights[slot], rows, row, j, room, k, slot, parity, limits, refined};
    attend_columns<0>(a, ring, b, aside, q, st, lot, flags);
}

struct Known {
    Tasks tasks;
    Segment segment;
    u32 flags;  // of the head at hand, by any warp
    u32 hi;     // end of this CTA's share of the line
    u32 refined[2];
};
static_assert(sizeof(Known) <= KNOWN_BYTES, "KNOWN_BYTES");

// The host and the kernel count the same bytes of shared memory.
static_assert(SHARED_BYTES == CKV_SHARED, "CKV_SHARED");

extern "C" __global__ void __launch_bounds__(THREADS, 1) ckv_attend(const __grid_constant__ CkvAttendArgs a) {
    CKV_DYNAMIC_SHARED(shared);
    u8* at = shared;
    u8* slots = at;
    at += RING_BYTES;
    float* partials = (float*)at;
    at += MERGE_BYTES;
    u64* barriers = (u64*)at;
    at += BARRIER_BYTES;
    Flight* flights = (Flight*)at;
    at += META_BYTES;
    u8* lots = at;
    at += WARPS * LOT_BYTES;
    Place* places = (Place*)at;
    at += WARPS * BATCH_BYTES;
    Vec4* queries = (Vec4*)at;
    at += QUERY_BYTES;
    float* finish = (float*)at;
    at += FINISH_BYTES;
    // In shared memory rather than registers: the loop over blocks needs every register it can get.
    Known& known = *(Known*)at;
    at += KNOWN_BYTES;
    Limit* limits = (Limit*)at;
    at += LIMIT_BYTES;
    u32* before = (u32*)at;

    const u32 cta = blockIdx.x, me = warp();
#if CKV_BULK
    if (threadIdx.x < WARPS * BARRIERS) barrier_init(barriers + threadIdx.x, 1);
    fence_barrier_init();
#endif
    if (!a.settled) grid_dependency_wait();
    const Tasks planned = plan(a, before);
    const u32 lo = share_start(a, planned, cta), hi = share_start(a, planned, cta + 1);
    if (lo >= hi) {
        // The end of this launch stands for that of the ones ahead.
        grid_dependency_wait();
        return;
    }

    Ring ring;
    ring.slots = slots + me * STAGES * CKV_RECORD;
    ring.barriers = barriers + me * BARRIERS;
    ring.flights = flights + me * STAGES;
    if (lane() == 0) ring.flights[0].phase = 0;
    ring.lo = lo + me;
    ring.count = lo + me < hi ? (int)((hi - lo - me + WARPS - 1) / WARPS) : 0;
    ring.places = places + me * 64;
    const Tasks& t = known.tasks;
    const Segment& seg = known.segment;
    {
        const Segment first = segment_at(a, planned, lo);
        if (threadIdx.x == 0) known.tasks = planned, known.segment = first, known.flags = 0, known.hi = hi, known.refined[0] = known.refined[1] = 0;
    }
    sync_threads();
    const bool fresh = fetch_batch(a, t, ring, 0);
    prefetch_query(a, seg.head);
    // A record that is being written waits for its writer, and queries for theirs.
#pragma unroll 1
    for (int k = 0; !fresh && k < STAGES; k++) issue_block(a, ring, k, k);
    if (a.settled) grid_dependency_wait();
    grid_dependency_launch();
    read_query(a, seg.head, queries);
#pragma unroll 1
    for (int k = 0; fresh && k < STAGES; k++) issue_block(a, ring, k, k);

    const Merge merge = {finish, finish + GROUP * SCALARS, (u32*)(finish + GROUP * SCALARS + 2 * GROUP * SLICES)};
    Lot lot = lot_at(lots + me * LOT_BYTES);
    float* mine = partials + me * PARTIAL_STRIDE;
    // Block k lies in slot k % STAGES; the parity of its copies is that of k / STAGES.
    int k = 0, slot = 0;
    u32 parity = 0;
    while (true) {
        const u32 end = seg.start + seg.blocks < known.hi ? seg.start + seg.blocks : known.hi;
        const u32 row_head = seg.row * a.kv_heads + seg.kv;
        Query q;
        await_query();
        prepare_query(a, queries, q);
        prefetch_query(a, seg.head + 1);
#if CKV_KEY_REFINE > 0
        // The partials are written behind the last block.
        probe(a, seg, q, partials, limits);
#endif
        State st;
        Sums sums;
        clear(st);
        clear(sums);
        const Aside aside = {mine + SUMMARY_WORDS};
        put_all(aside, st, sums, q);
        const int started = k;
#pragma unroll 1
        for (; k < ring.count && ring.lo + (u32)k * WARPS < end; k++) {
            // The batch that holds the next block to be copied, and half of a ring of places ahead.
            if ((k + STAGES) % 32 == 0) fetch_batch(a, t, ring, k + STAGES);
            const u32 j = ring.lo + (u32)k * WARPS - seg.start;
            const int rows = j < seg.tokens / BLOCK ? BLOCK : (int)(seg.tokens % BLOCK);
            // With one slot the parity is k's own, and takes no register.
            const u32 phase = SPLIT ? (u32)k & 1 : parity;
            // What is left over from whole lots; not kept from block to block, for a register.
            if constexpr (REFINABLE) lot.count = (k - started) % LOT;
            attend_block(a, ring, aside, q, row_head, j, rows, k, slot, phase, st, lot, &known.flags, (u32*)mine, limits,
                         known.refined);
            slot = slot + 1 == STAGES ? 0 : slot + 1;
            parity ^= slot == 0;
            if (CKV_CERTIFY && lot.count == LOT) certify_lot(a, lot, q, row_head, sums, aside);
        }
        if (CKV_CERTIFY) certify_lot(a, lot, q, row_head, sums, aside);
        if constexpr (ASIDE) {
#pragma unroll
            for (int nt = 0; nt < NT; nt++) take_tile(aside, nt, st);
            syncwarp();
        }
        store_partial(st, sums, (float)((k - started) * VALUE_CHAIN), known.flags, mine);
        sync_threads();

        const u32 first = share_of(t, seg.start, seg.number), last = share_of(t, seg.start + seg.blocks - 1, seg.number);
        const u32 launch_head = a.only ? seg.entry : seg.head;
        const float* centre = a.centres ? a.centres + (u64)row_head * D : nullptr;
        // First this CTA's warps; the last CTA of a head then goes over what all of them left.
        const float* from = partials;
        int count = WARPS;
        float* to = first == last ? nullptr : a.partials + (u64)(cta + launch_head) * PARTIAL_STRIDE;
#pragma unroll 1
        while (true) {
            merge_partials(a, from, count, to, merge, seg.head, centre);
            sync_threads();
            if (!to) {
                certify_head(a, merge, seg.head, row_head, seg.tokens);
                break;
            }
            // One thread speaks for all: what they wrote before the barrier is released with its count.
            if (threadIdx.x == 0) *merge.word = atomic_add_acq_rel(a.counters + launch_head, 1);
            sync_threads();
            if (*merge.word != last - first) break;
            if (threadIdx.x == 0) a.counters[launch_head] = 0;
            from = a.partials + (u64)(first + launch_head) * PARTIAL_STRIDE;
            count = (int)(last - first) + 1;
            to = nullptr;
        }
        const u32 after = seg.start + seg.blocks;
        if (after >= known.hi) break;
        const Segment next = segment_at(a, t, after);
        sync_threads();
        if (threadIdx.x == 0) known.segment = next, known.flags = 0;
        read_query(a, next.head, queries);
        sync_threads();
    }
#if CKV_KEY_REFINE > 0
    // Behind the last merge, which all warps were in step for.
    if (a.refined && threadIdx.x < 2 && known.refined[threadIdx.x]) atomic_add(a.refined + threadIdx.x, known.refined[threadIdx.x]);
#endif
}
