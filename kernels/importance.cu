// ckv_importance: scores of sequences' blocks from the attention that their last step gave them, math.md (9.6) to (9.10), and how far they are from those of
// the last decision (9.15). What SmartKV remembers of a block stays on the device, as a step has a word of every block and query head and a decision comes once in
// many steps.
//
// A CTA of 1024 threads and 12 bytes of shared memory a query head for each layer of a sequence. A block that the step has filled has no words: it shares what
// mass the others leave. A head whose sum is no number attends to nothing.
#include "machine.cuh"
#include "attend/args.cuh"
#include "mass_word.cuh"

constexpr u32 MOST_HEARD = 96;

// A sequence.
struct CkvHeard {
    u32 row;
    u32 place;   // in the batch
    u32 known;   // blocks that have words
    u32 blocks;
    u32 kept;    // blocks that are still those that were seen: none in the first step
    u32 step;    // steps before this one
    u32 looks;   // whether drift is looked at
    u32 unused;
};

struct CkvImportanceArgs {
    const u8* words;             // of the first row in the first layer, [kv_heads][stride][group]: mass_word
    const u8* certificates;      // CkvCertificate[heads] of the first place there
    u8* memory;                  // of the first row: lists of 4 bytes, of which it says where they begin
    u64 word_layer, word_row;    // bytes from a layer's words to the next's, and from a row's
    u64 certificate_layer, certificate_place;
    u64 memory_row;
    u32 concentration;           // float[layers][heads]: (9.8); behind float[layers][2], divergence and percent of blocks that moved, only where it is looked at
    u32 importance;              // float[layers][stride]: (9.6)
    u32 born;                    // u32[layers][stride]: the step in which a block was seen first
    u32 scores;                  // float[layers][stride]
    u32 before;                  // float[layers][stride]: those of the last decision, below 0 of blocks that had none
    u32 heads;
    u32 group;                   // query heads of a KV head
    u32 stride;
    u32 layers;
    u32 count;                   // sequences
    float keep, keep_head, mix;  // shares that stay
    float ln_keep, log2_keep;
    float ageing;                // log2 e over a score's life
    float points;                // percentile points from which a block has moved
    u32 unused;
    CkvHeard of[MOST_HEARD];
};

namespace ckv_importance_of {

constexpr u32 THREADS = 1024, WARPS = THREADS / 32, PARTS = 4;
constexpr float LOG2E = 1.44269504f, LEAST_MEAN = 1e-6f, FLOOR = 1e-6f;

// A block's part of a sum of 2^total.
CKV_FN float share_of(u32 word, float total) {
    const float share = ex2(log2_mass_of(word) - total);
    return word != 0 && share < u32_as_float(0x7f800000u) ? share : 0.0f;
}

// 1 - keep^n, also where that is close to 0.
CKV_FN float gone(float ln, float log2, float n) {
    const float x = ln * n;
    return x > -0.02f ? -x * (1.0f + x * (0.5f + x * (1.0f / 6.0f))) : 1.0f - ex2(log2 * n);
}

// Sum over the CTA, in every thread; `sums` has room for a float a warp.
CKV_FN float cta_sum(float x, float* sums) {
    x = warp_sum(x);
    sync_threads();
    if (lane() == 0) sums[warp()] = x;
    sync_threads();
    float all = 0.0f;
#pragma unroll 8
    for (u32 i = 0; i < WARPS; ++i) all += sums[i];
    return all;
}

// Whether (a, i) comes before (b, j) in the order of scores.
CKV_FN u32 is_before(float a, u32 i, float b, u32 j) { return a < b || (a == b && i < j) ? 1u : 0u; }

// (9.15) of the blocks that had a score at the last decision: the first `kept` of them.
CKV_FN void look(const float* scores, const float* before, u32 kept, float points, float* drift, float* sums) {
    float own[2] = {0.0f, 0.0f}, count = 0.0f;
    for (u32 b = threadIdx.x; b < kept; b += THREADS) {
        if (before[b] < 0.0f) continue;
        own[0] += scores[b] + FLOOR, own[1] += before[b] + FLOOR, count += 1.0f;
    }
    const float now = cta_sum(own[0], sums), then = cta_sum(own[1], sums);
    const u32 n = (u32)cta_sum(count, sums);
    float divergence = 0.0f, moved = 0.0f;
    for (u32 b = threadIdx.x; b < n; b += THREADS) {
        const float mine = scores[b], was = before[b], a = (mine + FLOOR) / now;
        divergence += a * (lg2(a) - lg2((was + FLOOR) / then)) * (1.0f / LOG2E);
        u32 rank = 0, rank_then = 0;
#pragma unroll 8
        for (u32 j = 0; j < n; ++j) rank += is_before(scores[j], j, mine, b), rank_then += is_before(before[j], j, was, b);
        const float apart = rank > rank_then ? (float)(rank - rank_then) : (float)(rank_then - rank);
        moved += 100.0f * apart >= points * (float)(n > 1 ? n - 1 : 1) ? 1.0f : 0.0f;
    }
    divergence = cta_sum(divergence, sums), moved = cta_sum(moved, sums);
    if (threadIdx.x == 0) drift[0] = divergence, drift[1] = n > 0 ? 100.0f * moved / (float)n : 0.0f;
}

}  // namespace ckv_importance_of

