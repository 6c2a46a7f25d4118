// Which sides lie in fast memory. A side has one slot whoever wants it; a slot that was used in this step or the one before
// keeps its side.
//
// No thread waits for another. A slot changes hands by its stamp: whoever raises it from an old step to this one has it, and
// an item is fetched by whoever sets BUSY on it first. A lost race leaves a side on codes for a step, never a slot with two
// owners or an address of a side that has gone.
#pragma once

namespace choice {

constexpr u32 BUSY = 0x80000000u;
constexpr u64 SIDE_BYTES = (u64)CKV_BLOCK * CKV_DIM * 2;
constexpr u32 TRIES = 64, TRIES_AT_ONCE = 8;

CKV_FN u32 items_of(const CkvSelectArgs& a) { return a.pages * a.kv_heads; }

// Address of item `i`'s side in the half of `sides` that PLAN keeps, or in REPAIR's.
CKV_FN u64* place_of(const CkvSelectArgs& a, u32 item, bool repair) {
    return (u64*)a.sides + (repair ? 2 * (u64)items_of(a) : 0) + item;
}

CKV_FN void use_slot(const CkvSlotPool& pool, u32 slot, u32 step) { atomic_max(pool.stamp + slot, step); }

// The item no longer lies in a slot. Its address goes before its slot can be missed and fetched again.
CKV_FN void lose(const CkvSelectArgs& a, u32 item) {
    *place_of(a, item, false) = 0;
    *place_of(a, item, true) = 0;
    fence_gpu();
    a.resident[item] = 0;
}

// A slot for `item`: 1 + its number, or 0. `evicted`: 1 if another side had to go.
CKV_FN u32 take_slot(const CkvSelectArgs& a, const CkvSlotPool& pool, u32 item, u32 step, u32& evicted) {
    evicted = 0;
    if (pool.count == 0) return 0;
    // The one of the slots looked at that has been idle longest; a free one at once.
    u32 slot = pool.count, stamp = 0xffffffffu, owner = 0;
    for (u32 tried = TRIES_AT_ONCE;; tried += TRIES_AT_ONCE) {
        const u32 from = atomic_add(pool.hand, TRIES_AT_ONCE);
#pragma unroll
        for (int i = (int)TRIES_AT_ONCE - 1; i >= 0; i--) {
            const u32 one = (from + (u32)i) % pool.count;
            const u32 used = *(const volatile u32*)(pool.stamp + one), held = *(const volatile u32*)(pool.owner + one);
            if (used >= step || (held != 0 && used + 1 == step)) continue;
            const u32 idle = held == 0 ? 0 : used + 1;
            if (idle < stamp) slot = one, stamp = idle, owner = held;
        }
        const bool last = tried >= TRIES || tried >= pool.count + TRIES_AT_ONCE;
        if (stamp != 0 && !last) continue;
        if (slot == pool.count) return 0;
        const u32 before = owner == 0 ? *(const volatile u32*)(pool.stamp + slot) : stamp - 1;
        if (before >= step || atomic_max(pool.stamp + slot, step) != before) {
            // Lost to another; what was looked at is old.
            if (last) return 0;
            slot = pool.count, stamp = 0xffffffffu, owner = 0;
            continue;
        }
        fence_gpu();
        if (owner != 0) {
            lose(a, owner - 1);
            evicted = 1;
        }
        pool.owner[slot] = 1 + item;
        return 1 + slot;
    }
}

// Where originals of a side lie; 0 for nowhere.
CKV_FN u64 host_address(const CkvSelectArgs& a, u32 row, u32 block, u32 head, u32 side) {
    if (a.hosts == nullptr) return 0;
    const u32 page = a.hosts[(u64)row * a.table_stride + block];
    if (page == NO_PAGE) return 0;
    return ((const u64*)(a.originals + (u64)page * a.kv_heads + head))[side];
}

// PLAN: `item` is wanted next step. `wanted`: not only kept if it is there. `dry`: one of this CTA's searches found nothing; whoever sees
// it late searches in vain.
CKV_FN void serve(const CkvSelectArgs& a, const CkvSlotPool& pool, u32 item, u64 host, bool wanted, u32 step, u32* dry,
                  u32* stats) {
    const u32 there = *(const volatile u32*)(a.resident + item);
    if (there & ~BUSY) {
        use_slot(pool, there - 1, step);
        atomic_add(stats + STAT_RESIDENT, 1);
        return;
    }
    if (!wanted) return;
    atomic_add(stats + STAT_MISSING, 1);
    if (host == 0 || there || atomic_or(dry, 0) != 0) {
        if (!there) atomic_add(stats + STAT_REFUSED, 1);
        return;
    }
    if (atomic_or(a.resident + item, BUSY) != 0) return;  // another row fetches it
    fence_gpu();
    const u32 place = atomic_add(a.queue + 1, 1);
    u32 slot = 0;
    if (place < a.capacity) {
        u32 evicted;
        slot = take_slot(a, pool, item, step, evicted);
        const u64 to = (u64)pool.base + (slot - 1) * SIDE_BYTES;
        if (slot) {
            *place_of(a, item, false) = to;
            atomic_add(stats + STAT_COPIES, 1);
            atomic_add(stats + STAT_EVICTIONS, evicted);
        }
        a.copies[place] = CkvSelectCopy{host, slot ? to : 0, slot ? SIDE_BYTES : 0, 0};
        atomic_max(a.queue, place + 1);
    }
    if (!slot) {
        atomic_or(dry, 1);
        atomic_add(stats + STAT_REFUSED, 1);
    }
    fence_gpu();
    a.resident[item] = slot;
}

// REPAIR: `item` is wanted in this step, from scratch or from the host.
CKV_FN void lend(const CkvSelectArgs& a, const CkvSlotPool& pool, u32 item, u64 host, u32 step, u32* stats) {
    const u32 there = *(const volatile u32*)(a.resident + item);
    if (there & ~BUSY) {
        use_slot(pool, there - 1, step);
        *place_of(a, item, true) = (u64)pool.base + (there - 1) * SIDE_BYTES;
        atomic_add(stats + STAT_RESIDENT, 1);
        return;
    }
    atomic_add(stats + STAT_MISSING, 1);
    if (host) *place_of(a, item, true) = host;
    atomic_add(stats + (host ? STAT_DIRECT : STAT_REFUSED), 1);
}

// FORGET: the page is given to other tokens.
CKV_FN void forget_item(const CkvSelectArgs& a, const CkvSlotPool& pool, u32 item) {
    const u32 there = a.resident[item];
    *place_of(a, item, false) = 0;
    *place_of(a, item, true) = 0;
    a.resident[item] = 0;
    const u32 slot = (there & ~BUSY) - 1;
    if ((there & ~BUSY) != 0 && slot < pool.count && pool.owner[slot] == 1 + item) {
        pool.owner[slot] = 0;
        pool.stamp[slot] = 0;
    }
}

}  // namespace choice
