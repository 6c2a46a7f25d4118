// ckv_losses: what each level would lose of each block in the certificates of the last step, summed over the query heads, math.md (9.17) and (9.17a): from the words and
// certificates that attention has left, and what is known of blocks at every level (probes.cuh). `terms.rs` is the same on the host. Of steps that are looked at between two decisions
// the largest stays (9.16).
//
// A CTA of 512 threads for EACH blocks of a layer, with 24 bytes of shared memory a query head and one a block of the layer. All of them find what heads say of all blocks; each has its
// own blocks' losses. A layer of which anything is no number says
// nothing, and does not count.
#include "probes.cuh"
#include "attend/args.cuh"
#include "levels.cuh"
#include "mass_word.cuh"

struct CkvLossesArgs {
    const u32* words;         // of the sequence's row in the first layer, [kv_heads][stride][group]: mass_word
    const u8* certificates;   // CkvCertificate[heads] of its place there
    const float* probes;      // of the row there, [stride][kv_heads]
    const u32* table;         // [stride] its pages there
    float* peaks;             // of the row in the first layer: how many steps it is of, three words of nothing, [stride][levels] of the ladder
    u64 word_layer;           // bytes from a layer's words to the next's
    u64 certificate_layer;    // the same of certificates,
    u64 probe_layer;          // of probes,
    u64 table_layer;          // of tables,
    u64 peak_layer;           // and of peaks
    u32 heads;
    u32 kv_heads;
    u32 stride;
    u32 known;                // blocks that have words
    u32 blocks;
    u32 levels;
    u32 linear;               // (9.17a), not (9.17)
    u32 layers;
    u32 firsts[8];            // by level, the first of which is the last of the ladder: its first page
};

namespace ckv_losses_of {

constexpr u32 THREADS = 512, WARPS = THREADS / 32, PARTS = 8, EACH = THREADS / PARTS, PEAK_HEADER = 4;
constexpr float LOG2E = 1.44269504f, LN2 = 0.69314718f;
// `terms.rs`.
constexpr float NEVER = 1e30f, CANCELLED = 0.1f;

// One query head.
struct Head {
    float total, rest;    // log2 of the sum of exponentials, and what mass blocks without a word have
    float delta, lambda;  // bounds of logits over eps, of blocks that say nothing of theirs
    float norm, radius;   // ||O'||, ||O' - c||
};

// One block for one query head.
struct Told {
    float mass, root, delta, lambda;
    bool bounds;  // it says how far its logits may be
};

CKV_FN float infinity() { return u32_as_float(0x7f800000u); }
CKV_FN bool is_finite(float x) { return fabsf(x) < infinity(); }

// ln (1 + x)
CKV_FN float log_1p(float x) { return x < 0.01f ? x * (1.0f - x * (0.5f - x * (0.33333333f - x * 0.25f))) : lg2(1.0f + x) * LN2; }
// e^x - 1
CKV_FN float exp_m1(float x) { return x < 0.02f ? x * (1.0f + x * (0.5f + x * (0.16666667f + x * 0.041666667f))) : ex2(x * LOG2E) - 1.0f; }
// Of factors that are not negative, 0 if one of them is.
CKV_FN float product(float a, float b) { return a == 0.0f || b == 0.0f ? 0.0f : a * b; }

CKV_FN Told told_of(u32 word, const Head& head, bool is_known) {
    if (!is_known) return Told{head.rest, head.rest, 0.0f, 0.0f, false};
    if (word == 0) return Told{0.0f, 0.0f, 0.0f, 0.0f, false};
    const float mass = ex2(log2_mass_of(word) - head.total);
    const float delta = log_1p(ex2(log2_share_of(word))), even = ex2(log2_evenness_of(word));
    return Told{mass, mass * even, delta, delta / even, true};
}

// g_b of (5.9).
CKV_FN float key_term(const Told& b, float delta, float lambda) {
    if (b.mass == 0.0f) return 0.0f;
    const float grown = exp_m1(delta), phi = delta > 0.0f ? grown / delta : 1.0f;
    return fminf(product(b.mass, grown), product(phi, product(b.root, lambda)));
}

}  // namespace ckv_losses_of