extern "C" __global__ void __launch_bounds__(1024, 1) ckv_importance(const __grid_constant__ CkvImportanceArgs a) {
    using namespace ckv_importance_of;
    CKV_DYNAMIC_SHARED(shared);
    CKV_STATIC_SHARED(float sums[32]);
    grid_dependency_wait();
    grid_dependency_launch();
    const u32 layer = blockIdx.x % a.layers;
    const CkvHeard& of = a.of[blockIdx.x / a.layers];
    const u32* words = (const u32*)(a.words + layer * a.word_layer + of.row * a.word_row);
    const CkvCertificate* certificates = (const CkvCertificate*)(a.certificates + layer * a.certificate_layer + of.place * a.certificate_place);
    float* memory = (float*)(a.memory + of.row * a.memory_row);
    const u64 first_block = (u64)layer * a.stride;
    float* concentration = memory + a.concentration + layer * a.heads;
    float* importance = memory + a.importance + first_block;
    u32* born = (u32*)memory + a.born + first_block;
    float* scores = memory + a.scores + first_block;
    float* before = memory + a.before + first_block;
    float *weight = (float*)shared, *total = weight + a.heads, *rest = total + a.heads;

    // How concentrated each head is, and what it leaves to a block without a word. A warp a head.
#pragma unroll 1
    for (u32 h = (u32)warp(); h < a.heads; h += WARPS) {
        const float all = certificates[h].lse * LOG2E;
        const bool is_number = fabsf(all) < u32_as_float(0x7f800000u);
        const u32* own = words + (u64)(h / a.group) * a.stride * a.group + h % a.group;
        float mass = 0.0f, square = 0.0f;
#pragma unroll 8
        for (u32 b = (u32)lane(); b < of.known; b += 32) {
            const float share = is_number ? share_of(own[(u64)b * a.group], all) : 0.0f;
            mass += share, square += share * share;
        }
        mass = warp_sum(mass), square = warp_sum(square);
        if (lane() == 0) {
            const float left = is_number && mass < 1.0f ? 1.0f - mass : 0.0f, was = of.step == 0 ? 1.0f : concentration[h];
            const float c = a.keep_head * was + (1.0f - a.keep_head) * (square + (float)(of.blocks - of.known) * left * left);
            concentration[h] = weight[h] = c;
            rest[h] = left, total[h] = is_number ? all : u32_as_float(0x7f800000u);
        }
    }
    sync_threads();
    float mean = 0.0f;
#pragma unroll 8
    for (u32 h = 0; h < a.heads; ++h) mean += weight[h];
    const float heads = (float)a.heads, per = 1.0f / (mean + LEAST_MEAN * heads);

    // What each block gets, and its score. PARTS neighbours share a block's heads: their words lie side by side.
    const u32 part = threadIdx.x % PARTS;
#pragma unroll 1
    for (u32 first = 0; first < of.blocks; first += THREADS / PARTS) {
        const u32 b = first + threadIdx.x / PARTS;
        const bool is_there = b < of.blocks, is_known = b < of.known, is_new = b >= of.kept;
        float plain = 0.0f, weighed = 0.0f;
#pragma unroll 8
        for (u32 h = part; h < a.heads; h += PARTS) {
            const u32* own = words + ((u64)(h / a.group) * a.stride + b) * a.group;
            const float share = is_known ? share_of(own[h % a.group], total[h]) : rest[h];
            plain += share, weighed += weight[h] * per * share;
        }
#pragma unroll
        for (u32 i = 1; i < PARTS; i *= 2) plain += shfl_xor(plain, (int)i), weighed += shfl_xor(weighed, (int)i);
        if (part == 0 && is_there) {
            const float kept = (is_new ? 0.0f : importance[b]) * a.keep + (1.0f - a.keep) * (plain / heads);
            const u32 seen = is_new ? of.step : born[b];
            importance[b] = kept;
            if (is_new) born[b] = seen, before[b] = -1.0f;
            const float age = (float)(of.step - seen);
            scores[b] = (a.mix * (kept / gone(a.ln_keep, a.log2_keep, age + 1.0f)) + (1.0f - a.mix) * weighed) * ex2(-age * a.ageing);
        }
    }
    if (of.looks) {
        sync_threads();
        look(scores, before, of.kept < of.blocks ? of.kept : of.blocks, a.points, memory + 2 * layer, sums);
    }
}
