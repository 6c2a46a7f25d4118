// ckv_rehome: originals that lie elsewhere by now. The table of sides names the new place, and so does what repairs have lent of the old one.
//
// A warp to a page of a layer.
#include "machine.cuh"

// One page of one layer.
struct CkvMove {
    u64* named;  // [kv_heads][keys, values] addresses of its sides, in the table of sides
    u64* lent;   // the same of what is lent of its block (select/slots.cuh); those of other places stay
    u64 from;    // where its originals were, one side after the other
    u64 to;      // where they are
};

struct CkvRehomeArgs {
    const CkvMove* moves;
    u32 count;
    u32 sides;       // of a page: two a KV head
    u32 side_bytes;
    u32 unused;
};

extern "C" __global__ void __launch_bounds__(256) ckv_rehome(const __grid_constant__ CkvRehomeArgs a) {
    grid_dependency_wait();
    grid_dependency_launch();
    const u64 bytes = (u64)a.sides * a.side_bytes;
    const u32 warps = blockDim.x / 32;
    for (u32 i = blockIdx.x * warps + threadIdx.x / 32; i < a.count; i += gridDim.x * warps) {
        const CkvMove move = a.moves[i];
        for (u32 side = threadIdx.x % 32; side < a.sides; side += 32) {
            move.named[side] = move.to + (u64)side * a.side_bytes;
            const u64 held = move.lent[side];
            if (held - move.from < bytes) move.lent[side] = move.to + (held - move.from);
        }
    }
}
