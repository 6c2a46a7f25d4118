// ckv_forgive: a row of the tables is cut to a length. What append.cu refused behind it is no more (refused.cuh); what lies before it stays refused.
//
// One thread.
#include "machine.cuh"
#include "refused.cuh"

struct CkvForgiveArgs {
    u32* refused;  // the row's word
    u32 len;       // tokens that are left
    u32 unused;
};

extern "C" __global__ void __launch_bounds__(32) ckv_forgive(const __grid_constant__ CkvForgiveArgs a) {
    grid_dependency_wait();
    grid_dependency_launch();
    if (threadIdx.x == 0 && blockIdx.x == 0 && *a.refused != 0 && ckv_refused::position_of(*a.refused) >= a.len) *a.refused = 0;
}
