// spectral.cuh by itself: the bound of one matrix of CKV_ROWS x CKV_CHANNELS numbers. Launch with 256 threads, one CTA, 65536 bytes of
// dynamic shared memory.
#include "machine.cuh"
#include "spectral.cuh"

struct CkvSpectralArgs {
    const float* matrix;  // [CKV_ROWS][CKV_CHANNELS]
    double* out;
};

extern "C" __global__ void ckv_spectral(const __grid_constant__ CkvSpectralArgs a) {
    using namespace ckv_encode;
    CKV_DYNAMIC_SHARED(shared);
    constexpr u32 ROWS = CKV_ROWS, CHANNELS = CKV_CHANNELS, PITCH = CHANNELS + 8;
    u16* halves = (u16*)shared;
    u16* room = halves + ROWS * PITCH;
    float* slots = (float*)(room + 2 * ROWS * Product<ROWS>::PITCH);
    for (u32 i = threadIdx.x; i < ROWS * CHANNELS; i += THREADS) halves[i / CHANNELS * PITCH + i % CHANNELS] = h_rn(a.matrix[i]);
    sync_threads();
    Product<ROWS> gram;
    gram.clear();
    gram.add(halves, PITCH, CHANNELS);
    const double bound = spectral<ROWS>(gram, CHANNELS, room, slots);
    if (threadIdx.x == 0) *a.out = bound;
}
