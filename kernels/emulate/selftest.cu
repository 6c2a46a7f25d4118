// Every operation of the machine once, results as words: the test of the emulator against the real thing.
//
// Launch with 64 threads, any number of CTAs and 4096 bytes of dynamic shared memory. CTA 0 writes 64 words per section into
// out; the order of the sections is the order of the code below, named in the test that judges them. counters starts as zeros.
#include "machine.cuh"

struct CkvSelftestArgs {
    u32* out;          // 64 words per section
    const u32* input;  // 64 words each: bits x, y, z; floats f, g, k; positive p; moderate m; half pairs a, b, c; bytes
    u32* counters;     // add, max, or, ticket, then one word per CTA
};

struct Report {
    u32* at;
    __device__ __forceinline__ void operator()(u32 word) {
        if (blockIdx.x == 0) at[threadIdx.x] = word;
        at += 64;
    }
    __device__ __forceinline__ void operator()(float value) { (*this)(float_as_u32(value)); }
};

__device__ __forceinline__ void report_products(Report& report, u32 x, u32 y, u32 z, u32 a, u32 b, u32 c) {
    // Small integers: every order of summation gives the same bits.
    u32 h[6], w[6];
    for (int i = 0; i < 6; ++i) {
        const float lo = (float)((x >> (4 * i)) & 7u) - 3.0f, hi = (float)((y >> (4 * i)) & 7u) - 3.0f;
        h[i] = h2_pack(lo, hi);
        w[i] = b2_pack(lo, hi);
    }
    float s[4], t[4], r[4];
    for (int i = 0; i < 4; ++i) s[i] = t[i] = r[i] = (float)((z >> (4 * i)) & 15u);
    mma_f16(s, h[0], h[1], h[2], h[3], h[4], h[5]);
    mma_bf16(t, w[0], w[1], w[2], w[3], w[4], w[5]);
    mma_f16(r, a, b, c, h2_abs(a), b, c);
    for (int i = 0; i < 4; ++i) report(s[i]);
    for (int i = 0; i < 4; ++i) report(t[i]);
    for (int i = 0; i < 4; ++i) report(r[i]);
}

__device__ __forceinline__ void report_halves(Report& report, u32 a, u32 b, u32 c, float f, float m, float k) {
    report(h2_mul(a, b));
    report(h2_add(a, b));
    report(h2_sub(a, b));
    report(h2_fma(a, b, c));
    report(h2_abs(a));
    report(h2_pack(m, f));
    report(h_lo(a));
    report(h_hi(a));
    report((u32)h_rn(m));
    report((u32)h_ru(m));
    report((u32)h_rd(m));
    report((u32)h_ru(f) | (u32)h_rd(k) << 16);
    report(b2_pack(f, k));
    report(b_lo(float_as_u32(f) >> 16));
    report(b_hi(float_as_u32(f)));
}

__device__ __forceinline__ void report_floats(Report& report, float f, float g, float k, float p, float m) {
    report(ex2(m));
    report(lg2(p));
    report(rcp(m));
    report(fma_rn(f, g, k));
    report(fma_ru(f, g, k));
    report(add_ru(f, g));
    report(add_rd(f, g));
    report(mul_ru(f, g));
    report(mul_rd(f, g));
    report(div_ru(f, g));
    report(div_rd(f, g));
    report(sqrt_ru(p));
    report(sqrt_rn(p));
}

