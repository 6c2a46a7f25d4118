// Kernels of the smoke test: each does one thing that the launcher must get right.
typedef unsigned long long u64;
typedef unsigned u32;

struct ScaleArgs { float* data; float factor; u32 n; };
extern "C" __global__ void scale(const __grid_constant__ ScaleArgs a) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.n) a.data[i] *= a.factor;
}

struct CopyArgs { const u32* from; u32* to; u64 n; };
extern "C" __global__ void copy(const __grid_constant__ CopyArgs a) {
    for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += gridDim.x * blockDim.x) a.to[i] = a.from[i];
}

struct SpinArgs { u32* flag; u64 nanoseconds; };
extern "C" __global__ void spin(const __grid_constant__ SpinArgs a) {
    u64 start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - start < a.nanoseconds);
    if (threadIdx.x == 0) *a.flag += 1;
}

struct WordArgs { u32* out; };
// Sums its dynamic shared memory after filling it: every word counts one.
extern "C" __global__ void shared_words(const __grid_constant__ WordArgs a) {
    extern __shared__ u32 words[];
    u32 n;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(n));
    n /= 4;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) words[i] = 1;
    __syncthreads();
    u32 sum = 0;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) sum += words[i];
    atomicAdd(a.out, sum);
}

// Blocks in the cluster of the first block.
extern "C" __global__ void cluster_blocks(const __grid_constant__ WordArgs a) {
#if __CUDA_ARCH__ >= 900
    u32 n;
    asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(n));
    if (blockIdx.x == 0 && threadIdx.x == 0) *a.out = n;
#endif
}

// Doubles a word after the kernel ahead of it is done.
extern "C" __global__ void dependent(const __grid_constant__ WordArgs a) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    if (threadIdx.x == 0) *a.out *= 2;
}

extern "C" __global__ void nothing() {}
extern "C" __global__ void two_parameters(u32* out, u32 value) { *out = value; }
