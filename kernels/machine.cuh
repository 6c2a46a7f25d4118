// The machine: every operation of a kernel that is not plain C++17, under one name per operation.
//
// Two implementations share this list. Here: CUDA (nvcc and NVRTC, compute capability 8.0 and up, inline PTX, no system
// or toolkit header). Under CKV_EMULATE: `emulate/machine.hpp`, the same names on a CPU, where the emulator checks what a
// GPU does not: divergent collectives, a missing wait, an access outside the buffers, a deadlock.
// Halves are bits: u16 for one, u32 for two (the low half first); no kernel names a half type.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;

// Sixteen bytes, the widest load.
struct alignas(16) Vec4 {
    u32 x, y, z, w;
};
// Eight bytes.
struct alignas(8) Vec2 {
    u32 x, y;
};

// What one product of the matrix unit (mma_f16, mma_bf16) adds to a sum may be off by this share of the largest term or of the sum:
// 16 terms cut at 2^-25 of the largest and one truncation to f32 (1.25 * 2^-21). docs/gpu.md, "The matrix unit".
constexpr float U_MMA = 6.0e-7f;

#if defined(CKV_EMULATE)
#include "emulate/machine.hpp"
#else

// CKV_BULK: 1 where bulk_load and the barriers exist (compute capability 9.0 and up). Below they trap: ask first.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define CKV_BULK 1
#else
#define CKV_BULK 0
#endif

// The dynamic shared memory of the CTA, as bytes, aligned to 128.
#define CKV_DYNAMIC_SHARED(name) extern __shared__ __align__(128) u8 name[]
// Static shared memory: CKV_STATIC_SHARED(float sums[32]); in the body of a kernel, not of a template.
#define CKV_STATIC_SHARED(declaration) __shared__ declaration

#define CKV_FN __device__ __forceinline__

// ---- identity ----

// This thread's place in its warp, 0..31.
CKV_FN u32 lane() { return threadIdx.x & 31u; }
// The warp's place in its CTA.
CKV_FN u32 warp() { return threadIdx.x >> 5; }

// ---- bits ----

// The bits of a float.
CKV_FN u32 float_as_u32(float x) { return __float_as_uint(x); }
// The float with these bits.
CKV_FN float u32_as_float(u32 x) { return __uint_as_float(x); }
// Four bytes picked from the eight of b:a by the four nibbles of sel (bit 3 of a nibble: spread the byte's sign).
CKV_FN u32 prmt(u32 a, u32 b, u32 sel) {
    u32 d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(sel));
    return d;
}
// (a & mask) | bits, one instruction.
CKV_FN u32 lop_and_or(u32 a, u32 mask, u32 bits) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(a), "r"(mask), "r"(bits));
    return d;
}

// ---- the warp: every lane of the warp must call, at the same place ----

namespace ckv_machine {
template <class T> union Words {
    T value;
    u32 word[sizeof(T) / 4];
    CKV_FN Words() {}
};
template <int MODE, class T> CKV_FN T shuffle(T v, int by) {
    static_assert(sizeof(T) % 4 == 0, "shuffles move whole 32-bit words");
    Words<T> w;
    w.value = v;
#pragma unroll
    for (u32 i = 0; i < sizeof(T) / 4; ++i) {
        if (MODE == 0) w.word[i] = __shfl_sync(0xffffffffu, w.word[i], by);
        if (MODE == 1) w.word[i] = __shfl_xor_sync(0xffffffffu, w.word[i], by);
        if (MODE == 2) w.word[i] = __shfl_down_sync(0xffffffffu, w.word[i], by);
    }
    return w.value;
}
}  // namespace ckv_machine