extern "C" __global__ void __launch_bounds__(64) ckv_selftest(const __grid_constant__ CkvSelftestArgs args) {
    CKV_DYNAMIC_SHARED(dynamic);
    CKV_STATIC_SHARED(u32 words[64]);
    grid_dependency_wait();
    grid_dependency_launch();
    const u32 me = threadIdx.x;
    Report report{args.out};
    const u32 x = args.input[me], y = args.input[64 + me], z = args.input[128 + me];
    const float f = u32_as_float(args.input[192 + me]), g = u32_as_float(args.input[256 + me]);
    const float k = u32_as_float(args.input[320 + me]), p = u32_as_float(args.input[384 + me]);
    const float m = u32_as_float(args.input[448 + me]);
    const u32 a = args.input[512 + me], b = args.input[576 + me], c = args.input[640 + me];

    report(lane() | warp() << 8 | threadIdx.x << 16);
    report(prmt(x, y, z));
    report(lop_and_or(x, y, z));
    report(shfl(x, (int)(lane() * 7 + 3)));
    const u64 wide = shfl((u64)x << 32 | y, 11);
    report((u32)(wide >> 32) ^ ((u32)wide << 1));
    report(shfl_xor(x, 5));
    report(shfl_down(x, 9));
    report((u32)any(warp() == 1 && (x & 15u) == 0));
    report(ballot((x & 1u) != 0));
    report(warp_sum(m));
    report(warp_max(m));

    words[me] = x;
    sync_threads();
    report(words[63 - me]);
    u32* staged = (u32*)dynamic;
    staged[me] = y;
    named_barrier(1, 64);
    report(staged[63 - me]);
    staged[64 + me] = z;
    syncwarp();
    report(staged[64 + (me ^ 1)]);
    sync_threads();

    report_products(report, x, y, z, a, b, c);
    report(transpose8x8(x));
    report_halves(report, a, b, c, f, m, k);
    report_floats(report, f, g, k, p, m);

    // Two groups of copies, waited for one after the other.
    const Vec4* source = (const Vec4*)args.input;
    cp_async16(smem_addr(dynamic + 1024 + 16 * me), source + me);
    cp_async_commit();
    cp_async16(smem_addr(dynamic + 2048 + 16 * me), source + 64 + me);
    cp_async_commit();
    cp_async_wait<1>();
    sync_threads();
    report(((const u32*)(dynamic + 1024))[63 - me]);
    cp_async_wait<0>();
    sync_threads();
    report(((const u32*)(dynamic + 2048))[63 - me]);

    // Two phases of a bulk copy through one barrier; machines without it copy by hand.
    u32* landed = (u32*)(dynamic + 3072);
#if CKV_BULK
    CKV_STATIC_SHARED(u64 bars[1]);
    if (me == 0) {
        barrier_init(bars, 1);
        fence_barrier_init();
    }
    sync_threads();
    for (u32 phase = 0; phase < 2; ++phase) {
        if (me == 0) {
            barrier_expect(bars, 256);
            bulk_load(smem_addr(landed), args.input + 64 * phase, 256, bars);
        }
        barrier_wait(bars, phase);
        report(landed[63 - me]);
        sync_threads();
    }
#else
    for (u32 phase = 0; phase < 2; ++phase) {
        landed[me] = args.input[64 * phase + me];
        sync_threads();
        report(landed[63 - me]);
        sync_threads();
    }
#endif

    report(ldg(args.input + me));
    const Vec2 two = ldg((const Vec2*)args.input + me);
    const Vec4 four = ldg((const Vec4*)args.input + me);
    const u32 narrow = (u32)ldg((const u8*)args.input + me) | (u32)ldg((const u16*)args.input + me) << 16;
    report(two.x ^ (two.y << 1));
    report(four.x ^ (four.y << 1) ^ (four.z << 2) ^ (four.w << 3));
    report(narrow);
    const Vec4 stream = ld_stream16(source + me);
    report(stream.x ^ (stream.y << 1) ^ (stream.z << 2) ^ (stream.w << 3));
    prefetch_l2(source);
    bulk_prefetch_l2(source, 1024);

    // Atomics of all CTAs, and the merge by the last one.
    atomic_add(args.counters, me);
    atomic_max(args.counters + 1, x);
    atomic_or(args.counters + 2, 1u << (x & 31u));
    CKV_STATIC_SHARED(u32 ticket);
    if (me == 0) {
        args.counters[4 + blockIdx.x] = 1000 + blockIdx.x;
        fence_gpu();
        ticket = atomic_add_acq_rel(args.counters + 3, 1);
    }
    sync_threads();
    if (ticket == gridDim.x - 1 && me == 0) {
        u32 sum = 0;
        for (u32 i = 0; i < gridDim.x; ++i) sum += ld_acquire(args.counters + 4 + i);
        args.counters[4] = sum;
        fence_system();
    }
}
