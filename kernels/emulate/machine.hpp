// The operations of `machine.cuh` on the CPU. What each means is said there; here is how it is played.
//
// Included by machine.cuh under CKV_EMULATE, with a kernel compiled as C++17. Every operation that can fail takes the place of
// its caller, so that an error names it.
#pragma once
#include <mutex>
#include "copies.hpp"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

#ifndef CKV_BULK
#define CKV_BULK 1
#endif
#define CKV_FN static inline
#define CKV_AT ckv_emulate::Place at = ckv_emulate::Place::here()

#define CKV_DYNAMIC_SHARED(name) u8* const name = ckv_emulate::dynamic_shared()
#define CKV_STATIC_SHARED(declaration) static __attribute__((section("ckv_shared"))) declaration

// ---- identity ----

CKV_FN u32 lane() { return threadIdx.x & 31u; }
CKV_FN u32 warp() { return threadIdx.x >> 5; }

// ---- bits ----

CKV_FN u32 float_as_u32(float x) { return ckv_emulate::bits<u32>(x); }
CKV_FN float u32_as_float(u32 x) { return ckv_emulate::bits<float>(x); }
CKV_FN u32 prmt(u32 a, u32 b, u32 sel) {
    const u64 from = (u64)b << 32 | a;
    u32 d = 0;
    for (int i = 0; i < 4; ++i) {
        const u32 s = sel >> (4 * i) & 15, byte = (u32)(from >> (8 * (s & 7))) & 255;
        d |= (s & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * i);
    }
    return d;
}
CKV_FN u32 lop_and_or(u32 a, u32 mask, u32 bits) { return (a & mask) | bits; }

// ---- the warp ----

namespace ckv_emulate {
// Every lane leaves v and takes what lane pick(own lane) left.
template <class T, class Pick> static inline T exchange(const char* what, T v, Pick pick, Place at) {
    static_assert(sizeof(T) % 4 == 0 && sizeof(T) <= 32, "shuffles move whole 32-bit words, at most 32 bytes");
    Warp& w = warp_of(current);
    const u32 me = lane();
    memcpy(w.in[me], &v, sizeof(T));
    w.in[me][8] = pick(me) & 31;
    meet(what, at, [](Warp& w) {
        for (auto& lane : w.in) memcpy(w.out[&lane - w.in], w.in[lane[8]], sizeof(T));
        return true;
    });
    memcpy(&v, w.out[me], sizeof(T));
    return v;
}
static inline u32 vote(const char* what, bool p, Place at) {
    Warp& w = warp_of(current);
    const u32 me = lane();
    w.in[me][0] = p;
    meet(what, at, [](Warp& w) {
        u32 all = 0;
        for (u32 i = 0; i < 32; ++i) all |= w.in[i][0] << i;
        for (auto& lane : w.out) lane[0] = all;
        return true;
    });
    return w.out[me][0];
}
template <class Value>
static inline void product(const char* what, float (&c)[4], const u32 (&in)[6], Value value,
                           Place at) {
    Warp& w = warp_of(current);
    const u32 me = lane();
    memcpy(w.in[me], in, sizeof(in));
    memcpy(w.in[me] + 6, c, sizeof(c));
    meet(what, at, [=](Warp& w) {
        float sums[32][4];
        u32 factors[32][6];
        for (u32 i = 0; i < 32; ++i) {
            memcpy(factors[i], w.in[i], sizeof(factors[i]));
            memcpy(sums[i], w.in[i] + 6, sizeof(sums[i]));
        }
        multiply(sums, factors, value);
        for (u32 i = 0; i < 32; ++i) memcpy(w.out[i], sums[i], sizeof(sums[i]));
        return true;
    });
    memcpy(c, w.out[me], sizeof(c));
}
}  // namespace ckv_emulate

