// ckv_unite: outputs and certificates of sequences whose blocks have one of several levels, from the states that a launch for each level has left
// (attend/level.cuh), math.md (5.10) and (5.27).
//
// A CTA takes a KV head of a sequence, a warp a query head of it. All sums run in the order of the levels. A level of which a sequence has no block has left nothing,
// as its length says.
#include "machine.cuh"

constexpr bool CORRECTS = false;
#include "bound.cuh"
#include "levels.cuh"
#include "partial.cuh"
#include "strides.cuh"

constexpr u32 THREADS = 128, WARPS = THREADS / 32;

// What a launch for a level has left.
struct CkvLevelState {
    const float* kept;  // [seqs * kv_heads][PARTIAL_STRIDE]
    const u32* lens;    // [rows] as attend has them; 0: nothing at the level
};

struct CkvUniteArgs {
    CkvLevelState levels[MOST_LEVELS];
    const u32* rows;              // [seqs] row of each sequence of the batch
    const float* centres;         // [rows][kv_heads][d] value centres
    void* out;                    // [seqs][kv_heads * group][d], of type out_type, as out_strides has it
    CkvCertificate* certificates; // [seqs][kv_heads * group]
    const u32* only;              // count, then seq * kv_heads + head of each head; null: all
    u32* failures;                // count, then seq * kv_heads + head of each head over tolerance; null: not wanted
    const CkvLimit* limits;       // as attend has them
    u32 level_count;
    u32 seqs;
    u32 kv_heads;
    u32 out_type;                 // 0 f16, 1 bf16, 2 f32
    float relative;
    float absolute;
    CkvStrides out_strides;
};

// Scalars of a query head in the state of a level; null: none of its blocks has it.
CKV_FN const float* scalars_of(const CkvUniteArgs& a, u32 level, u32 row, u32 head, u32 h) {
    const CkvLevelState& of = a.levels[level];
    return ldg(of.lens + row) == 0 ? nullptr : of.kept + (u64)head * PARTIAL_STRIDE + GROUP * D + h * SCALARS;
}

// Writes element `at`, and returns what rounding takes from it.
CKV_FN float put(const CkvUniteArgs& a, u64 at, float x) {
    if (a.out_type == 2) {
        ((float*)a.out)[at] = x;
        return 0.0f;
    }
    const u32 bits = a.out_type == 1 ? b2_pack(x, 0.0f) & 0xffffu : h_rn(x);
    ((u16*)a.out)[at] = (u16)bits;
    return x - (a.out_type == 1 ? b_lo(bits) : h_lo(bits));
}

// One query head. A warp. Returns whether it is over its tolerance.
CKV_FN bool unite(const CkvUniteArgs& a, u32 seq, u32 row, u32 kv, u32 h) {
    const u32 head = seq * a.kv_heads + kv;
    float m = EMPTY;
    u32 found = 0;
#pragma unroll 1
    for (u32 level = 0; level < a.level_count; level++) {
        const float* s = scalars_of(a, level, row, head, h);
        if (s) m = fmaxf(m, s[AT_M]), found++;
    }
    float l = 0.0f, accumulated = 0.0f;
    u32 flags = 0;
    Judged of = {m, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    float x[SLICES][VECTOR], nu = 0.0f;
#pragma unroll
    for (int i = 0; i < SLICES; i++) {
#pragma unroll
        for (int v = 0; v < VECTOR; v++) x[i][v] = 0.0f;
    }
#pragma unroll 1
    for (u32 level = 0; level < a.level_count; level++) {
        const float* s = scalars_of(a, level, row, head, h);
        if (!s) continue;
        const float apart = s[AT_M] - m, f = power_of_two(apart);
        const float* from = s - h * SCALARS - GROUP * D + h * D;
#pragma unroll
        for (int i = 0; i < SLICES; i++) {
#pragma unroll
            for (int v = 0; v < VECTOR; v++) x[i][v] = fma_rn(f, from[(i * 32 + (int)lane()) * VECTOR + v], x[i][v]);
        }
        l = fma_rn(f, s[AT_L], l);
        of.g += scaled_up(s[AT_G], apart), of.gr += scaled_up(s[AT_GR], apart);
        of.h += scaled_up(s[AT_H], apart), of.v += scaled_up(s[AT_V], apart);
        of.g_rows += scaled_up(s[AT_G_ROWS], apart), of.gr_rows += scaled_up(s[AT_GR_ROWS], apart);
        of.most_radius = most(s[AT_RADIUS], of.most_radius), nu = most(s[AT_NORM], nu);
        accumulated += scaled_up(s[AT_CHAIN], apart);
        flags |= float_as_u32(s[AT_FLAGS]);
    }
    of.l = l;
    const float* centre = a.centres + ((u64)row * a.kv_heads + kv) * D;
    const u64 to = row_at(a.out_strides, seq, kv * GROUP + h);
    const float inverse = 1.0f / l;
    float norm = 0.0f, radius = 0.0f, lost = 0.0f;
#pragma unroll
    for (int i = 0; i < SLICES; i++) {
#pragma unroll
        for (int v = 0; v < VECTOR; v++) {
            const u32 channel = (i * 32 + lane()) * VECTOR + v;
            const float y = x[i][v] * inverse, away = y - ldg(centre + channel);
            norm = fma_rn(y, y, norm), radius = fma_rn(away, away, radius);
            const float off = put(a, to + channel, y);
            lost = fma_ru(off, off, lost);
        }
    }
    norm = warp_sum(norm), radius = warp_sum(radius), lost = warp_sum(lost);
    of.norm = sqrt_rn(norm), of.radius = sqrt_ru(radius * UP + LOST_SQUARES);
    // Sums of so many levels round as often, each less than what was summed.
    const float sums = ((float)found + 2.0f) * 1.3e-7f * nu * l;
    // Small next to the sums themselves: of terms from above, whose order is fixed, less than UP in all.
    of.g *= UP, of.gr *= UP, of.h *= UP, of.v *= UP, of.g_rows *= UP, of.gr_rows *= UP;
    const float rounded = ((accumulated + sums) * (rcp(l) * UP) + sqrt_ru(lost * UP)) * UP;
    const CkvLimit limit = limit_of(a, kv * GROUP + h);
    CkvCertificate c = conclude(of, rounded, limit.relative, limit.absolute);
    if (flags) c.status = 0;
    if (lane() == 0) a.certificates[(u64)head * GROUP + h] = c;
    return c.status == 0;
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) ckv_unite(const __grid_constant__ CkvUniteArgs a) {
    CKV_STATIC_SHARED(u32 failed);
    grid_dependency_wait();
    grid_dependency_launch();
    const u32 count = a.only ? a.only[0] : a.seqs * a.kv_heads;
    for (u32 i = blockIdx.x; i < count; i += gridDim.x) {
        const u32 head = a.only ? a.only[1 + i] : i;
        const u32 seq = head / a.kv_heads, row = ldg(a.rows + seq);
        if (threadIdx.x == 0) failed = 0;
        sync_threads();
        bool any_failed = false;
        for (u32 h = warp(); h < GROUP; h += WARPS) any_failed |= unite(a, seq, row, head - seq * a.kv_heads, h);
        if (any_failed && lane() == 0) atomic_or(&failed, 1);
        sync_threads();
        if (a.failures && threadIdx.x == 0 && failed) a.failures[1 + atomic_add(a.failures, 1)] = head;
        sync_threads();
    }
}
