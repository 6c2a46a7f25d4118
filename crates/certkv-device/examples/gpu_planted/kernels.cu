// One defect each, for a checker to find. Without one they do no harm: the card's pages are larger than what they miss.

struct Arguments {
    unsigned *p;
    unsigned words, pad;
};

// Writes behind the end of the buffer.
extern "C" __global__ void planted_memcheck(const Arguments a) { a.p[a.words + threadIdx.x] = threadIdx.x; }

// Reads what other warps write, without a barrier.
extern "C" __global__ void planted_racecheck(const Arguments a) {
    __shared__ unsigned s[64];
    s[threadIdx.x] = threadIdx.x;
    a.p[threadIdx.x % a.words] = s[63 - threadIdx.x];
}

// Reads what nobody wrote.
extern "C" __global__ void planted_initcheck(const Arguments a) {
    if (threadIdx.x == 0) a.p[a.words - 1] = a.p[0] + 1;
}

// A barrier that half of a warp does not reach.
extern "C" __global__ void planted_synccheck(const Arguments a) {
    if (threadIdx.x % 32 < 16) __syncthreads();
    a.p[threadIdx.x % a.words] = 1;
}
