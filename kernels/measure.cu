// ckv_measure: norms of all rows of a tail that did not come by append.cu: the end of a prompt, a block that was cut open, a sequence that returns.
//
// CTAs of 256 threads, a row of one side of one head a warp; the grid strides over them. Rows that were never written have any norm.
#include "machine.cuh"
#include "codec/fragment.cuh"
#include "row_norm.cuh"

struct CkvMeasureArgs {
    const u8* tail_base;  // as append.cu has it
    u64 tail_stride;
    Vec2* row_norms;      // see row_norm.cuh
    u32 slot;
    u32 kv_heads;
};

extern "C" __global__ void __launch_bounds__(256, 2) ckv_measure(const __grid_constant__ CkvMeasureArgs a) {
    using namespace ckv_encode;
    constexpr u32 DIM = CKV_DIM, BLOCK = CKV_BLOCK, WARPS = 8;
    grid_dependency_wait();
    grid_dependency_launch();
    const u32 l = (u32)lane();
    for (u32 item = blockIdx.x * WARPS + (u32)warp(); item < 2 * BLOCK * a.kv_heads; item += gridDim.x * WARPS) {
        const u32 token = item % BLOCK, side = item / BLOCK;
        const u16* rows = (const u16*)(a.tail_base + a.slot * a.tail_stride) + (u64)side * (BLOCK * DIM);
        u32 two[4] = {0, 0, 0, 0};
        if (l < DIM / 8) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const u32 c = 8 * l + 2 * i;
                const u32 lo = side % 2 == 0 ? original_index<true, DIM>(token, c) : original_index<false, DIM>(token, c);
                const u32 hi = side % 2 == 0 ? original_index<true, DIM>(token, c + 1) : original_index<false, DIM>(token, c + 1);
                two[i] = (u32)rows[lo] | (u32)rows[hi] << 16;
            }
        }
        const float square = row_square<CKV_STORE>(two);
        if (l == 0) ((float*)(a.row_norms + row_norm_at(a.slot, a.kv_heads, side / 2, BLOCK, token)))[side % 2] = square;
    }
}
