// The ring of records in flight: each warp has STAGES slots, filled by asynchronous copies ahead of use. Lane 0 issues the copies.
//
// A ring of one slot is split: keys and values of a record arrive apart, and the place of one side takes the next block's while the
// other side is worked on. Half the shared memory of two slots overlaps copies with work just as well.
#pragma once

// Keys are what lies before the values' codes; the summary comes with the values.
constexpr u32 KEY_PART = CKV_VALUE_CODES;

// What a slot's block is: addresses of promoted sides, or 0; whether it is the open block; in a correction twice its pick's sides; of one that is
// seen in part, what a window hides of it or tokens of a draft do not see, 256 times.
struct Flight {
    u64 keys, values;
    u32 tail;
    u32 phase;  // of a warp's first slot: parity of its barrier for residuals
};

// Where a block lies: its record, or the open block; 0 or 1 + index of its promoted sides.
struct alignas(16) Place {
    u64 record;
    u32 promoted;
    u32 tail;
};

// Which blocks are a warp's. In shared memory, not in registers.
struct alignas(16) Range {
    u32 lo;      // the first in the line
    int count;   // of them, every WARPS-th
    int begin;   // those of the head at hand
    int end;
};
static_assert(sizeof(Range) <= RANGE_BYTES, "RANGE_BYTES");

struct Ring {
    u8* slots;        // [STAGES] of this warp
    u64* barriers;    // [BARRIERS]
    Flight* flights;  // [STAGES]
    Place* places;    // [64]: block k at k % 64
    const Range* range;
};

// A load of what a choice has written: by a launch before this one, or where passes follow choices in one launch, by that.
template <class T> CKV_FN T ld_chosen(const T* p) {
    if constexpr (LADDER) return *p;
    return ldg(p);
}

// Where block `block` of a head lies.
CKV_FN const u8* record_of(const CkvAttendArgs& a, const Segment& seg, u32 block) {
    const u32 page = ldg(a.table + (u64)seg.row * a.table_stride + block);
    return a.packed + page * a.page_stride + seg.kv * a.head_stride;
}

// Looks up blocks first..first + 31, one per lane. `near`: the head at hand, which nearly all of them are of.
CKV_FN void fetch_batch(const CkvAttendArgs& a, const Tasks& t, const Segment& near, const Ring& ring, int first) {
    const int k = first + (int)lane();
    if (k < ring.range->count) {
        Place p = {0, 0, 0};
        const u32 at = ring.range->lo + (u32)k * WARPS;
        // One copy more of a segment is too many registers where they are scarce.
        const Segment s = !TIGHT && at >= near.start && at < near.start + near.blocks ? near : segment_at(a, t, at);
        const u32 j = at - s.start, row = s.row, h = s.kv;
        if constexpr (CORRECTS) {
            const u32 pick = a.picks[(u64)s.head * a.table_stride + j];
            p.record = (u64)record_of(a, s, pick >> 4);
            p.tail = (pick & 15) << 1;
            if constexpr (WINDOWED) p.tail |= seen_of(a, ldg(a.lens + row)).hidden(pick >> 4) << 8;
            if constexpr (DRAFTED) p.tail |= unseen_of(a, s.seq, pick >> 4) << 8;
        } else if (j < full_blocks(s)) {
            const Seen seen = seen_of(a, s.tokens);
            const u32 block = seen.number(j);
            p.record = (u64)record_of(a, s, block);
            if constexpr (WINDOWED) p.tail = seen.hidden(block) << 8;
            if constexpr (DRAFTED) p.tail = unseen_of(a, s.seq, block) << 8;
            if (a.promoted) {
                p.promoted = ld_chosen(a.promoted + ((u64)row * a.kv_heads + h) * a.table_stride + home_of(a, row, block));
                if (p.promoted) {
                    const CkvSides sides = ld_chosen(a.sides + p.promoted - 1);
                    if (sides.keys) bulk_prefetch_l2((const void*)sides.keys, SIDE_BYTES);
                    if (sides.values) bulk_prefetch_l2((const void*)sides.values, SIDE_BYTES);
                }
            }
        } else {
            p.record = (u64)tail_of(a, s, DRAFTED ? j - full_blocks(s) : 0);
            p.tail = 1;
            if constexpr (WINDOWED) p.tail |= hidden_in_tail(a, s) << 8;
            if constexpr (DRAFTED) p.tail |= unseen_of(a, s.seq, j) << 8;
        }
        ring.places[k & 63] = p;
    }
    syncwarp();
}

// Starts the copy of a part of block k into `slot`; blocks of a warp are issued in order.
template <Part PART> CKV_FN void issue(const CkvAttendArgs& a, const Ring& ring, int k, int slot) {
    if (k < ring.range->count && (!CKV_BULK || lane() == 0)) {
        const Place p = ring.places[k & 63];
        if (PART != VALUES && lane() == 0) {
            Flight f = {0, 0, p.tail, REFINABLE ? ring.flights[slot].phase : 0};
            if (p.tail & 1) {
                f.keys = p.record, f.values = p.record + SIDE_BYTES;
                // Read from where it is: what was read of it at the head's start has left the cache since.
                if constexpr (CKV_BULK && !LEAN) bulk_prefetch_l2((const void*)p.record, 2 * SIDE_BYTES);
            } else if (p.promoted) {
                const CkvSides s = ld_chosen(a.sides + p.promoted - 1);
                f.keys = s.keys, f.values = s.values;
            }
            ring.flights[slot] = f;
        }
        constexpr u32 FROM = PART == VALUES ? KEY_PART : 0, BYTES = (PART == KEYS ? KEY_PART : CKV_RECORD) - FROM;
        const u32 to = smem_addr(ring.slots + slot * CKV_RECORD) + FROM;
        const u8* from = (const u8*)p.record + FROM;
#if CKV_BULK
        u64* barrier = ring.barriers + slot * PARTS + (PART == VALUES ? 1 : 0);
        barrier_expect(barrier, p.tail & 1 ? 0 : BYTES);
        if (!(p.tail & 1)) bulk_load(to, from, BYTES, barrier);
#else
        if (!(p.tail & 1)) {
            for (u32 i = lane() * 16; i < BYTES; i += 512) cp_async16(to + i, from + i);
        }
#endif
    }
#if !CKV_BULK
    cp_async_commit();
#endif
}

// Starts the copy of block k.
CKV_FN void issue_block(const CkvAttendArgs& a, const Ring& ring, int k, int slot) {
    if constexpr (SPLIT) {
        issue<KEYS>(a, ring, k, slot);
        issue<VALUES>(a, ring, k, slot);
    } else {
        issue<WHOLE>(a, ring, k, slot);
    }
}

// Waits for a slot's block, or for a part of it.
template <Part PART, bool EARLY = true> CKV_FN void wait_slot(const Ring& ring, int slot, u32 parity) {
#if CKV_BULK
    barrier_wait(ring.barriers + slot * PARTS + (PART == VALUES ? 1 : 0), parity);
#else
    // Parts are issued and needed by turns; keys of the next block come behind the values of this one where residuals take their place
    // before, and where it is not freed early: not before values are waited for, and not before the last column tile.
    cp_async_wait<(REFINABLE || !EARLY) && PART == VALUES ? 0 : STAGES * PARTS - 1>();
#endif
    syncwarp();
}

// What must be known of a block to attend to it.
struct Block {
    const u8* record;
    Flight flight;
    int rows;  // tokens that exist: all but in the open block
    u32 index;  // among those of the sequence that are seen
    const u32* room;  // the summary of the open block
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