template <class T> CKV_FN T shfl(T v, int src, CKV_AT) {
    return ckv_emulate::exchange("shfl", v, [=](u32) { return (u32)src; }, at);
}
template <class T> CKV_FN T shfl_xor(T v, int mask, CKV_AT) {
    return ckv_emulate::exchange("shfl_xor", v, [=](u32 me) { return me ^ (u32)mask; }, at);
}
template <class T> CKV_FN T shfl_down(T v, int d, CKV_AT) {
    return ckv_emulate::exchange("shfl_down", v, [=](u32 me) { return me + (u32)d < 32 ? me + (u32)d : me; }, at);
}
CKV_FN bool warp_any(bool p, CKV_AT) { return ckv_emulate::vote("any", p, at) != 0; }
CKV_FN u32 warp_ballot(bool p, CKV_AT) { return ckv_emulate::vote("ballot", p, at); }
CKV_FN void syncwarp(CKV_AT) {
    ckv_emulate::meet("syncwarp", at, [](ckv_emulate::Warp&) { return true; });
}
CKV_FN float warp_sum(float v, CKV_AT) {
    for (int d = 16; d > 0; d >>= 1) v = v + shfl_xor(v, d, at);
    return v;
}
CKV_FN float warp_max(float v, CKV_AT) {
    for (int d = 16; d > 0; d >>= 1) v = fmaxf(v, shfl_xor(v, d, at));
    return v;
}

// ---- the CTA ----

CKV_FN void sync_threads(CKV_AT) { ckv_emulate::barrier("sync_threads", 0, blockDim.x, at); }
CKV_FN void named_barrier(int id, int threads, CKV_AT) {
    ckv_emulate::barrier("named_barrier", (u32)id, (u32)threads, at);
}

// ---- matrix product ----

CKV_FN void mma_f16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1, CKV_AT) {
    ckv_emulate::product("mma_f16", c, {a0, a1, a2, a3, b0, b1}, [](u16 h) { return ckv_emulate::half_value(h); }, at);
}
CKV_FN void mma_bf16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1, CKV_AT) {
    const auto value = [](u16 h) { return ckv_emulate::bits<float>((u32)h << 16); };
    ckv_emulate::product("mma_bf16", c, {a0, a1, a2, a3, b0, b1}, value, at);
}
CKV_FN u32 transpose8x8(u32 a, CKV_AT) {
    ckv_emulate::Warp& w = ckv_emulate::warp_of(ckv_emulate::current);
    const u32 me = lane();
    w.in[me][0] = a;
    ckv_emulate::meet("transpose8x8", at, [](ckv_emulate::Warp& w) {
        for (u32 i = 0; i < 32; ++i) {
            const u32 row = i / 4, column = 2 * (i % 4);
            const auto element = [&](u32 r, u32 c) { return w.in[4 * r + c / 2][0] >> 16 * (c % 2) & 0xffffu; };
            w.out[i][0] = element(column, row) | element(column + 1, row) << 16;
        }
        return true;
    });
    return w.out[me][0];
}

// ---- halves ----

CKV_FN float h_value(u16 h) { return ckv_emulate::half_value(h); }
CKV_FN float h_lo(u32 a) { return h_value((u16)a); }
CKV_FN float h_hi(u32 a) { return h_value((u16)(a >> 16)); }
CKV_FN u16 h_rn(float x) { return ckv_emulate::half_nearest(x); }
CKV_FN u16 h_ru(float x) { return ckv_emulate::half_bits(x, ckv_emulate::Round::up); }
CKV_FN u16 h_rd(float x) { return ckv_emulate::half_bits(x, ckv_emulate::Round::down); }
CKV_FN u32 h2_pack(float lo, float hi) { return (u32)h_rn(lo) | (u32)h_rn(hi) << 16; }
CKV_FN u32 h2_abs(u32 a) { return a & 0x7fff7fffu; }
CKV_FN u32 h2_mul(u32 a, u32 b) {
    // The product of two halves has 22 bits: exact in float, so that one more rounding is the only one.
    return h2_pack(h_lo(a) * h_lo(b), h_hi(a) * h_hi(b));
}
CKV_FN u32 h2_add(u32 a, u32 b) {
    return ckv_emulate::each_half([=](int s) { return (double)h_value((u16)(a >> s)) + (double)h_value((u16)(b >> s)); });
}
CKV_FN u32 h2_sub(u32 a, u32 b) {
    return ckv_emulate::each_half([=](int s) { return (double)h_value((u16)(a >> s)) - (double)h_value((u16)(b >> s)); });
}
CKV_FN u32 h2_fma(u32 a, u32 b, u32 c) {
    return ckv_emulate::each_half([=](int s) {
        const double p = (double)h_value((u16)(a >> s)) * (double)h_value((u16)(b >> s));
        return ckv_emulate::odd_sum(p, (double)h_value((u16)(c >> s)));
    });
}
CKV_FN u32 b2_pack(float lo, float hi) {
    return (u32)ckv_emulate::bf16_nearest(lo) | (u32)ckv_emulate::bf16_nearest(hi) << 16;
}
CKV_FN float b_lo(u32 a) { return u32_as_float(a << 16); }
CKV_FN float b_hi(u32 a) { return u32_as_float(a & 0xffff0000u); }

