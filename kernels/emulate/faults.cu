// Planted faults: what the emulator must catch. Never run on a GPU.
#include "machine.cuh"

struct CkvFaultsArgs {
    u32* out;          // 64 words
    const u32* input;  // 64 words, and nothing registered behind them
    u32 fault;         // which; 0: none
};

extern "C" __global__ void ckv_faults(const __grid_constant__ CkvFaultsArgs args) {
    CKV_DYNAMIC_SHARED(dynamic);
    CKV_STATIC_SHARED(u64 bars[1]);
    const u32 me = threadIdx.x, fault = args.fault;
    u32* words = (u32*)dynamic;
    u32 result = args.input[me];
    if (fault == 1) {  // divergence: half a warp meets at another collective
        if (lane() < 16) result = shfl_xor(result, 1);
        else syncwarp();
    }
    if (fault == 2 && lane() == 3) return;  // divergence: a lane leaves, the others go on to a collective
    if (fault == 3) result = ldg(args.input + 60 + me);  // out of bounds
    if (fault == 4 && warp() == 0) sync_threads();  // deadlock: the other warp never comes
    if (fault == 5) {  // misaligned copy
        cp_async16(smem_addr(dynamic + 4), args.input);
    }
    if (fault == 6) cp_async16(smem_addr(dynamic) + 16 * 64, args.input);  // copy beyond the shared memory
    if (fault == 7) words[256 + me] = 1;  // store beyond the shared memory
    if (fault == 8 && me == 0) {  // a barrier that was not published to the copies
        barrier_init(bars, 1);
        bulk_load(smem_addr(dynamic), args.input, 256, bars);
    }
    if (fault == 9) barrier_wait(bars, 0);  // a barrier that was never initialised
    if (fault >= 10 && fault <= 12) {
        if (me == 0) {
            barrier_init(bars, 1);
            fence_barrier_init();
        }
        sync_threads();
        if (me == 0) {
            if (fault != 10) barrier_expect(bars, 256);  // 10: deadlock: nobody arrives
            bulk_load(smem_addr(dynamic), args.input, 256, bars);
        }
        if (fault == 10) barrier_wait(bars, 0);
        sync_threads();
        result = words[me];  // 11, 12: data used before the wait
        if (fault == 12) barrier_wait(bars, 0);
    }
    if (fault == 13 || fault == 14) {
        if (me < 16) cp_async16(smem_addr(dynamic + 16 * me), args.input + 4 * me);
        cp_async_commit();
        if (fault == 14) cp_async_wait<1>();  // one group may still be in flight
        sync_threads();
        result = words[me];
    }
    if (fault == 15) {  // a missing sync_threads: the word belongs to the other warp
        words[me] = result;
        syncwarp();
        result = words[me ^ 32];
    }
    if (fault == 16) {  // waits for a CTA that is never resident at the same time
        while (ld_acquire(args.out) != 77) {
        }
    }
    if (fault == 17) result = ((const Vec4*)(dynamic + 8))[me % 4].x;  // misaligned load
    syncwarp();
    args.out[me] = result;
}
