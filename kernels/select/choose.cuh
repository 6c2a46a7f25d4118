// Which blocks of a head are read as originals, or by their residuals, from what the last pass has measured: math.md 6.4 and 6.6.
//
// All threads of a CTA, CHOOSERS of them, take one KV head of a sequence at a time. Records with residual planes have no plan: which of
// those matter is known after the pass over the codes (REFINE). Promoted are only sides of heads that all residuals do not bring under
// their tolerance, in one step, by REPAIR.
#pragma once
#include "select/args.cuh"
#include "select/score.cuh"
#include "window.cuh"
#include "select/threshold.cuh"
#include "select/slots.cuh"
#include "select/work.cuh"
#include "select/refine.cuh"

namespace choice {

// Which sides the row has exactly now.
CKV_FN u32 exact_now(const CkvSelectArgs& a, u32 word) {
    if (word == 0) return 0;
    const CkvSides s = a.sides[word - 1];
    return (s.keys ? 1u : 0u) | (s.values ? 2u : 0u);
}

CKV_FN Shares look_again(const CkvSelectArgs& a, const Place& p, const Work& w, u32 block) {
    const u8* summary = summary_of(a, ldg(a.table + (u64)p.row * a.table_stride + NUMBER(p, block)), p.head);
    Look b;
    Shares s;
    load_summary(summary, b);
    load_masses(a.masses + (p.line + NUMBER(p, block)) * GROUP, b.masses);
    score<REFINABLE>(b, w.scales, w.every != 0, looks_of(a, p.line + NUMBER(p, block)), s);
    return s;
}

// First look: the histogram of shares.
CKV_FN void look(const CkvSelectArgs& a, const Place& p, Work& w, float digits) {
    for (u32 start = threadIdx.x; start < p.blocks; start += FLIGHT * THREADS) {
        Look b[FLIGHT];
        u32 words[FLIGHT];
        const u8* summaries[FLIGHT];
#pragma unroll
        for (u32 i = 0; i < FLIGHT; i++) {
            const u32 j = start + i * THREADS;
            summaries[i] = nullptr;
            words[i] = 0;
            if (j >= p.blocks) continue;
            summaries[i] = summary_of(a, ldg(a.table + (u64)p.row * a.table_stride + NUMBER(p, j)), p.head);
            load_masses(a.masses + (p.line + NUMBER(p, j)) * GROUP, b[i].masses);
            words[i] = a.promoted[p.line + NUMBER(p, j)];
        }
#pragma unroll
        for (u32 i = 0; i < FLIGHT; i++) {
            if (summaries[i] == nullptr) continue;
            load_summary(summaries[i], b[i]);
        }
#pragma unroll
        for (u32 i = 0; i < FLIGHT; i++) {
            const u32 j = start + i * THREADS;
            if (j >= p.blocks) continue;
            Shares s;
            score<REFINABLE>(b[i], w.scales, w.every != 0, looks_of(a, p.line + NUMBER(p, j)), s);
            const u32 key = bucket_of(s.key_bits), value = bucket_of(s.value_bits);
            count(w.hist, s.keys, key, digits);
            count(w.hist, s.values, value, digits);
            if (j < REMEMBERED) w.blocks[j] = Found{(u8)key, (u8)value, (u8)(words[i] != 0), 0};
            if (a.mode == REPAIR) {
                const u32 now = exact_now(a, words[i]);
                if (KEYS_CODED && !(now & 1)) atomic_add(&w.hist.fresh[key], 1);
                if (VALUES_CODED && !(now & 2)) atomic_add(&w.hist.fresh[value], 1);
            }
        }
    }
}

// Second look at a block: its word, and the sides to serve on the list.
CKV_FN void decide(const CkvSelectArgs& a, const Place& p, Work& w, u32 block, u32 threshold, u32 keep) {
    Found b;
    if (block < REMEMBERED) {
        b = w.blocks[block];
    } else {
        const Shares s = look_again(a, p, w, block);
        b = Found{(u8)bucket_of(s.key_bits), (u8)bucket_of(s.value_bits), 1, 0};
    }
    const u32 key = b.key, value = b.value, items = items_of(a);
    const u32 old = b.promoted ? a.promoted[p.line + NUMBER(p, block)] : 0;
    // Protected: both sides are there.
    if (!REFINABLE && old > 2 * items_of(a)) return;
    // What an earlier step lent to refinable records is over.
    const u32 word = REFINABLE ? 0 : old;
    u32 wanted = (KEYS_CODED && key >= threshold ? 1u : 0u) | (VALUES_CODED && value >= threshold ? 2u : 0u);
    if (old == 0 && wanted == 0) return;
    const u32 index = ldg(a.table + (u64)p.row * a.table_stride + NUMBER(p, block)) * a.kv_heads + p.head;
    u32 kept = 0, next;
    if (a.mode == PLAN) {
        if (word != 0) kept = (KEYS_CODED && key >= keep ? 1u : 0u) | (VALUES_CODED && value >= keep ? 2u : 0u);
        next = wanted | kept ? 1 + index : 0;
        // What REPAIR lent is over.
        if (word > items) *place_of(a, 2 * index, true) = 0, *place_of(a, 2 * index + 1, true) = 0;
    } else {
        // What the row has stays; the rest of what is wanted is lent.
        next = REFINABLE && !wanted ? 0 : 1 + items + index;
        if (word != 0) {
            const CkvSides s = a.sides[word - 1];
            if (s.keys) *place_of(a, 2 * index, true) = s.keys, wanted &= ~1u;
            if (s.values) *place_of(a, 2 * index + 1, true) = s.values, wanted &= ~2u;
        }
    }
    if (next != old) a.promoted[p.line + NUMBER(p, block)] = next;
    if (wanted & 1) atomic_add(w.stats + STAT_KEYS, 1);
    if (wanted & 2) atomic_add(w.stats + STAT_VALUES, 1);
    kept |= wanted;
    if (a.mode == PLAN && (kept & 1)) atomic_add(w.stats + STAT_SET_KEYS, 1);
    if (a.mode == PLAN && (kept & 2)) atomic_add(w.stats + STAT_SET_VALUES, 1);
    if (kept & 1) w.list[atomic_add(&w.found, 1)] = 2 * NUMBER(p, block) | (wanted & 1 ? WANTED : 0);
    if (kept & 2) w.list[atomic_add(&w.found, 1)] = (2 * NUMBER(p, block) + 1) | (wanted & 2 ? WANTED : 0);
}

CKV_FN void serve_list(const CkvSelectArgs& a, const Place& p, Work& w, u32 step) {
    for (u32 i = threadIdx.x; i < w.found; i += THREADS) {
        const u32 entry = w.list[i], block = (entry & ~WANTED) >> 1, side = entry & 1;
        const u32 page = ldg(a.table + (u64)p.row * a.table_stride + block);
        const u32 item = (page * a.kv_heads + p.head) * 2 + side;
        const u64 host = host_address(a, p.row, block, p.head, side);
        const CkvSlotPool& pool = side ? a.values : a.keys;
        if (a.mode == PLAN) {
            serve(a, pool, item, host, (entry & WANTED) != 0, step, w.dry + side, w.stats);
        } else {
            lend(a, pool, item, host, step, w.stats);
        }
    }
}

CKV_FN void select_head(const CkvSelectArgs& a, const Place& p, const Known& known, Work& w, u32 step) {
    clear(w.hist);
    if (threadIdx.x == 0) w.every = w.dry[0] = w.dry[1] = w.found = 0;
    sync_threads();
    if (threadIdx.x < GROUP) scale_of(a, known, w.scales[threadIdx.x], w.every);
    const int digits = digits_of(p.blocks);
    sync_threads();
    look(a, p, w, power(digits));
    sync_threads();
    for (u32 h = warp(); h < GROUP; h += WARPS) {
        const u32 left = buckets_left(w.hist, h, power(-digits));
        if (lane() == 0) w.thresholds[h] = left;
    }
    sync_threads();
    if (warp() == 0) {
        u32 threshold = LAST;
        for (u32 h = 0; h < GROUP; h++) threshold = w.thresholds[h] < threshold ? w.thresholds[h] : threshold;
        if (a.mode == REPAIR && !REFINABLE) {
            const u32 least = (p.blocks + a.progress - 1) / a.progress;
            threshold = with_progress(w.hist, threshold, least > 0 ? least : 1);
        }
        if (lane() == 0) w.threshold = threshold;
    }
    sync_threads();
    const u32 threshold = w.threshold;
    // Where nothing has to be fetched, an even share stands for the least worth fetching.
    const u32 least = threshold < LAST ? threshold : bucket_of(float_as_u32(1.0f / (2.0f * (float)p.blocks)));
    const u32 keep = least > KEEP ? least - KEEP : 1;
    for (u32 start = 0; start < p.blocks; start += CHUNK) {
#pragma unroll 1
        for (u32 j = start + threadIdx.x; j < start + CHUNK && j < p.blocks; j += THREADS) decide(a, p, w, j, threshold, keep);
        sync_threads();
        serve_list(a, p, w, step);
        sync_threads();
        if (threadIdx.x == 0) w.found = 0;
        sync_threads();
    }
}

// Before the first head. All threads; a sync comes before what they count.
CKV_FN void begin(Work& w) {
    for (u32 i = threadIdx.x; i < STATS; i += THREADS) w.stats[i] = 0;
}

// Head `entry` % kv_heads of sequence `entry` / kv_heads of the batch.
CKV_FN void choose(const CkvSelectArgs& a, u32 entry, Work& w, u32 step) {
    // Asked for before the row and its length are known.
    Known known = {0.0f, 0.0f, 0.0f, 0};
    if (threadIdx.x < GROUP) {
        const CkvCertificate& c = a.certificates[(u64)entry * GROUP + threadIdx.x];
        known = Known{c.tolerance, c.radius, c.lse, c.status};
    }
    Place p;
    const u32 seq = entry / a.kv_heads;
    p.head = entry % a.kv_heads;
    p.row = a.rows ? a.rows[seq] : seq;
    p.blocks = recorded_blocks(a, a.lens[p.row]);
    if (a.drafts && a.drafts[seq].tail && p.blocks > 0) p.blocks--;
    if (p.blocks > a.table_stride) p.blocks = a.table_stride;
#if CKV_WINDOW
    p.seen = seen_of(a, a.lens[p.row]);
    p.blocks = p.blocks > p.seen.skip ? p.blocks - p.seen.skip : 0;
#endif
    p.line = ((u64)p.row * a.kv_heads + p.head) * a.table_stride;
#if CKV_KEY_REFINE > 0
    if (a.mode == REFINE) return pick_head(a, p, entry, known, w);
#endif
    if (p.blocks > 0) select_head(a, p, known, w, step);
}

// Behind the last head: what was counted is added to the launch's counts. All threads.
CKV_FN void end(const CkvSelectArgs& a, Work& w) {
    sync_threads();
    if (a.stats && threadIdx.x < STATS && w.stats[threadIdx.x]) atomic_add(a.stats + threadIdx.x, w.stats[threadIdx.x]);
}

}  // namespace choice

// The words that a launch sets to zero. All threads of one CTA.
CKV_FN void clear_words(const CkvSelectArgs& a) {
    if (threadIdx.x != 0) return;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (a.clear[i]) *a.clear[i] = 0;
    }
}