// The value of lane src (mod 32); T of 4, 8, ... bytes.
template <class T> CKV_FN T shfl(T v, int src) { return ckv_machine::shuffle<0>(v, src); }
// The value of lane ^ mask.
template <class T> CKV_FN T shfl_xor(T v, int mask) { return ckv_machine::shuffle<1>(v, mask); }
// The value of lane + d; a lane that would look beyond 31 keeps its own.
template <class T> CKV_FN T shfl_down(T v, int d) { return ckv_machine::shuffle<2>(v, d); }
// Whether p holds in some lane; also any(p).
CKV_FN bool warp_any(bool p) { return __any_sync(0xffffffffu, p); }
CKV_FN u32 popc(u32 x) { return (u32)__popc(x); }
// The upper 64 bits of a product.
CKV_FN u64 mul_hi64(u64 a, u64 b) { return __umul64hi(a, b); }
// One bit per lane: p of lane i is bit i; also ballot(p).
CKV_FN u32 warp_ballot(bool p) { return __ballot_sync(0xffffffffu, p); }
// The lanes wait for each other and see each other's writes.
CKV_FN void syncwarp() { __syncwarp(); }
// Sum over the lanes by the butterfly 16, 8, 4, 2, 1 (this order is part of the contract); in every lane.
CKV_FN float warp_sum(float v) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v = __fadd_rn(v, shfl_xor(v, d));
    return v;
}
// Largest over the lanes, a NaN losing against a number; in every lane.
CKV_FN float warp_max(float v) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v = fmaxf(v, shfl_xor(v, d));
    return v;
}

// ---- the CTA ----

