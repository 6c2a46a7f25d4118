// The ring of records in flight: each warp has STAGES slots, filled by asynchronous copies ahead of use. Lane 0 issues the copies.
#pragma once

// What a slot's block is: addresses of promoted sides, or 0; whether it is the open block.
struct Flight {
    u64 keys, values;
    u32 tail;
    u32 pad;
};

// Where a block lies: its record, or the open block; 0 or 1 + index of its promoted sides.
struct alignas(16) Place {
    u64 record;
    u32 promoted;
    u32 tail;
};

struct Ring {
    u8* slots;        // [STAGES] of this warp
    u64* barriers;    // [STAGES]
    Flight* flights;  // [STAGES]
    Place* places;    // [64]: block k at k % 64
    u32 lo;           // first block of this warp in the line
    int count;        // blocks of this warp
};

// Looks up blocks first..first + 31, one per lane.
CKV_FN void fetch_batch(const CkvAttendArgs& a, const Tasks& t, const Ring& ring, int first) {
    const int k = first + (int)lane();
    if (k < ring.count) {
        Place p = {0, 0, 0};
        const u32 at = ring.lo + (u32)k * WARPS;
        const Segment s = segment_at(a, t, at);
        const u32 j = at - s.start, row = s.row, h = s.kv;
        if (j < s.tokens / BLOCK) {
            const u32 page = ldg(a.table + (u64)row * a.table_stride + j);
            p.record = (u64)a.packed + page * a.page_stride + h * a.head_stride;
            if (a.promoted) {
                p.promoted = ldg(a.promoted + ((u64)row * a.kv_heads + h) * a.table_stride + j);
                if (p.promoted) {
                    const CkvSides sides = ldg(a.sides + p.promoted - 1);
                    if (sides.keys) bulk_prefetch_l2((const void*)sides.keys, SIDE_BYTES);
                    if (sides.values) bulk_prefetch_l2((const void*)sides.values, SIDE_BYTES);
                }
            }
        } else {
            p.record = (u64)a.tail_base + ldg(a.tails + row) * a.tail_stride + (u64)h * (2 * SIDE_BYTES);
            p.tail = 1;
        }
        ring.places[k & 63] = p;
    }
    syncwarp();
}

// Starts the copy of block k into `slot`; blocks of a warp are issued in order.
CKV_FN void issue(const CkvAttendArgs& a, const Ring& ring, int k, int slot) {
    if (k < ring.count && (!CKV_BULK || lane() == 0)) {
        const Place p = ring.places[k & 63];
        if (lane() == 0) {
            Flight f = {0, 0, p.tail, 0};
            if (p.tail) {
                f.keys = p.record, f.values = p.record + SIDE_BYTES;
            } else if (p.promoted) {
                const CkvSides s = ldg(a.sides + p.promoted - 1);
                f.keys = s.keys, f.values = s.values;
            }
            ring.flights[slot] = f;
        }
        u8* to = ring.slots + slot * CKV_RECORD;
#if CKV_BULK
        barrier_expect(ring.barriers + slot, p.tail ? 0 : CKV_RECORD);
        if (!p.tail) bulk_load(smem_addr(to), (const void*)p.record, CKV_RECORD, ring.barriers + slot);
#else
        if (!p.tail) {
            for (int i = (int)lane() * 16; i < CKV_RECORD; i += 512) cp_async16(smem_addr(to) + i, (const u8*)p.record + i);
        }
#endif
    }
#if !CKV_BULK
    cp_async_commit();
#endif
}

// Waits for a slot's block.
CKV_FN void wait_slot(const Ring& ring, int slot, u32 parity) {
#if CKV_BULK
    barrier_wait(ring.barriers + slot, parity);
#else
    cp_async_wait<STAGES - 1>();
#endif
    syncwarp();
}
