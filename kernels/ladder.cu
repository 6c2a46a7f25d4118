// ckv_ladder: what the heads over tolerance need, in one launch: the choice of sides for those listed (select/choose.cuh), a pass over them that
// reads these more finely, and a pass over what is left then (attend/pass.cuh). With CKV_CORRECT the choice of residuals, and the correction by them.
//
// Nearly always the list is empty, and the launch is over with one load. Where it is not, CTAs take heads, and then shares of each pass's line, and
// a stage begins when the one before it has ended (ladder/turns.cuh). Shares are those of a launch of its own, so that every output has the bits
// that it would have from that.
#include "machine.cuh"

constexpr bool LADDER = true;
#include "attend/pass.cuh"

constexpr u32 CHOOSERS = THREADS;
#include "select/choose.cuh"
#include "ladder/args.cuh"
#include "ladder/turns.cuh"

static_assert(sizeof(choice::Work) <= SHARED_BYTES, "the choice works where the rings will be");
static_assert(sizeof(CkvAttendArgs) % 4 == 0, "words");

// What all threads know of the launch. At a place that the compiler knows, so that what is not in use takes no register.
struct Desk {
    Turns turns;
    CkvAttendArgs pass;  // at hand
};
CKV_STATIC_SHARED(Desk desk);

CKV_FN Rooms rooms_of_cta() {
    CKV_DYNAMIC_SHARED(shared);
    return Rooms{shared};
}

// Nothing of one stage waits in registers while another runs: functions of their own.
#define CKV_STAGE __attribute__((noinline)) __device__ void

// The choice for the heads listed.
CKV_STAGE choose_listed(const CkvSelectArgs& a, u32 listed) {
    choice::Work& w = *(choice::Work*)rooms_of_cta().shared;
    const u32 step = *a.step;
    choice::begin(w);
#pragma unroll 1
    for (; desk.turns.task < listed; desk.turns.next()) {
        // Before a pass adds to one of these lists, which begins when this task is done.
        if (desk.turns.task == 0) clear_words(a);
        choice::choose(a, a.only[1 + desk.turns.task], w, step);
    }
    choice::end(a, w);
    fence_shared_async();
}

// Takes a pass at hand: its arguments, and its line of blocks.
CKV_FN void lay_out(const CkvAttendArgs& a) {
    const Rooms rooms = rooms_of_cta();
    for (u32 i = threadIdx.x; i < sizeof(a) / 4; i += THREADS) ((u32*)&desk.pass)[i] = ((const u32*)&a)[i];
    sync_threads();
    const Tasks planned = plan(desk.pass, rooms.before());
    if (threadIdx.x == 0) rooms.known().tasks = planned;
    sync_threads();
}
CKV_FN u32 shares() { return rooms_of_cta().known().tasks.ctas; }

// The share that was taken of the pass at hand.
CKV_STAGE attend_taken() {
    const Rooms rooms = rooms_of_cta();
    const u32& share = desk.turns.task;
    const Tasks planned = rooms.known().tasks;
    u32 lo, hi;
    share_of_cta(desk.pass, planned, share, lo, hi);
    if (lo >= hi) return;
    open_ring(rooms.ring());
    attend_share(desk.pass, rooms, planned, share, lo, hi);
    close_ring(rooms.ring());
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ckv_ladder(const __grid_constant__ CkvLadderArgs a) {
    grid_dependency_wait();
    grid_dependency_launch();
    const u32* listed = a.passes[0].only;
    if (*listed == 0) {
        if (a.chooses && blockIdx.x == 0) clear_words(a.select);
        return;
    }
    if (threadIdx.x == 0) {
        desk.turns.words = a.turns;
        desk.turns.take(a.chooses ? 0 : 1);
    }
    sync_threads();
    if (a.chooses) choose_listed(a.select, *listed);
    // The list of the second pass is whole when the first has ended, which all have waited for.
#pragma unroll 1
    for (u32 i = 0; i < a.count && (i == 0 || *a.passes[i].only); i++) {
        // The line of a correction is that of what was chosen; another's is laid out meanwhile.
        if (CORRECTS && a.chooses) desk.turns.end(*listed);
        lay_out(a.passes[i]);
        if (!CORRECTS && i == 0 && a.chooses) desk.turns.end(*listed);
#pragma unroll 1
        for (; desk.turns.task < shares(); desk.turns.next()) attend_taken();
        if (i + 1 < a.count) desk.turns.end(shares());
    }
    desk.turns.leave();
}