// All threads of the CTA wait for each other and see each other's writes.
CKV_FN void sync_threads() { __syncthreads(); }
// The same for `threads` threads (a multiple of 32) under barrier id 1..15; id 0 is sync_threads.
CKV_FN void named_barrier(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// ---- matrix product ----

// c += a b, m16n8k16 row.col, f16 in, f32 out. Lane l = 4 g + t: a0 = A[g][2t,2t+1], a1 = A[g+8][2t..], a2 = A[g][2t+8..],
// a3 = A[g+8][2t+8..], b0 = B[2t,2t+1][g], b1 = B[2t+8,2t+9][g], c = C[g][2t], C[g][2t+1], C[g+8][2t], C[g+8][2t+1].
CKV_FN void mma_f16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// The same with bf16 in.
CKV_FN void mma_bf16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// Transposes an 8x8 matrix of 16-bit elements; lane l holds row l/4, columns 2 (l%4) and 2 (l%4) + 1.
CKV_FN u32 transpose8x8(u32 a) {
    u32 d;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
    return d;
}

// ---- halves ----

// Two f16 products, rounded to nearest even; never contracted with a following sum.
CKV_FN u32 h2_mul(u32 a, u32 b) {
    u32 d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
// Two f16 sums.
CKV_FN u32 h2_add(u32 a, u32 b) {
    u32 d;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
// Two f16 differences a - b.
CKV_FN u32 h2_sub(u32 a, u32 b) {
    u32 d;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
// Two f16 a b + c, rounded once.
CKV_FN u32 h2_fma(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
// Two f16 magnitudes.
CKV_FN u32 h2_abs(u32 a) { return a & 0x7fff7fffu; }
// Two floats as f16, to nearest even; lo goes to the low half.
CKV_FN u32 h2_pack(float lo, float hi) {
    u32 d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
}
// The float value of one f16.
CKV_FN float h_value(u16 h) {
    float d;
    asm("cvt.f32.f16 %0, %1;" : "=f"(d) : "h"(h));
    return d;
}
// The low f16 as float.
CKV_FN float h_lo(u32 a) { return h_value((u16)(a & 0xffffu)); }
// The high f16 as float.
CKV_FN float h_hi(u32 a) { return h_value((u16)(a >> 16)); }
// The f16 nearest to x (ties to even; infinity from 65520).
CKV_FN u16 h_rn(float x) {
    u16 d;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(d) : "f"(x));
    return d;
}
// The smallest f16 that is >= x.
CKV_FN u16 h_ru(float x) {
    u16 d;
    asm("cvt.rp.f16.f32 %0, %1;" : "=h"(d) : "f"(x));
    return d;
}
// The largest f16 that is <= x.
CKV_FN u16 h_rd(float x) {
    u16 d;
    asm("cvt.rm.f16.f32 %0, %1;" : "=h"(d) : "f"(x));
    return d;
}
// Two floats as bf16, to nearest even; lo goes to the low half.
CKV_FN u32 b2_pack(float lo, float hi) {
    u32 d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
}
// The low bf16 as float.
CKV_FN float b_lo(u32 a) { return u32_as_float(a << 16); }
// The high bf16 as float.
CKV_FN float b_hi(u32 a) { return u32_as_float(a & 0xffff0000u); }

// ---- floats: results are correctly rounded in the named direction, subnormals kept ----

// 2^x, relative error at most 2^-22, subnormal results kept.
CKV_FN float ex2(float x) {
    float d;
    asm("ex2.approx.f32 %0, %1;" : "=f"(d) : "f"(x));
    return d;
}
// The same, subnormal results 0: three instructions less.
CKV_FN float ex2_flushed(float x) {
    float d;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
    return d;
}
// log2 x, absolute error at most 2^-22 for x in (0.5, 2), relative error at most 2^-22 elsewhere.
CKV_FN float lg2(float x) {
    float d;
    asm("lg2.approx.f32 %0, %1;" : "=f"(d) : "f"(x));
    return d;
}
// 1/x, error at most 1 ulp.
CKV_FN float rcp(float x) {
    float d;
    asm("rcp.approx.f32 %0, %1;" : "=f"(d) : "f"(x));
    return d;
}
// a b + c, rounded once, to nearest.
CKV_FN float fma_rn(float a, float b, float c) { return __fmaf_rn(a, b, c); }
// a b + c, rounded once, up.
CKV_FN float fma_ru(float a, float b, float c) { return __fmaf_ru(a, b, c); }
// a + b, up.
CKV_FN float add_ru(float a, float b) { return __fadd_ru(a, b); }
// a + b, down.
CKV_FN float add_rd(float a, float b) { return __fadd_rd(a, b); }
// a b, up.
CKV_FN float mul_ru(float a, float b) { return __fmul_ru(a, b); }
// a b, down.
CKV_FN float mul_rd(float a, float b) { return __fmul_rd(a, b); }
// a / b, up.
CKV_FN float div_ru(float a, float b) { return __fdiv_ru(a, b); }
// a / b, down.
CKV_FN float div_rd(float a, float b) { return __fdiv_rd(a, b); }
// Square root, up.
CKV_FN float sqrt_ru(float a) { return __fsqrt_ru(a); }
// Square root, to nearest.
CKV_FN float sqrt_rn(float a) { return __fsqrt_rn(a); }

// ---- asynchronous copies, global to shared ----

// The 32-bit address of shared memory, as the copies want it.
CKV_FN u32 smem_addr(const void* shared) { return (u32)__cvta_generic_to_shared(shared); }
// Starts a copy of 16 bytes, both ends aligned to 16; complete after the wait of its group by this thread.
CKV_FN void cp_async16(u32 shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
// Closes this thread's group of copies.
CKV_FN void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most the N youngest groups of this thread are in flight.
template <int N> CKV_FN void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// Prepares a barrier in shared memory for `count` arrivals per phase; one thread, then fence_barrier_init, then a sync.
CKV_FN void barrier_init(u64* bar, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(smem_addr(bar)), "r"(count) : "memory");
}
// Gives a barrier's memory back for other use, or for barrier_init once more; nothing waits for it or reports to it. One thread, then a sync.
CKV_FN void barrier_end(u64* bar) { asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(smem_addr(bar)) : "memory"); }
// One arrival that also makes the phase wait for `bytes` more bytes of bulk copies (0: a plain arrival).
CKV_FN void barrier_expect(u64* bar, u32 bytes) {
#if CKV_BULK
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_addr(bar)), "r"(bytes) : "memory");
#else
    asm volatile("trap;");
#endif
}
// Starts a copy of `bytes` (a multiple of 16, both ends aligned to 16) that reports to bar; one thread calls.
CKV_FN void bulk_load(u32 shared, const void* global, u32 bytes, u64* bar) {
#if CKV_BULK
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
                 "l"(global), "r"(bytes), "r"(smem_addr(bar))
                 : "memory");
#else
    asm volatile("trap;");
#endif
}
// Waits until the phase of this parity (0 for the first) is complete, and sees what was copied.
CKV_FN void barrier_wait(u64* bar, u32 parity) {
#if CKV_BULK
    u32 done = 0;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(smem_addr(bar)), "r"(parity)
                     : "memory");
    } while (!done);
#else
    asm volatile("trap;");
