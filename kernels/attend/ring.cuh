// The ring of records in flight: each warp has STAGES slots for key parts and as many for value parts, filled by asynchronous
// copies ahead of use and freed apart.
#pragma once

// What a slot's block is. `keys`, `values`: addresses of promoted sides, or 0; `flags` bit 0: the open block.
struct Flight {
    u64 keys, values;
    u32 tail;
    u32 pad;
};

// Where the blocks of a warp are found: one per lane, 32 of them at a time.
struct Batch {
    u64 record;    // address of the record, or of the open block
    u32 promoted;  // 0, or 1 + index of the promoted sides
    u32 tail;
};

struct Ring {
    u8* keys;        // this warp's slots
    u8* values;
    u64* barriers;   // [STAGES][key part, value part]
    Flight* flights;
    Batch now, next;
    u32 lo;          // first block of this warp in the line
    int count;       // blocks of this warp
};

CKV_FN Batch fetch_batch(const CkvAttendArgs& a, const Tasks& t, const Ring& ring, int first) {
    Batch b = {0, 0, 0};
    const int k = first + (int)lane();
    if (k < ring.count) {
        const u32 at = ring.lo + (u32)k * WARPS;
        const Segment s = segment_at(a, t, at);
        const u32 j = at - s.start, row = s.row / a.kv_heads, h = s.row % a.kv_heads;
        if (j < s.tokens / BLOCK) {
            const u32 page = ldg(a.table + (u64)row * a.table_stride + j);
            b.record = (u64)a.packed + page * a.page_stride + h * a.head_stride;
            if (a.promoted) {
                b.promoted = ldg(a.promoted + (u64)s.row * a.table_stride + j);
                if (b.promoted) {
                    const CkvSides sides = ldg(a.sides + b.promoted - 1);
                    if (sides.keys) bulk_prefetch_l2((const void*)sides.keys, SIDE_BYTES);
                    if (sides.values) bulk_prefetch_l2((const void*)sides.values, SIDE_BYTES);
                }
            }
        } else {
            b.record = (u64)a.tail_base + ldg(a.tails + row) * a.tail_stride + (u64)h * (2 * SIDE_BYTES);
            b.tail = 1;
        }
    }
    return b;
}

// Copies one part of a record into its slot.
CKV_FN void copy_part(u8* slot, const u8* from, int bytes, u64* barrier, bool real) {
#if CKV_BULK
    if (lane() == 0) {
        barrier_expect(barrier, real ? bytes : 0);
        if (real) bulk_load(smem_addr(slot), from, bytes, barrier);
    }
#else
    if (real) {
        const u32 to = smem_addr(slot);
        for (int i = (int)lane() * 16; i < bytes; i += 512) cp_async16(to + i, from + i);
    }
    cp_async_commit();
#endif
}

// Starts the copy of block k's keys; blocks of a warp are issued in order, keys before values.
CKV_FN void issue_keys(const CkvAttendArgs& a, const Tasks& t, Ring& ring, int k) {
    if (k && (k & 31) == 0) {
        ring.now = ring.next;
        ring.next = fetch_batch(a, t, ring, k + 32);
    }
    const int slot = k % STAGES;
    const bool real = k < ring.count;
    const u64 record = shfl(ring.now.record, k & 31);
    const u32 promoted = shfl(ring.now.promoted, k & 31), tail = shfl(ring.now.tail, k & 31);
    if (real && lane() == 0) {
        Flight f = {0, 0, tail, 0};
        if (tail) {
            f.keys = record, f.values = record + SIDE_BYTES;
        } else if (promoted) {
            const CkvSides s = ldg(a.sides + promoted - 1);
            f.keys = s.keys, f.values = s.values;
        }
        ring.flights[slot] = f;
    }
    if (real || !CKV_BULK) copy_part(ring.keys + slot * KEY_PART, (const u8*)record, KEY_PART, ring.barriers + 2 * slot, real && !tail);
}

CKV_FN void issue_values(Ring& ring, int k) {
    const int slot = k % STAGES;
    const bool real = k < ring.count;
    const u64 record = shfl(ring.now.record, k & 31);
    const u32 tail = shfl(ring.now.tail, k & 31);
    if (real || !CKV_BULK) {
        copy_part(ring.values + slot * VALUE_PART, (const u8*)record + KEY_PART, VALUE_PART, ring.barriers + 2 * slot + 1,
                  real && !tail);
    }
}

// Waits for one part of block k: 0 keys, 1 values.
CKV_FN void wait_part(const Ring& ring, int k, int part) {
#if CKV_BULK
    barrier_wait(ring.barriers + 2 * (k % STAGES) + part, (k / STAGES) & 1);
#else
    cp_async_wait<2 * STAGES - 1>();
#endif
    syncwarp();
}
