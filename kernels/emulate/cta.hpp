// One CTA: its fibers, warps, barriers and shared memory, and the scheduler that runs them.
//
// A fiber runs until it has to wait. Which fiber follows depends on the seed (0: in order), so that a missing
// synchronisation shows up as a wrong result under some seed.
#pragma once
#include <cstdarg>
#include <cstdio>
#include "fiber.hpp"
#include "numbers.hpp"

extern "C" {
extern u8 __start_ckv_shared[] __attribute__((weak, visibility("hidden")));
extern u8 __stop_ckv_shared[] __attribute__((weak, visibility("hidden")));
}

struct CkvIndex {
    u32 x, y, z;
};
static CkvIndex threadIdx, blockIdx, blockDim, gridDim;

namespace ckv_emulate {

// The largest shared memory a CTA can ask for on any GPU we build for (compute capability 9.0).
constexpr u32 MAX_SHARED = 227 << 10, CANARY = 4096, DYNAMIC_BASE = 1024, STATIC_BASE = 1 << 20;

// A place in a kernel source.
struct Place {
    const char* file;
    int line;
    // As a default argument: the place of the call.
    static Place here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
    bool operator==(const Place& other) const { return line == other.line && !strcmp(file, other.file); }
    // `attend.cu:12`; good until the eighth call after this one.
    const char* text() const {
        static char texts[8][96];
        static u32 turn = 0;
        char* to = texts[turn++ % 8];
        const char* name = file ? strrchr(file, '/') : nullptr;
        snprintf(to, sizeof(texts[0]), "%s:%d", name ? name + 1 : file ? file : "", line);
        return to;
    }
};

struct Fiber {
    Context context;
    u32 index = 0;
    bool waited = false;  // for the launch ahead
    const char* waits = "";  // what a blocked fiber waits for, for the report of a deadlock
    Place place{};
};

struct Warp {
    u32 ready, done, arrived;
    const char* what;  // the collective that lanes have arrived at
    Place place;
    u32 first;  // the lane that runs first
    u32 in[32][12], out[32][8];
};

struct Barrier {
    u32 threads, arrived, warps;
};

static Fiber fibers[MAX_THREADS];
static Warp warps[MAX_THREADS / 32];
static Barrier barriers[16];
static Context scheduler;
static Fiber* current = nullptr;
static void (*entry)(const void*) = nullptr;
static const void* arguments = nullptr;
static u32 warp_count = 0, shared_bytes = 0;
static u64 order_state = 0, launch_seed = 0, spins = 0;
static bool failed = false;
static char message[1024];
alignas(128) static u8 shared_memory[CANARY + MAX_SHARED + CANARY];

static inline u8* dynamic_shared() { return shared_memory + CANARY; }
static inline size_t static_shared_bytes() { return (size_t)(__stop_ckv_shared - __start_ckv_shared); }

// Ends the launch with a message; comes back only when no fiber runs.
__attribute__((format(printf, 1, 2))) static void fail(const char* format, ...) {
    if (!failed) {
        int at = 0;
        if (current) {
            at = snprintf(message, sizeof(message), "CTA %u, warp %u, lane %u: ", blockIdx.x, current->index / 32,
                          current->index % 32);
        }
        va_list list;
        va_start(list, format);
        vsnprintf(message + at, sizeof(message) - (size_t)at, format, list);
        va_end(list);
        failed = true;
    }
    if (current) {
        Context* from = &current->context;
        current = nullptr;
        switch_context(*from, scheduler);
    }
}

// What checked code calls at a pointer that is not aligned as its type has to be.
struct Mismatch {
    const char* file;
    u32 line, column;
    const void* type;
    u8 log_alignment, kind;
};
extern "C" [[noreturn]] void __ubsan_handle_type_mismatch_v1_abort(const Mismatch* of, size_t at) {
    fail("%s: access to misaligned address %p, no multiple of %u", Place{of->file, (int)of->line}.text(), (const void*)at, 1u << of->log_alignment);
    abort();
}

static inline Warp& warp_of(const Fiber* f) { return warps[f->index / 32]; }

static inline void become(Fiber* next) {
    current = next;
    threadIdx.x = next->index;
}

static inline Fiber* next_lane(const Warp& w) {
    const u32 from = w.first & 31, turned = from ? w.ready >> from | w.ready << (32 - from) : w.ready;
    return &fibers[(u32)(&w - warps) * 32 + (((u32)__builtin_ctz(turned) + from) & 31)];
}

// Gives the processor to another lane of the warp, or to the scheduler when none can run.
static inline void block() {
    Fiber* me = current;
    const Warp& w = warp_of(me);
    if (w.ready) {
        Fiber* next = next_lane(w);
        if (next == me) return;
        become(next);
        switch_context(me->context, next->context);
    } else {
        current = nullptr;
        switch_context(me->context, scheduler);
    }
}

// Lets others run; for loops that wait for memory to change.
static inline void give_way(const char* what, Place place) {
    if (++spins > (1u << 22)) fail("%s: %s spins without end; CTAs run one after the other", place.text(), what);
    Fiber* me = current;
    warp_of(me).first = me->index + 1;
    current = nullptr;
    switch_context(me->context, scheduler);
}

// The lanes of a warp meet. The last to arrive runs finish(warp), which says whether the warp goes on at once.
template <class F> static inline void meet(const char* what, Place place, F finish) {
    Fiber* me = current;
    Warp& w = warp_of(me);
    const u32 bit = 1u << (me->index & 31);
    if (w.done) fail("divergence: at %s (%s) while lanes %08x have left the kernel", what, place.text(), w.done);
    if (!w.arrived) {
        w.what = what;
        w.place = place;
    } else if (!(w.place == place) || strcmp(w.what, what) != 0) {
        fail("divergence: at %s (%s) while lanes %08x are at %s (%s)", what, place.text(), w.arrived, w.what, w.place.text());
    }
    w.arrived |= bit;
    me->waits = what;
    me->place = place;
    if (w.arrived != 0xffffffffu) {
        w.ready &= ~bit;
        block();
        return;
    }
    w.arrived = 0;
    if (launch_seed) w.first = (u32)mix(order_state);
    if (finish(w)) {
        w.ready = 0xffffffffu;
    } else {
        w.ready = 0;
        block();
    }
}

// The warp arrives at a barrier of the CTA; the last warp frees the others.
static inline bool arrive(Warp& w, u32 id, u32 threads, Place place) {
    Barrier& b = barriers[id];
    if (b.arrived && b.threads != threads)
        fail("%s: barrier %u expects %u threads here and %u elsewhere", place.text(), id, threads, b.threads);
    b.threads = threads;
    b.arrived += 32;
    b.warps |= 1u << (&w - warps);
    if (b.arrived < threads) return false;
    for (u32 i = 0; i < warp_count; ++i)
        if (b.warps >> i & 1) warps[i].ready = 0xffffffffu;
    b = Barrier{};
    return true;
}

static inline void barrier(const char* what, u32 id, u32 threads, Place place) {
    const u32 at = current->index & 31;
    u32* in = warp_of(current).in[at];
    in[0] = id;
    in[1] = threads;
    meet(what, place, [=](Warp& w) {
        for (auto& lane : w.in)
            if (lane[0] != id || lane[1] != threads) fail("%s: lanes disagree on the barrier", place.text());
        if (id > 15 || threads == 0 || threads % 32 || threads > blockDim.x)
            fail("%s: barrier %u of %u threads", place.text(), id, threads);
        return arrive(w, id, threads, place);
    });
}

static void start() {
    entry(arguments);
    Fiber* me = current;
    Warp& w = warp_of(me);
    const u32 bit = 1u << (me->index & 31);
    w.done |= bit;
    w.ready &= ~bit;
    if (w.arrived)
        fail("divergence: leaves the kernel while lanes %08x are at %s (%s)", w.arrived, w.what, w.place.text());
    block();
}

// Says for the first warps which lanes wait where.
static void report_deadlock() {
    char text[900] = "";
    int at = 0, shown = 0;
    u32 left = 0;
    for (u32 i = 0; i < warp_count; ++i) {
        left += warps[i].done == 0xffffffffu;
        u32 rest = ~warps[i].done;
        while (rest && shown < 6) {
            const Fiber& f = fibers[32 * i + (u32)__builtin_ctz(rest)];
            u32 same = 0;
            for (u32 k = 0; k < 32; ++k) {
                const Fiber& other = fibers[32 * i + k];
                if (rest >> k & 1 && other.place == f.place && !strcmp(other.waits, f.waits)) same |= 1u << k;
            }
            rest &= ~same;
            at += snprintf(text + at, sizeof(text) - (size_t)at, "%s warp %u lanes %08x wait at %s (%s)",
                           shown++ ? ";" : "", i, same, f.waits, f.place.text());
        }
    }
    fail("CTA %u: deadlock:%s; %u of %u warps have left", blockIdx.x, text, left, warp_count);
}

static void reset_copies();
static bool deliver_for_waiters();
static void check_copies();

// Runs the CTA blockIdx to its end or to the first error.
static void run_cta() {
    memset(shared_memory, 0xc5, CANARY);
    memset(dynamic_shared(), 0xff, shared_bytes);  // a NaN in every float format
    memset(dynamic_shared() + shared_bytes, 0xc5, CANARY);
    if (static_shared_bytes()) memset(__start_ckv_shared, 0xff, static_shared_bytes());
    for (auto& b : barriers) b = Barrier{};
    spins = 0;
    reset_copies();
    for (u32 i = 0; i < blockDim.x; ++i) {
        u8* top = stack_top(i);
        if (!top) return fail("no memory for the stacks of %u threads", blockDim.x);
        fibers[i].index = i;
        fibers[i].waited = false;
        fibers[i].context.prepare(top, start);
    }
    for (u32 i = 0; i < warp_count; ++i) {
        warps[i].ready = 0xffffffffu;
        warps[i].done = warps[i].arrived = 0;
        warps[i].first = launch_seed ? (u32)mix(order_state) : 0;
    }
    u32 at = 0;
    while (!failed) {
        if (launch_seed) at = (u32)(mix(order_state) % warp_count);
        u32 tried = 0;
        while (tried < warp_count && !warps[at].ready) at = (at + 1) % warp_count, ++tried;
        if (tried < warp_count) {
            Fiber* next = next_lane(warps[at]);
            at = (at + 1) % warp_count;
            become(next);
            switch_context(scheduler, next->context);
            continue;
        }
        bool over = true;
        for (u32 i = 0; i < warp_count; ++i) over = over && warps[i].done == 0xffffffffu;
        if (over) break;
        if (!deliver_for_waiters()) report_deadlock();
    }
    if (failed) return;
    check_copies();
    for (u32 i = 0; i < CANARY; ++i)
        if (shared_memory[i] != 0xc5 || dynamic_shared()[shared_bytes + i] != 0xc5)
            return fail("CTA %u: wrote outside its %u bytes of dynamic shared memory", blockIdx.x, shared_bytes);
}

}  // namespace ckv_emulate