extern "C" __global__ void __launch_bounds__(512, 1) ckv_losses(const __grid_constant__ CkvLossesArgs a) {
    using namespace ckv_losses_of;
    CKV_DYNAMIC_SHARED(shared);
    CKV_STATIC_SHARED(u32 bad);
    if (threadIdx.x == 0) bad = 0;
    grid_dependency_wait();
    grid_dependency_launch();
    sync_threads();
    const u32 ctas = gridDim.x / a.layers, layer = blockIdx.x / ctas, group = a.heads / a.kv_heads;
    const u32* words = (const u32*)((const u8*)a.words + layer * a.word_layer);
    const CkvCertificate* certificates = (const CkvCertificate*)(a.certificates + layer * a.certificate_layer);
    const float* probes = (const float*)((const u8*)a.probes + layer * a.probe_layer);
    const u32* table = (const u32*)((const u8*)a.table + layer * a.table_layer);
    float* peaks = (float*)((u8*)a.peaks + layer * a.peak_layer);
    Head* of = (Head*)shared;
    const auto numbers = [&](u32 block, u32 kv) { return probes + probe_at(block, a.kv_heads, kv, a.levels); };
    const auto word_of = [&](u32 block, u32 head) { return words[((u64)(head / group) * a.stride + block) * group + head % group]; };
    // The level that a block has, of the ladder: a block that the step has filled the first of all.
    u8* level_of = shared + a.heads * sizeof(Head);
    for (u32 b = threadIdx.x; b < a.blocks; b += THREADS) {
        u32 level = 0;
        if (b < a.known) {
            const u32 page = table[b];
            while (level + 1 < a.levels && a.firsts[level + 1] <= page) ++level;
        }
        level_of[b] = (u8)(a.levels - 1 - level);
    }
    sync_threads();

    // What a head's blocks say together. A warp a head.
#pragma unroll 1
    for (u32 h = (u32)warp(); h < a.heads; h += WARPS) {
        const CkvCertificate& c = certificates[h];
        Head head{c.lse * LOG2E, 0.0f, 0.0f, 0.0f, c.norm, c.radius};
        float mass = 0.0f, made = 0.0f, eps = 0.0f, delta = 0.0f, lambda = 0.0f;
#pragma unroll 4
        for (u32 b = (u32)lane(); b < a.known; b += 32) {
            const Told t = told_of(word_of(b, h), head, true);
            const float* n = numbers(b, h / group);
            const float own = n[1 + OF_LEVEL * level_of[b]];
            mass += t.mass;
            if (is_finite(t.mass * n[0])) made += t.mass * n[0];
            if (t.bounds && own > 0.0f) eps += own, delta += t.delta, lambda += t.lambda;
        }
        mass = warp_sum(mass), made = warp_sum(made), eps = warp_sum(eps), delta = warp_sum(delta), lambda = warp_sum(lambda);
        head.rest = mass < 1.0f ? 1.0f - mass : 0.0f;
        for (u32 b = a.known; b < a.blocks; ++b) {
            const float more = head.rest * numbers(b, h / group)[0];
            if (is_finite(more)) made += more;
        }
        if (eps > 0.0f) head.delta = delta / eps, head.lambda = lambda / eps;
        head.norm = fmaxf(head.norm, CANCELLED * made);
        if (lane() == 0) {
            of[h] = head;
            if (!(is_finite(mass) && is_finite(head.total) && is_finite(c.norm) && is_finite(c.radius))) bad = 1;
        }
    }
    sync_threads();
    if (bad) return;
    if (blockIdx.x % ctas == 0 && threadIdx.x == 0) peaks[0] += 1.0f;

    // What each level loses of each block. PARTS neighbours share its KV heads.
    const u32 part = threadIdx.x % PARTS;
#pragma unroll 1
    for (u32 first = blockIdx.x % ctas * EACH; first < a.blocks; first += ctas * EACH) {
        const u32 b = first + threadIdx.x / PARTS;
        const bool is_there = b < a.blocks, is_known = b < a.known;
        const u32 has = is_there ? level_of[b] : 0;
        float sum[MOST_LEVELS];
#pragma unroll
        for (u32 l = 0; l < MOST_LEVELS; ++l) sum[l] = 0.0f;
#pragma unroll 1
        for (u32 kv = part; kv < a.kv_heads && is_there; kv += PARTS) {
            const float* n = numbers(b, kv);
            const float radius = n[0], now = n[1 + OF_LEVEL * has];
            float eps[MOST_LEVELS], eta[MOST_LEVELS], sop[MOST_LEVELS];
#pragma unroll
            for (u32 l = 0; l < MOST_LEVELS; ++l) {
                if (l < a.levels) eps[l] = n[1 + OF_LEVEL * l], eta[l] = n[2 + OF_LEVEL * l], sop[l] = n[3 + OF_LEVEL * l];
            }
#pragma unroll 2
            for (u32 h = kv * group; h < (kv + 1) * group; ++h) {
                const Head head = of[h];
                const Told t = told_of(is_known ? word_of(b, h) : 0, head, is_known);
                const float distance = radius + head.radius;
                const bool own = t.bounds && now > 0.0f;
                const float per_delta = own ? t.delta / now : head.delta, per_lambda = own ? t.lambda / now : head.lambda;
#pragma unroll
                for (u32 l = 0; l < MOST_LEVELS; ++l) {
                    if (l >= a.levels) break;
                    const float delta = per_delta * eps[l], lambda = per_lambda * eps[l];
                    const float g = a.linear ? fminf(t.mass * delta, t.root * lambda) : key_term(t, delta, lambda);
                    const float moved = eta[l] >= 0.0f && sop[l] >= 0.0f ? fminf(product(t.mass, eta[l]), product(t.root, sop[l])) : infinity();
                    const float value = t.mass == 0.0f ? 0.0f : moved;
                    // No block moves an output by more than its distance (5.14).
                    const float term = (fminf(g * distance, distance) + value) / head.norm;
                    float loss = head.norm > 0.0f ? (term < NEVER ? term : NEVER) : 0.0f;
                    // What the level cannot hold, unless it is there without codes.
                    if (!(eps[l] >= 0.0f)) loss = NEVER;
                    if (!(now >= 0.0f) && l == has) loss = 0.0f;
                    sum[l] = fminf(sum[l] + loss, NEVER);
                }
            }
        }
#pragma unroll
        for (u32 l = 0; l < MOST_LEVELS; ++l) {
#pragma unroll
            for (u32 i = 1; i < PARTS; i *= 2) sum[l] += shfl_xor(sum[l], (int)i);
            if (l < a.levels && part == 0 && is_there) {
                float& peak = peaks[PEAK_HEADER + (u64)b * a.levels + l];
                peak = fmaxf(peak, fminf(sum[l], NEVER));
            }
        }
    }
}