#endif
}
// Orders this thread's plain accesses to shared memory before bulk copies into it that are started later.
CKV_FN void fence_shared_async() {
#if CKV_BULK
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
// Makes this thread's barrier_init visible to bulk copies; call before the sync that publishes the barriers.
CKV_FN void fence_barrier_init() {
#if CKV_BULK
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// ---- global memory ----

// A load through the read-only path: the data must not change while the kernel runs. T of 1, 2, 4, 8 or 16 bytes. Volatile, so
// that a load under a condition is never executed without it.
template <class T> CKV_FN T ldg(const T* p) {
    static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "size of a load");
    union Bits {
        T value;
        u8 b;
        u16 h;
        u32 w[sizeof(T) < 4 ? 1 : sizeof(T) / 4];
        CKV_FN Bits() {}
    } d;
    if constexpr (sizeof(T) == 1) {
        u32 wide;
        asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(wide) : "l"(p));
        d.b = (u8)wide;
    } else if constexpr (sizeof(T) == 2) {
        asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(d.h) : "l"(p));
    } else if constexpr (sizeof(T) == 4) {
        asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(d.w[0]) : "l"(p));
    } else if constexpr (sizeof(T) == 8) {
        asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(d.w[0]), "=r"(d.w[1]) : "l"(p));
    } else {
        asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(d.w[0]), "=r"(d.w[1]), "=r"(d.w[2]), "=r"(d.w[3])
            : "l"(p));
    }
    return d.value;
}
// Sixteen bytes that are read once: read-only path, no place in L1.
CKV_FN Vec4 ld_stream16(const void* p) {
    Vec4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
// Asks for the cache line of p in L2.
CKV_FN void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
// Asks for `bytes` (a multiple of 16, p aligned to 16) in L2.
CKV_FN void bulk_prefetch_l2(const void* p, u32 bytes) {
#if CKV_BULK
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes));
#else
    for (u32 at = 0; at < bytes; at += 128) prefetch_l2((const u8*)p + at);
#endif
}
// A load that acquires: what the writer released before is visible after it (GPU scope).
CKV_FN u32 ld_acquire(const u32* p) {
    u32 d;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(d) : "l"(p) : "memory");
    return d;
}
// Waits until *p is `value` or more, and then sees what its writers released before. One thread calls, and lets the others of its CTA go on.
CKV_FN void wait_for(const u32* p, u32 value) {
    while (ld_acquire(p) < value) __nanosleep(32);
}
// *p += v, returns the old value; orders nothing.
CKV_FN u32 atomic_add(u32* p, u32 v) {
    u32 d;
    asm volatile("atom.relaxed.gpu.add.u32 %0, [%1], %2;" : "=r"(d) : "l"(p), "r"(v) : "memory");
    return d;
}
// *p += v; orders nothing.
CKV_FN void add_long(u64* p, u64 v) { asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
// *p += v; releases what this thread wrote, and what it has seen of others.
CKV_FN void add_release(u32* p, u32 v) { asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
// *p += v, returns the old value; releases what this thread wrote, acquires what earlier callers released.
CKV_FN u32 atomic_add_acq_rel(u32* p, u32 v) {
    u32 d;
    asm volatile("atom.acq_rel.gpu.add.u32 %0, [%1], %2;" : "=r"(d) : "l"(p), "r"(v) : "memory");
    return d;
}
// *p = max(*p, v), returns the old value; orders nothing.
CKV_FN u32 atomic_max(u32* p, u32 v) {
    u32 d;
    asm volatile("atom.relaxed.gpu.max.u32 %0, [%1], %2;" : "=r"(d) : "l"(p), "r"(v) : "memory");
    return d;
}
// *p |= v, returns the old value; orders nothing.
CKV_FN u32 atomic_or(u32* p, u32 v) {
    u32 d;
    asm volatile("atom.relaxed.gpu.or.b32 %0, [%1], %2;" : "=r"(d) : "l"(p), "r"(v) : "memory");
    return d;
}
// Orders this thread's accesses for the whole GPU.
CKV_FN void fence_gpu() { __threadfence(); }
// Orders this thread's accesses for the host and other GPUs too.
CKV_FN void fence_system() { __threadfence_system(); }

// ---- launch control (programmatic dependent launch; nothing below compute capability 9.0) ----

// Waits until the kernels this one depends on are complete and their writes visible.
CKV_FN void grid_dependency_wait() {
#if CKV_BULK
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the kernels that depend on this one start; they still wait for its end before they read.
CKV_FN void grid_dependency_launch() {
#if CKV_BULK
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#endif  // CKV_EMULATE

// The toolkit's headers hold deprecated functions of these names, so ours reach kernels as macros.
#define any(p) warp_any(p)
#define ballot(p) warp_ballot(p)
