// REFINE: the sides of refinable records that a head over tolerance needs more finely than the pass has read them, math.md (6.6), and no more: what
// is known after a pass is the sum of exponentials, the output and its norm, and the term of every block. The correction that follows reads what is
// picked alone (attend/correct.cuh).
#pragma once

#if CKV_KEY_REFINE > 0

namespace choice {

// Shares of one block as it was read, and of what is left of them when all its residuals are.
CKV_FN void look_at(const Look& b, const HeadScale* scales, u32 looks, Shares& s, Shares& left) {
    score<false>(b, scales, false, looks, s);
    score<true>(b, scales, false, looks, left);
    if (!(looks & 2)) return;
#pragma unroll
    for (u32 h = 0; h < GROUP; h++) s.values[h] = left.values[h];
}

// What a side picked brings, per head: its share less what residuals leave. 0 for one that they do not make better.
CKV_FN void gain(float (&share)[GROUP], const float (&left)[GROUP], u32& bits) {
    float most = 0.0f;
#pragma unroll
    for (u32 h = 0; h < GROUP; h++) {
        share[h] = share[h] > left[h] ? share[h] - left[h] : 0.0f;
        most = larger(share[h], most);
    }
    bits = float_as_u32(most);
}

// First look: the histogram of gains. `rest`: what stays when everything is picked, summed over this thread's blocks.
CKV_FN void look_fine(const CkvSelectArgs& a, const Place& p, Work& w, float digits, float (&rest)[GROUP]) {
    for (u32 start = threadIdx.x; start < p.blocks; start += FLIGHT * THREADS) {
        Look b[FLIGHT];
        const u8* summaries[FLIGHT];
#pragma unroll
        for (u32 i = 0; i < FLIGHT; i++) {
            const u32 j = start + i * THREADS;
            summaries[i] = nullptr;
            if (j >= p.blocks) continue;
            summaries[i] = summary_of(a, ldg(a.table + (u64)p.row * a.table_stride + NUMBER(p, j)), p.head);
            load_masses(a.masses + (p.line + NUMBER(p, j)) * GROUP, b[i].masses);
        }
#pragma unroll
        for (u32 i = 0; i < FLIGHT; i++) {
            if (summaries[i] != nullptr) load_summary(summaries[i], b[i]);
        }
#pragma unroll
        for (u32 i = 0; i < FLIGHT; i++) {
            const u32 j = start + i * THREADS;
            if (summaries[i] == nullptr) continue;
            Shares s, left;
            look_at(b[i], w.scales, a.looks[p.line + NUMBER(p, j)], s, left);
#pragma unroll
            for (u32 h = 0; h < GROUP; h++) {
                rest[h] += (left.keys[h] < s.keys[h] ? left.keys[h] : s.keys[h]) + (left.values[h] < s.values[h] ? left.values[h] : s.values[h]);
            }
            gain(s.keys, left.keys, s.key_bits), gain(s.values, left.values, s.value_bits);
            const u32 key = bucket_of(s.key_bits), value = bucket_of(s.value_bits);
            count(w.hist, s.keys, key, digits), count(w.hist, s.values, value, digits);
            // Where more blocks are than are remembered, they are scored again.
            if (j < REMEMBERED) w.blocks[j] = Found{(u8)key, (u8)value, 0, 0};
        }
    }
}

CKV_FN Found found_again(const CkvSelectArgs& a, const Place& p, const Work& w, u32 block) {
    if (block < REMEMBERED) return w.blocks[block];
    Look b;
    Shares s, left;
    load_summary(summary_of(a, ldg(a.table + (u64)p.row * a.table_stride + NUMBER(p, block)), p.head), b);
    load_masses(a.masses + (p.line + NUMBER(p, block)) * GROUP, b.masses);
    look_at(b, w.scales, a.looks[p.line + NUMBER(p, block)], s, left);
    gain(s.keys, left.keys, s.key_bits), gain(s.values, left.values, s.value_bits);
    return Found{(u8)bucket_of(s.key_bits), (u8)bucket_of(s.value_bits), 0, 0};
}

// Writes the blocks with a side at or above the threshold, in their order. All threads of the CTA.
CKV_FN void write_picks(const CkvSelectArgs& a, const Place& p, u32 entry, Work& w, u32 threshold) {
    u32* to = a.picks + (u64)entry * a.table_stride;
    if (threadIdx.x == 0) w.picked = CkvPicked{0, 0, 0, 0};
    for (u32 start = 0; start < p.blocks; start += THREADS) {
        const u32 j = start + threadIdx.x;
        u32 sides = 0;
        if (j < p.blocks) {
            const Found b = found_again(a, p, w, j);
            sides = (b.key >= threshold ? 1u : 0u) | (b.value >= threshold ? 2u : 0u);
        }
        const u32 all = ballot(sides != 0), keys = ballot((sides & 1) != 0), values = ballot((sides & 2) != 0);
        if (lane() == 0) w.before[warp()] = popc(all);
        sync_threads();
        u32 at = w.picked.blocks, total = 0;
        for (u32 i = 0; i < WARPS; i++) {
            at += i < warp() ? w.before[i] : 0;
            total += w.before[i];
        }
        if (sides) {
            // What was read finely stays so.
            const u32 before = a.looks[p.line + NUMBER(p, j)];
            to[at + popc(all & ((1u << lane()) - 1))] = 16 * NUMBER(p, j) + 4 * before + (before | sides);
        }
        sync_threads();
        if (threadIdx.x == 0) w.picked.blocks += total;
        if (lane() == 0) atomic_add(&w.picked.keys, popc(keys)), atomic_add(&w.picked.values, popc(values));
        sync_threads();
    }
}

CKV_FN void pick_head(const CkvSelectArgs& a, const Place& p, u32 entry, const Known& known, Work& w) {
    clear(w.hist);
    if (threadIdx.x == 0) w.every = 0;
    sync_threads();
    if (threadIdx.x < GROUP) scale_of(a, known, w.scales[threadIdx.x], w.every);
    const int digits = digits_of(p.blocks > 0 ? p.blocks : 1);
    sync_threads();
    float rest[GROUP];
#pragma unroll
    for (u32 h = 0; h < GROUP; h++) rest[h] = 0.0f;
    look_fine(a, p, w, power(digits), rest);
    // In a fixed order: what is picked must not depend on that of the threads.
#pragma unroll
    for (u32 h = 0; h < GROUP; h++) {
        const float sum = warp_sum(rest[h]);
        if (lane() == 0) w.left[warp()][h] = sum;
    }
    sync_threads();
    for (u32 h = warp(); h < GROUP; h += WARPS) {
        float least = 0.0f;
        for (u32 i = 0; i < WARPS; i++) least += w.left[i][h];
        const u32 left = buckets_left(w.hist, h, power(-digits), 0.9999f - least);
        // Written so that NaN ends there: not even all residuals will do.
        if (lane() == 0) w.thresholds[h] = least < 0.9999f ? left : 0;
    }
    sync_threads();
    u32 threshold = LAST;
    for (u32 h = 0; h < GROUP; h++) threshold = w.thresholds[h] < threshold ? w.thresholds[h] : threshold;
    const bool hopeless = w.every != 0 || threshold == 0;
    sync_threads();
    write_picks(a, p, entry, w, hopeless ? LAST + 1 : threshold);
    if (threadIdx.x == 0) {
        a.picked[entry] = w.picked;
        if (w.picked.blocks == 0) a.failures[1 + atomic_add(a.failures, 1)] = entry;
        atomic_add(w.stats + STAT_REFINED_KEYS, w.picked.keys), atomic_add(w.stats + STAT_REFINED_VALUES, w.picked.values);
    }
    sync_threads();
}

}  // namespace choice
#endif
