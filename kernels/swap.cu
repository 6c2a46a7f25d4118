// ckv_swap: whole pages between device memory and mapped pinned memory, either way, by the GPU's own loads and stores, with
// a digest of what passed: pages are compared with what left without another look at them. Or the digest alone, of pages that stay.
//
// CTAs of 512 threads are four teams; a team moves a page at a time, 8 KiB of it in flight. The list is in mapped memory.
#include "machine.cuh"

// One page. Addresses and bytes are multiples of 16.
struct CkvSwapItem {
    const u8* from;
    u8* to;  // null: nowhere
    u64 bytes;
    u64* digest;  // of the page, once it is there
};

struct CkvSwapArgs {
    const CkvSwapItem* items;
    u32 count;
    u32 unused;
};

// What 16 bytes add to the digest of a page, by their place in it (certkv_kernel::cuda::swap::digest): a product of 128 bits,
// folded. A sum of such terms is the same in any order.
CKV_FN u64 swap_term(Vec4 v, u64 place) {
    const u64 a = ((u64)v.y << 32 | v.x) ^ (0x9e3779b97f4a7c15ull * (place + 1));
    const u64 b = ((u64)v.w << 32 | v.z) ^ (0xd1b54a32d192ed03ull * (place + 2));
    return (a * b) ^ mul_hi64(a, b);
}

extern "C" __global__ void __launch_bounds__(512, 2) ckv_swap(const __grid_constant__ CkvSwapArgs a) {
    constexpr u32 TEAM = 128, FLIGHT = 4;
    CKV_STATIC_SHARED(u64 sums[16]);
    const u32 teams = blockDim.x / TEAM, team = threadIdx.x / TEAM, me = threadIdx.x % TEAM;
    grid_dependency_wait();
    grid_dependency_launch();
    // Neighbours on the list go to different CTAs.
    for (u32 i = team * gridDim.x + blockIdx.x; i < a.count; i += teams * gridDim.x) {
        const CkvSwapItem item = a.items[i];
        const Vec4* from = (const Vec4*)item.from;
        Vec4* to = (Vec4*)item.to;
        const u32 n = (u32)(item.bytes / 16);
        u64 sum = 0;
        u32 at = me;
        for (; at + (FLIGHT - 1) * TEAM < n; at += FLIGHT * TEAM) {
            Vec4 v[FLIGHT];
#pragma unroll
            for (u32 j = 0; j < FLIGHT; ++j) v[j] = ld_stream16(from + at + j * TEAM);
#pragma unroll
            for (u32 j = 0; j < FLIGHT; ++j) {
                if (to != nullptr) to[at + j * TEAM] = v[j];
                sum += swap_term(v[j], at + j * TEAM);
            }
        }
        for (; at < n; at += TEAM) {
            const Vec4 v = ld_stream16(from + at);
            if (to != nullptr) to[at] = v;
            sum += swap_term(v, at);
        }
#pragma unroll
        for (int d = 16; d > 0; d >>= 1) sum += shfl_xor(sum, d);
        if (lane() == 0) sums[warp()] = sum;
        named_barrier(1 + (int)team, TEAM);
        if (me == 0) *item.digest = sums[4 * team] + sums[4 * team + 1] + sums[4 * team + 2] + sums[4 * team + 3];
        // The sums are read before the next page's are written.
        named_barrier(1 + (int)team, TEAM);
    }
}