// ---- floats ----

CKV_FN float ex2(float x) { return ckv_emulate::noisy((float)std::exp2((double)x), 2); }
CKV_FN float ex2_flushed(float x) {
    const float y = ex2(x);
    return std::fabs(y) < 1.17549435e-38f ? 0.0f : y;
}
CKV_FN float lg2(float x) { return ckv_emulate::noisy((float)std::log2((double)x), 2); }
CKV_FN u32 popc(u32 x) { return (u32)__builtin_popcount(x); }
CKV_FN u64 mul_hi64(u64 a, u64 b) { return (u64)((unsigned __int128)a * b >> 64); }
CKV_FN float rcp(float x) { return ckv_emulate::noisy(1.0f / x, 1); }
CKV_FN float fma_rn(float a, float b, float c) { return ckv_emulate::canonical(std::fmaf(a, b, c)); }
CKV_FN float fma_ru(float a, float b, float c) {
    return ckv_emulate::sum_to_float((double)a * (double)b, c, ckv_emulate::Round::up);
}
CKV_FN float add_ru(float a, float b) { return ckv_emulate::sum_to_float(a, b, ckv_emulate::Round::up); }
CKV_FN float add_rd(float a, float b) { return ckv_emulate::sum_to_float(a, b, ckv_emulate::Round::down); }
CKV_FN float mul_ru(float a, float b) { return ckv_emulate::to_float((double)a * (double)b, ckv_emulate::Round::up); }
CKV_FN float mul_rd(float a, float b) { return ckv_emulate::to_float((double)a * (double)b, ckv_emulate::Round::down); }
CKV_FN float div_ru(float a, float b) { return ckv_emulate::quotient(a, b, ckv_emulate::Round::up); }
CKV_FN float div_rd(float a, float b) { return ckv_emulate::quotient(a, b, ckv_emulate::Round::down); }
CKV_FN float sqrt_ru(float a) { return ckv_emulate::root(a, ckv_emulate::Round::up); }
CKV_FN float sqrt_rn(float a) { return ckv_emulate::root(a, ckv_emulate::Round::nearest); }

// ---- asynchronous copies ----

CKV_FN u32 smem_addr(const void* shared, CKV_AT) { return ckv_emulate::shared_address(shared, at); }
CKV_FN void cp_async16(u32 shared, const void* global, CKV_AT) { ckv_emulate::start_copy(shared, global, at); }
CKV_FN void cp_async_commit() { ++ckv_emulate::groups[threadIdx.x].closed; }
template <int N> CKV_FN void cp_async_wait() { ckv_emulate::wait_copies(N); }
CKV_FN void barrier_init(u64* bar, u32 count, CKV_AT) { ckv_emulate::make_barrier(bar, count, at); }
CKV_FN void barrier_end(u64* bar, CKV_AT) { ckv_emulate::end_barrier(bar, at); }
CKV_FN void barrier_expect(u64* bar, u32 bytes, CKV_AT) { ckv_emulate::expect(bar, bytes, at); }
CKV_FN void bulk_load(u32 shared, const void* global, u32 bytes, u64* bar, CKV_AT) {
    ckv_emulate::start_bulk(shared, global, bytes, bar, at);
}
CKV_FN void barrier_wait(u64* bar, u32 parity, CKV_AT) { ckv_emulate::wait_phase(bar, parity, at); }
CKV_FN void fence_barrier_init() { ckv_emulate::publish_barriers(); }
// Plain accesses come before copies here in any case.
CKV_FN void fence_shared_async() {}

