// Residual planes, math.md 2.10: a block whose weights ask for it is read more finely, in the same pass.
//
// What a block adds to the bound is known as soon as its weights are. So the pass itself decides, block by block, from the weights it
// has just computed: no set has to be foreseen, and none is wrong when attention moves. What it needs from elsewhere is how much a
// block may add. An even share of the tolerance is half of 1/blocks for each side; `CkvDemand::kappa` says how many even shares are
// allowed, and learns from step to step. The sum of exponentials is not known before the pass ends. It is taken to be that of a few
// blocks which are scored first (probe) and, for the others, what those that the warp has read so far promise. Whatever is decided
// here, the certificate is that of what was read.
#pragma once

#if CKV_KEY_REFINE > 0

// Bytes of the planes.
constexpr u32 KEY_PLANE = BLOCK * D / 8 * CKV_KEY_REFINE, VALUE_PLANE = BLOCK * D / 8 * CKV_VALUE_REFINE;

// Block k of the warp as it lies in memory.
CKV_FN const u8* stored(const Ring& ring, int k) { return (const u8*)ring.places[k & 63].record; }

// Starts to copy a plane of residuals, at `at` in the record, over codes of the same side, at OVER, which have been read.
template <u32 OVER> CKV_FN void fetch_residuals(const Ring& ring, int k, int slot, u32 at, u32 bytes) {
    syncwarp();
    const u32 to = smem_addr(ring.slots + slot * CKV_RECORD + OVER);
    const u8* from = stored(ring, k) + at;
#if CKV_BULK
    if (lane() == 0) {
        u64* barrier = ring.barriers + STAGES * PARTS;
        barrier_expect(barrier, bytes);
        bulk_load(to, from, bytes, barrier);
    }
#else
    for (u32 i = lane() * 16; i < bytes; i += 512) cp_async16(to + i, from + i);
    cp_async_commit();
#endif
}
CKV_FN void await_residuals(const Ring& ring) {
#if CKV_BULK
    const u32 phase = ring.flights[0].phase;
    barrier_wait(ring.barriers + STAGES * PARTS, phase);
    syncwarp();
    if (lane() == 0) ring.flights[0].phase = phase ^ 1;
#else
    cp_async_wait<0>();
#endif
    syncwarp();
}
#endif

#if CKV_KEY_REFINE > 0 && !CKV_CORRECT

// Blocks that are scored before the others: the open one, the first, the last full ones.
constexpr int PROBES = 6;
// How much of what a warp's blocks promise is believed: a promise kept too seldom is a head over tolerance.
constexpr float OTHERS = 0.7f;
static_assert(LIMIT_BYTES >= (int)sizeof(Limit) * GROUP && PROBES * GROUP <= PARTIAL_STRIDE, "room");

// log2 of the sum of 2^x over the block's tokens, for the lane's two heads of each column tile.
CKV_FN void log2_sum(const Logits& s, const Query& q, float (&sum)[COLUMNS][2]) {
#pragma unroll
    for (int nt = 0; nt < COLUMNS; nt++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float most = largest(s, nt, i);
#pragma unroll
            for (int d = 4; d < 32; d <<= 1) most = fmaxf(most, shfl_xor(most, d));
            float total = 0.0f;
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                total += ex2((s.x[t][nt][i] - most) * q.unit[nt][i]) + ex2((s.x[t][nt][i + 2] - most) * q.unit[nt][i]);
            }
#pragma unroll
            for (int d = 4; d < 32; d <<= 1) total += shfl_xor(total, d);
            // Of a block that a token of a draft sees nothing of there is no largest logit.
            sum[nt][i] = DRAFTED && !(total > 0.0f) ? -u32_as_float(0x7f800000u) : most * q.unit[nt][i] + lg2(total);
        }
    }
}

// The block of probe number i >= 1 of a head of `full` whole blocks that are seen.
CKV_FN u32 probed(u32 full, int i) { return i == 1 ? 0 : full + 1 - (u32)i; }

