// Global memory and the copies that run beside the threads.
//
// A copy fills its destination with a NaN pattern when it is issued and delivers at the wait, never before: data used without a
// wait is poison. Checked are addresses, alignment, sizes, barriers that were never initialised or published, and bulk
// copies in flight at the end of the CTA.
#pragma once
#include <vector>
#include "cta.hpp"

namespace ckv_emulate {

struct Range {
    u64 start, bytes;
};
static const Range* ranges = nullptr;
static u64 range_count = 0, last_range = 0;

// Whether [at, at + bytes) lies in a buffer of the launch; a launch without buffers checks nothing.
static inline bool inside(u64 at, u64 bytes) {
    if (range_count == 0) return true;
    for (u64 i = 0; i < range_count; ++i) {
        const u64 k = (last_range + i) % range_count;
        if (at >= ranges[k].start && at - ranges[k].start + bytes <= ranges[k].bytes) {
            last_range = k;
            return true;
        }
    }
    return false;
}

// What the launch ahead may still be writing, up to a thread's grid_dependency_wait.
static const Range* late = nullptr;
static u64 late_count = 0;

static inline void check_arrived(u64 at, u64 bytes, const char* what, Place place) {
    if (late_count == 0 || current->waited) return;
    for (u64 i = 0; i < late_count; ++i) {
        if (at < late[i].start + late[i].bytes && late[i].start < at + bytes)
            return fail("%s: %s at %p before the launch ahead has ended", place.text(), what, (const void*)(size_t)at);
    }
}

static inline void check_global(const void* p, u64 bytes, u64 align, const char* what, Place place, bool reads = true) {
    const u64 at = (u64)(size_t)p;
    if (reads) check_arrived(at, bytes, what, place);
    if (at % align) fail("%s: %s of %llu bytes at misaligned address %p", place.text(), what, bytes, p);
    if (!inside(at, bytes)) fail("%s: %s of %llu bytes out of bounds at %p", place.text(), what, bytes, p);
}

static inline u32 shared_address(const void* p, Place place) {
    const u8* at = (const u8*)p;
    if (at >= dynamic_shared() && at <= dynamic_shared() + shared_bytes) return DYNAMIC_BASE + (u32)(at - dynamic_shared());
    if (at >= __start_ckv_shared && at <= __stop_ckv_shared) return STATIC_BASE + (u32)(at - __start_ckv_shared);
    fail("%s: %p is not in shared memory", place.text(), p);
    return 0;
}

static inline u8* shared_pointer(u32 address, u32 bytes, const char* what, Place place) {
    if (address % 16) fail("%s: %s to misaligned shared address %u", place.text(), what, address);
    const u64 end = (u64)address + bytes;
    if (address >= DYNAMIC_BASE && end <= (u64)DYNAMIC_BASE + shared_bytes) return dynamic_shared() + (address - DYNAMIC_BASE);
    if (address >= STATIC_BASE && end <= STATIC_BASE + static_shared_bytes())
        return __start_ckv_shared + (address - STATIC_BASE);
    fail("%s: %s of %u bytes out of bounds of shared memory (offset %d)", place.text(), what, bytes,
         (int)(address - DYNAMIC_BASE));
    return nullptr;
}

struct Copy {
    u8* to;
    const u8* from;
    u32 bytes;
    u32 key;  // the group of a thread's copy; the barrier of a bulk copy
};

struct Groups {
    std::vector<Copy> copies;
    u32 closed = 0;
};

struct Phases {
    u64* where;
    u32 count, pending, phase, by;
    long long bytes;
    bool published;
    u32 waiting[MAX_THREADS / 32];
};

static Groups groups[MAX_THREADS];
static std::vector<Copy> bulk;
static std::vector<Phases> phases;
constexpr u64 BARRIER_MARK = 0x6261727269ull << 24;

static void reset_copies() {
    for (auto& g : groups) {
        g.copies.clear();
        g.closed = 0;
    }
    bulk.clear();
    phases.clear();
}

static void check_copies() {
    if (!bulk.empty()) fail("CTA %u: %zu bulk copies in flight at its end", blockIdx.x, bulk.size());
}

static inline void start_copy(u32 shared, const void* global, Place place) {
    check_global(global, 16, 16, "cp_async16", place);
    Groups& g = groups[threadIdx.x];
    u8* to = shared_pointer(shared, 16, "cp_async16", place);
    memset(to, 0xff, 16);
    g.copies.push_back({to, (const u8*)global, 16, g.closed});
}

static inline void wait_copies(u32 in_flight) {
    Groups& g = groups[threadIdx.x];
    size_t kept = 0;
    for (const Copy& c : g.copies) {
        if (c.key + in_flight < g.closed) {
            memcpy(c.to, c.from, c.bytes);
        } else {
            g.copies[kept++] = c;
        }
    }
    g.copies.resize(kept);
}

static inline void make_barrier(u64* bar, u32 count, Place place) {
    shared_address(bar, place);
    if (count == 0 || count >= 1u << 20) fail("%s: barrier of %u arrivals", place.text(), count);
    Phases p{};
    p.where = bar;
    p.count = p.pending = count;
    p.by = threadIdx.x;
    *bar = BARRIER_MARK | phases.size();
    phases.push_back(p);
}

static inline u32 find_barrier(const u64* bar, const char* what, Place place) {
    const u64 k = *bar ^ BARRIER_MARK;
    if (k >= phases.size() || phases[k].where != bar)
        fail("%s: %s on a barrier that was not initialised", place.text(), what);
    return (u32)k;
}

static inline void end_barrier(u64* bar, Place place) {
    Phases& p = phases[find_barrier(bar, "barrier_end", place)];
    bool busy = p.pending != p.count || p.bytes != 0;
    for (u32 i = 0; i < warp_count; ++i) busy = busy || p.waiting[i];
    if (busy) fail("%s: barrier_end of a barrier that copies or threads still use", place.text());
    p.where = nullptr;
    *bar = ~0ull;
}

static inline void publish_barriers() {
    for (auto& p : phases) p.published = p.published || p.by == threadIdx.x;
}

// Opens the next phase when the arrivals and the bytes of this one are complete.
static inline bool settle(Phases& p) {
    if (p.pending || p.bytes) return false;
    ++p.phase;
    p.pending = p.count;
    for (u32 i = 0; i < warp_count; ++i) {
        warps[i].ready |= p.waiting[i];
        p.waiting[i] = 0;
    }
    return true;
}

static inline bool deliver(u32 key) {
    bool some = false;
    for (size_t i = 0; i < bulk.size();) {
        if (bulk[i].key != key) {
            ++i;
            continue;
        }
        const Copy c = bulk[i];
        bulk.erase(bulk.begin() + (long)i);
        memcpy(c.to, c.from, c.bytes);
        phases[key].bytes -= c.bytes;
        some = true;
    }
    return some && settle(phases[key]);
}

static bool deliver_for_waiters() {
    bool some = false;
    for (u32 k = 0; k < phases.size(); ++k) {
        bool waited = false;
        for (u32 i = 0; i < warp_count; ++i) waited = waited || phases[k].waiting[i];
        if (waited) some = deliver(k) || some;
    }
    return some;
}

static inline void expect(u64* bar, u32 bytes, Place place) {
    Phases& p = phases[find_barrier(bar, "barrier_expect", place)];
    if (p.pending == 0) fail("%s: more than %u arrivals in a phase", place.text(), p.count);
    p.bytes += bytes;
    --p.pending;
    settle(p);
}

static inline void start_bulk(u32 shared, const void* global, u32 bytes, u64* bar, Place place) {
    const u32 key = find_barrier(bar, "bulk_load", place);
    if (!phases[key].published) fail("%s: bulk_load on a barrier without fence_barrier_init", place.text());
    if (bytes == 0 || bytes % 16) fail("%s: bulk_load of %u bytes", place.text(), bytes);
    check_global(global, bytes, 16, "bulk_load", place);
    u8* to = shared_pointer(shared, bytes, "bulk_load", place);
    memset(to, 0xff, bytes);
    bulk.push_back({to, (const u8*)global, bytes, key});
}

static inline void wait_phase(u64* bar, u32 parity, Place place) {
    const u32 key = find_barrier(bar, "barrier_wait", place);
    while ((phases[key].phase & 1) == (parity & 1)) {
        if (deliver(key)) continue;
        Fiber* me = current;
        const u32 bit = 1u << (me->index & 31);
        phases[key].waiting[me->index / 32] |= bit;
        warp_of(me).ready &= ~bit;
        me->waits = "barrier_wait";
        me->place = place;
        block();
    }
}

}  // namespace ckv_emulate
