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
#include "attend/lot.cuh"
#include "attend/tail.cuh"
#include "attend/merge.cuh"
#include "attend/tasks.cuh"
#include "attend/ring.cuh"

// What a head's flags say.
constexpr u32 CANARY_FAILED = 1;

// Rows past the end of the open block weigh nothing.
CKV_FN void mask_rows(Logits& s, int rows) {
    const int r = lane() >> 2;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (16 * t + r + (i & 2) * 4 >= rows) s.x[t][nt][i] = -u32_as_float(0x7f800000u);
            }
        }
    }
}

// One full block into the state.
CKV_FN void attend_block(const CkvAttendArgs& a, Ring& ring, const Tasks& t, const Query& q, u32 j, int k, State& st, Lot& lot,
                         u32& flags) {
    const int slot = k % STAGES;
    Logits s;
    Weights w;
    KeySums key_sums;
    const Flight flight = ring.flights[slot];
    const u8* key_part = ring.keys + slot * KEY_PART;
    const u8* value_part = ring.values + slot * VALUE_PART;
    const u32* summary = (const u32*)(value_part + (CKV_SUMMARY - CKV_VALUE_CODES));
    score_codes(key_part, q, s, key_sums);
    syncwarp();
    issue_keys(a, t, ring, k + STAGES);
    wait_part(ring, k, 1);
    if (KEYS_CODED && flight.keys) {
        Logits exact;
        score_originals((const u8*)flight.keys, q, exact);
        // The canary (7.4): codes and originals of one block must agree within the bound.
        flags |= canary(s, exact, key_sums, load_summary((const u8*)summary), q) ? 0u : CANARY_FAILED;
        s = exact;
    }
    const bool exact_keys = flight.keys != 0 || !KEYS_CODED, exact_values = flight.values != 0 || !VALUES_CODED;
    float mass[NT][4];
    follow(s, exact_values ? 0.0f : lift_of(u32_as_float(summary[7])), st);
    weigh(s, st, w, mass);
    if (VALUES_CODED && flight.values) {
        add_originals<false>((const u8*)flight.values, BLOCK, w, st);
    } else {
        add_codes(value_part, w, st);
    }
#if CKV_CERTIFY
    leave(lot, st, mass, key_sums, summary, j, (exact_keys ? EXACT_KEYS : 0) | (exact_values ? EXACT_VALUES : 0));
#endif
    syncwarp();
    issue_values(ring, k + STAGES);
}

// The open block: 16-bit rows, of which the first `rows` exist.
CKV_FN void attend_open(const CkvAttendArgs& a, Ring& ring, const Tasks& t, const Query& q, u32 row, u32 j, int rows, int k,
                        State& st, Lot& lot, u32* room) {
    const Flight flight = ring.flights[k % STAGES];
    Logits s;
    Weights w;
    KeySums none;
    float mass[NT][4];
    score_originals((const u8*)flight.keys, q, s);
    mask_rows(s, rows);
    follow(s, 0.0f, st);
    weigh(s, st, w, mass);
    add_originals<true>((const u8*)flight.values, rows, w, st);
#if CKV_CERTIFY
#pragma unroll
    for (int nt = 0; nt < NT; nt++) none.l1[nt] = none.square[nt] = 0.0f;
    tail_summary(a, (const u8*)flight.keys, (const u8*)flight.values, rows, row, room);
    leave(lot, st, mass, none, room, j, EXACT_KEYS | EXACT_VALUES | OPEN);
#endif
    syncwarp();
    issue_keys(a, t, ring, k + STAGES);
    wait_part(ring, k, 1);
    issue_values(ring, k + STAGES);
}

// The host and the kernel count the same bytes of shared memory.
static_assert(SHARED_BYTES == CKV_SHARED, "CKV_SHARED");