// Fills `limits` for the head at hand. `room`: GROUP * PROBES words. All threads of the CTA; ends with the CTA in step.
CKV_FN void probe(const CkvAttendArgs& a, const Segment& seg, const Query& q, float* room, Limit* limits) {
    // Of blocks in tails, the last.
    const u32 full = full_blocks(seg), last = DRAFTED && seg.open > BLOCK ? 1 : 0, rows = tail_rows(seg, last);
    const bool guided = a.demands && !a.refine_all;
    // A head a thread, of the warp that has least to probe.
    const int h = (int)threadIdx.x - (THREADS - 32);
    const CkvDemand* demand = demand_of(a, seg, h);
    if (guided && h >= 0 && h < GROUP) prefetch_l2(demand);
#pragma unroll 1
    for (int i = warp(); guided && i < PROBES; i += WARPS) {
        float sum[COLUMNS][2];
#pragma unroll
        for (int nt = 0; nt < COLUMNS; nt++) sum[nt][0] = sum[nt][1] = -u32_as_float(0x7f800000u);
        Logits s;
        clear(s);
        if (i == 0 ? rows > 0 : i == 1 ? full > 0 : full >= (u32)i) {
            bool counts = true;
            if (i == 0) {
                score_originals<0>(tail_of(a, seg, last), q, s);
                mask_rows(s, (int)rows);
                if constexpr (WINDOWED) hide_rows(s, hidden_in_tail(a, seg));
                if constexpr (DRAFTED) hide_unseen<0>(s, unseen_of(a, seg.seq, full + last));
            } else {
                const Seen seen = seen_of(a, seg.tokens);
                const u32 block = seen.number(probed(full, i));
                const u8* record = record_of(a, seg, block);
                KeySums unused;
                // From memory: all of it is asked for at once, and two chunks are in flight.
                if (lane() == 0) bulk_prefetch_l2(record, KEY_PART);
                score_codes<0, BY_CHUNK ? 2 : UNROLL>(record, q, false, s, unused);
                if constexpr (WINDOWED) hide_rows(s, seen.hidden(block));
                if constexpr (DRAFTED) hide_unseen<0>(s, unseen_of(a, seg.seq, block));
                // A side without codes would pass for keys of 0.
                counts = *(const u32*)(record + CKV_SUMMARY + 4) < 0x7f800000u;
            }
            if (counts) log2_sum(s, q, sum);
        }
        const int c4 = lane() & 3;
        if (lane() < 4 && (!PAIRED || c4 < 2)) {
#pragma unroll
            for (int nt = 0; nt < COLUMNS; nt++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    if (8 * nt + 2 * c4 + e < GROUP) room[(8 * nt + 2 * c4 + e) * PROBES + i] = sum[nt][e];
                }
            }
        }
    }
    sync_threads();
    if (h >= 0 && h < GROUP) {
        Limit limit = {0.0f, -u32_as_float(0x7f800000u), 0.0f, 0.0f};
        if (guided) {
            const CkvDemand d = *demand;
            const CkvLimit allowed = limit_of(a, query_head(seg.kv, h));
            const float tolerance = fmaxf(allowed.relative * d.norm, allowed.absolute);
            float most = room[h * PROBES], total = 0.0f;
#pragma unroll 1
            for (int i = 1; i < PROBES; i++) most = fmaxf(most, room[h * PROBES + i]);
#pragma unroll 1
            for (int i = 0; i < PROBES; i++) total += ex2(room[h * PROBES + i] - most);
            // A row without history has kappa 0: everything is refined.
            limit.share = d.kappa * tolerance / (2.0f * (float)full);
            limit.log2_probed = most + lg2(total);
            limit.reach = d.radius + tolerance;
            limit.others = full > PROBES ? OTHERS * (float)(full + 1 - PROBES) : 0.0f;
        }
        limits[h] = limit;
    }
    sync_threads();
}

// Which sides of a block add more than they may to the bound of one of the heads: KEYS, VALUES, as estimates do. A head's numbers are
// in the lane of its row and column, see lot.cuh. `block`: its index; `before`: how many of the head's blocks the warp has read.
CKV_FN u32 wanted(const Aside& aside, const u32* summary, const Query& q, const State& st, const float (&mass)[COLUMNS][4], const KeySums& sums,
                  const Limit* limits, u32 block, u32 before) {
    const int r = lane() >> 2, c4 = lane() & 3;
    const bool mine = c4 == (r & 7) >> 1 && r < GROUP;
    const bool odd = r & 1;
    const float reach = shfl(take_reach(aside, q), r % HEADS), step = shfl(take_step(aside, q), r % HEADS);
    const Limit limit = limits[mine ? r : 0];
    const float w = odd ? mass[0][1] : mass[0][0], p = root_up(odd ? mass[0][3] : mass[0][2]);
    // A warp that began with the head's first block has one among its own that was scored before, and often the largest.
    const float own = block > before * WARPS ? (odd ? st.l[0][1] : st.l[0][0]) + w : 0.0f;
    const float sum = ex2(limit.log2_probed - (odd ? st.m[0][1] : st.m[0][0])) + own * fmaxf(limit.others * rcp((float)(before + 1)), 1.0f);
    const float most = limit.share * sum;
    const float kappa = u32_as_float(summary[0]), eps = u32_as_float(summary[1]), radius = u32_as_float(summary[6]);
    const float delta = reach * eps, lambda = kappa * step * root_up(sums.square[0]);
    const float two = p * lambda, one = w * delta, key = (two < one ? two : one) * (1.0f + 0.5f * delta) * (radius + limit.reach);
    const float spread = p * u32_as_float(summary[5]), even = w * u32_as_float(summary[4]), value = spread < even ? spread : even;
    // Written so that NaN is wanted. Codes that happen to be exact are not made worse.
    const bool finer_keys = u32_as_float(summary[9]) < eps, finer_values = u32_as_float(summary[10]) < u32_as_float(summary[4]);
    return (finer_keys && any(mine && !(key < most)) ? KEYS : 0) | (finer_values && any(mine && !(value < most)) ? VALUES : 0);
}
#endif
