// ckv_gather: page-in of a list of pieces from mapped pinned memory by the GPU's own loads, without copy engines.
//
// Few CTAs saturate the host link and leave the rest of the GPU alone: of 512 threads, 8 CTAs for pieces of 4 to 16 KiB, 4 from
// 32 KiB. A CTA is four teams of 128 threads, and a team moves a piece at a time, up to 8 KiB of it in flight, so that a list of
// few pieces is still spread. The list and its length are in device memory.
#include "machine.cuh"

// One piece. Addresses are multiples of 16.
struct CkvGatherItem {
    const u8* from;  // host (mapped) or device
    u8* to;          // device
    u64 bytes;       // a multiple of 16
    u32* mark;       // set to `epoch` once the piece is visible to the whole GPU; null: the end of the launch says so
};

struct CkvGatherArgs {
    const CkvGatherItem* items;
    const u32* count;
    u32 epoch;
    u32 unused;
};

extern "C" __global__ void __launch_bounds__(512, 2) ckv_gather(const __grid_constant__ CkvGatherArgs a) {
    constexpr u32 TEAM = 128, FLIGHT = 4;
    const u32 teams = blockDim.x / TEAM, team = threadIdx.x / TEAM, me = threadIdx.x % TEAM;
    grid_dependency_wait();
    grid_dependency_launch();
    const u32 count = *a.count;
    // Neighbours on the list go to different CTAs.
    for (u32 i = team * gridDim.x + blockIdx.x; i < count; i += teams * gridDim.x) {
        const CkvGatherItem item = a.items[i];
        const Vec4* from = (const Vec4*)item.from;
        Vec4* to = (Vec4*)item.to;
        const u32 n = (u32)(item.bytes / 16);
        for (u32 at = me; at < n; at += FLIGHT * TEAM) {
            Vec4 v[FLIGHT];
#pragma unroll
            for (u32 j = 0; j < FLIGHT; ++j)
                if (at + j * TEAM < n) v[j] = ld_stream16(from + at + j * TEAM);
#pragma unroll
            for (u32 j = 0; j < FLIGHT; ++j)
                if (at + j * TEAM < n) to[at + j * TEAM] = v[j];
        }
        if (item.mark != nullptr) {
            fence_gpu();
            named_barrier(1 + (int)team, TEAM);
            if (me == 0) {
                fence_gpu();
                *(volatile u32*)item.mark = a.epoch;
            }
        }
    }
}