// ---- global memory ----

template <class T> CKV_FN T ldg(const T* p, CKV_AT) {
    static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "size of a load");
    ckv_emulate::check_global(p, sizeof(T), sizeof(T), "ldg", at);
    T v;
    memcpy(&v, p, sizeof(T));
    return v;
}
CKV_FN Vec4 ld_stream16(const void* p, CKV_AT) {
    ckv_emulate::check_global(p, 16, 16, "ld_stream16", at);
    Vec4 v;
    memcpy(&v, p, 16);
    return v;
}
CKV_FN void prefetch_l2(const void*) {}
CKV_FN void bulk_prefetch_l2(const void* p, u32 bytes, CKV_AT) {
    if (bytes % 16) ckv_emulate::fail("%s: bulk_prefetch_l2 of %u bytes", at.text(), bytes);
    ckv_emulate::check_global(p, bytes, 16, "bulk_prefetch_l2", at, false);
}
CKV_FN u32 ld_acquire(const u32* p, CKV_AT) {
    ckv_emulate::check_global(p, 4, 4, "ld_acquire", at);
    ckv_emulate::give_way("ld_acquire", at);
    return *(const volatile u32*)p;
}

CKV_FN void wait_for(const u32* p, u32 value, CKV_AT) {
    while (ld_acquire(p, at) < value) {}
}

namespace ckv_emulate {
// Atomics work on global and on shared memory; fibers change only where they wait, so each is whole.
template <class F> static inline u32 atomic(u32* p, F next, const char* what, Place at) {
    const u8* byte = (const u8*)p;
    const bool dynamic = byte >= shared_memory && byte < shared_memory + sizeof(shared_memory);
    if (!dynamic && !(byte >= __start_ckv_shared && byte < __stop_ckv_shared)) check_global(p, 4, 4, what, at);
    const u32 old = *(volatile u32*)p;
    *(volatile u32*)p = next(old);
    return old;
}
}  // namespace ckv_emulate

CKV_FN u32 atomic_add(u32* p, u32 v, CKV_AT) {
    return ckv_emulate::atomic(p, [=](u32 old) { return old + v; }, "atomic_add", at);
}
CKV_FN void add_release(u32* p, u32 v, CKV_AT) {
    ckv_emulate::atomic(p, [=](u32 old) { return old + v; }, "add_release", at);
}
CKV_FN void add_long(u64* p, u64 v, CKV_AT) {
    ckv_emulate::check_global(p, 8, 8, "add_long", at);
    *(volatile u64*)p += v;
}
CKV_FN u32 atomic_add_acq_rel(u32* p, u32 v, CKV_AT) {
    return ckv_emulate::atomic(p, [=](u32 old) { return old + v; }, "atomic_add_acq_rel", at);
}
CKV_FN u32 atomic_max(u32* p, u32 v, CKV_AT) {
    return ckv_emulate::atomic(p, [=](u32 old) { return old > v ? old : v; }, "atomic_max", at);
}
CKV_FN u32 atomic_or(u32* p, u32 v, CKV_AT) {
    return ckv_emulate::atomic(p, [=](u32 old) { return old | v; }, "atomic_or", at);
}
CKV_FN void fence_gpu() { asm volatile("" ::: "memory"); }
CKV_FN void fence_system() { asm volatile("" ::: "memory"); }

// ---- launch control: kernels run one after the other, but what a launch says is late may be read behind the wait only ----

CKV_FN void grid_dependency_wait() { ckv_emulate::current->waited = true; }
CKV_FN void grid_dependency_launch() {}