extern "C" __global__ void __launch_bounds__(THREADS, 1) ckv_attend(const __grid_constant__ CkvAttendArgs a) {
    CKV_DYNAMIC_SHARED(shared);
    u8* at = shared;
    u8* key_ring = at;
    at += KEY_RING;
    u8* value_ring = at;
    at += VALUE_RING;
    float* partials = (float*)at;
    at += MERGE_BYTES;
    u64* barriers = (u64*)at;
    at += BARRIER_BYTES;
    Flight* flights = (Flight*)at;
    at += META_BYTES;
    u8* lots = at;
    at += WARPS * LOT_BYTES;
    float* finish = (float*)at;
    at += FINISH_BYTES;
    u32* before = (u32*)at;

    const int cta = blockIdx.x, me = warp();
#if CKV_BULK
    if (threadIdx.x < 2 * WARPS * STAGES) barrier_init(barriers + threadIdx.x, 1);
    fence_barrier_init();
#endif
    grid_dependency_wait();
    grid_dependency_launch();
    const Tasks t = plan(a, before);
    if (cta >= t.ctas) return;
    const u32 lo = share_start(t, cta), hi = share_start(t, cta + 1);

    Ring ring;
    ring.keys = key_ring + me * STAGES * KEY_PART;
    ring.values = value_ring + me * STAGES * VALUE_PART;
    ring.barriers = barriers + me * STAGES * 2;
    ring.flights = flights + me * STAGES;
    ring.lo = lo + me;
    ring.count = lo + me < hi ? (int)((hi - lo - me + WARPS - 1) / WARPS) : 0;
    ring.now = fetch_batch(a, t, ring, 0);
    ring.next = fetch_batch(a, t, ring, 32);
#pragma unroll 1
    for (int k = 0; k < STAGES; k++) {
        issue_keys(a, t, ring, k);
        issue_values(ring, k);
    }

    Merge merge = {finish, finish + GROUP * WARPS, finish + GROUP * WARPS + GROUP * SCALARS,
                   (u32*)(finish + GROUP * WARPS + GROUP * SCALARS + 2 * GROUP * (D / 32))};
    Lot lot = lot_at(lots + me * LOT_BYTES);
    float* mine = partials + me * PARTIAL_STRIDE;
    int k = 0;
    for (u32 line = lo; line < hi;) {
        const Segment seg = segment_at(a, t, line);
        const u32 end = seg.start + seg.blocks < hi ? seg.start + seg.blocks : hi;
        Query q;
        load_query(a, seg.head, q);
        State st;
        Sums sums;
        u32 flags = 0;
        clear(st);
        clear(sums);
        const int started = k;
#pragma unroll 1
        for (; k < ring.count && ring.lo + (u32)k * WARPS < end; k++) {
            const u32 j = ring.lo + (u32)k * WARPS - seg.start;
            wait_part(ring, k, 0);
            if (j < seg.tokens / BLOCK) {
                attend_block(a, ring, t, q, j, k, st, lot, flags);
            } else {
                attend_open(a, ring, t, q, seg.row, j, (int)(seg.tokens % BLOCK), k, st, lot, (u32*)mine);
            }
            if (CKV_CERTIFY && lot.count == LOT) certify_lot(a, lot, q, seg.row, sums);
        }
        if (CKV_CERTIFY && lot.count) certify_lot(a, lot, q, seg.row, sums);
        store_partial(st, sums, (float)((k - started) * TILES), any(flags != 0) ? CANARY_FAILED : 0u, mine);
        sync_threads();

        const int first = share_of(t, seg.start), last = share_of(t, seg.start + seg.blocks - 1);
        const u32 launch_head = a.only ? seg.entry : seg.head;
        const float* centre = a.centres ? a.centres + (u64)seg.row * D : nullptr;
        if (first == last) {
            finish_head(a, partials, WARPS, merge, seg.head, seg.tokens, centre);
        } else {
            merge_partials(partials, WARPS, merge, a.partials + (u64)(cta + launch_head) * PARTIAL_STRIDE);
            fence_gpu();
            sync_threads();
            if (threadIdx.x == 0) *merge.word = atomic_add_acq_rel(a.counters + launch_head, 1);
            sync_threads();
            const bool closes = *merge.word == (u32)(last - first);
            sync_threads();
            if (closes) {
                if (threadIdx.x == 0) a.counters[launch_head] = 0;
                fence_gpu();
                // The factors of many partials lie where the warps' partials were.
                const Merge wide = {partials, merge.scalars, merge.norms, merge.word};
                finish_head(a, a.partials + (u64)(first + launch_head) * PARTIAL_STRIDE, last - first + 1, wide, seg.head,
                            seg.tokens, centre);
            }
        }
        sync_threads();
        line = end;
    }
}
