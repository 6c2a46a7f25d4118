// One decode step of attention over packed pages, certified, in one pass and one launch.
//
// A persistent grid walks all blocks of a ragged batch, a share to each CTA: attend/pass.cuh. Nothing is read twice and nothing waits for the host.
// With CKV_CORRECT it goes over some blocks that such a pass has read, and corrects what that has kept: attend/correct.cuh.
#include "machine.cuh"

constexpr bool LADDER = false;
#include "attend/pass.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) ckv_attend(const __grid_constant__ CkvAttendArgs a) {
    CKV_DYNAMIC_SHARED(shared);
    const Rooms rooms = {shared};
    const u32 cta = blockIdx.x;
    open_ring(rooms.ring());
    if (!a.settled) grid_dependency_wait();
    if (warp() == WARPS - 1) ask_ahead(a);
    const Tasks planned = plan(a, rooms.before());
    u32 lo, hi;
    share_of_cta(a, planned, cta, lo, hi);
    if (lo >= hi) {
        // The end of this launch stands for that of the ones ahead.
        grid_dependency_wait();
        return;
    }
    attend_share(a, rooms, planned, cta, lo, hi);
    if (LEVELLED && a.beside) grid_dependency_wait();
}
