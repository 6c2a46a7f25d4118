// Which blocks a warp works on: all blocks of a ragged batch in one line, cut evenly. A head costs some blocks more than it has.
//
// Entries are sequences (each with all KV heads) or, with a list, single heads in their order. Every CTA sums the entries' blocks by
// itself: lengths are read on the device, so a captured launch stays right while they grow.
#pragma once

struct Tasks {
    const u32* before;  // blocks before entry i * stride
    int samples;
    int stride;
    int entries;
    u32 heads;          // heads per entry
    u32 ctas;           // CTAs that have work
    u32 total;
    u32 share, more;    // cost per CTA; the first `more` CTAs have one more
    u32 alike;          // blocks of every head if all have as many and shares end where heads do, else 0
    u32 per;            // then: CTAs per head, or heads per CTA
    bool apart;         // then: whether every CTA has whole heads
};

// A sequence of the batch, its row in the tables, and its length.
struct Sequence {
    u32 seq, row, tokens;
    u32 filled;  // of a level: whether the last of its blocks lies in a tail, full
};

// The heads listed, in their order: see order_list.
CKV_FN u32* order_of(const CkvAttendArgs& a) { return a.only + 1 + a.seqs * a.kv_heads; }

// Blocks in the line of a sequence of so many tokens; a correction's are counted as they were picked.
CKV_FN u32 blocks_of(const CkvAttendArgs& a, u32 tokens) {
    const u32 all = (tokens + BLOCK - 1) / BLOCK;
    return WINDOWED && !CORRECTS ? all - seen_of(a, tokens).skip : all;
}

// The sequence of an entry; `head`: the entry's head, 0 for a whole sequence.
CKV_FN Sequence sequence_of(const CkvAttendArgs& a, int entry, u32& head) {
    Sequence s = {(u32)entry, 0, 0, 0};
    head = 0;
    if (a.only) {
        const u32 id = order_of(a)[entry];
        s.seq = id / a.kv_heads;
        head = id - s.seq * a.kv_heads;
    }
    s.row = a.rows ? ldg(a.rows + s.seq) : s.seq;
    // A correction's line is that of the blocks picked; it goes over a list of heads.
    s.tokens = CORRECTS ? BLOCK * a.picked[s.seq * a.kv_heads + head].blocks : ldg(a.lens + s.row);
    if constexpr (LEVELLED) s.filled = s.tokens & 1, s.tokens >>= 1;
    return s;
}

// Blocks per warp in whose time a CTA ends a head: it merges, and begins anew.
constexpr u32 SWITCH = 2;
// What a head costs beside its blocks.
constexpr u32 HEAD_COST = SWITCH * WARPS;

// Cuts the line into shares. Where all `heads` are alike, `alike` blocks each, shares that end with heads (a whole number of CTAs per head, or of
// heads per CTA) are taken if the idle rest of the grid costs less than the switches. No more CTAs than give every warp a block. Few divisions:
// every CTA waits for all of them before it knows its first block.
CKV_FN void cut(Tasks& t, u32 heads, u32 alike, u32 grid) {
    const u32 full = (t.total + WARPS - 1) / WARPS;
    t.ctas = full < grid ? full : grid;
    t.alike = 0;
    t.per = 1;
    t.apart = heads > t.ctas;
    if (alike) {
        u32 even, most_blocks;
        if (heads <= grid) {
            const u32 each = (alike + WARPS - 1) / WARPS, most = grid / heads;
            t.per = each < most ? each : most;
            even = heads * t.per;
            most_blocks = alike <= HEAD_COST ? alike : (alike + t.per - 1) / t.per;
        } else {
            t.per = (heads + grid - 1) / grid;
            even = (heads + t.per - 1) / t.per;
            most_blocks = alike * t.per;
        }
        // At most as many as the largest even share, and HEAD_COST.
        if (most_blocks <= HEAD_COST || (u64)(most_blocks - HEAD_COST - 1) * t.ctas < t.total) t.ctas = even, t.alike = alike, t.apart = heads > even || t.per == 1;
    }
    if (t.alike) return;
    const u32 cost = t.total + heads * HEAD_COST;
    t.share = cost / t.ctas;
    t.more = cost - t.share * t.ctas;
}

// Writes the heads listed in their order, and returns how many they are. A list is in the order in which CTAs ended, and where the line is
// cut, and so how sums round, must not depend on that. Every CTA does it for itself and writes the same words. `bits`: shared, SAMPLES
// words. All threads of the CTA.
CKV_APART int order_list(const CkvAttendArgs& a, u32* bits) {
    const u32 listed = ld_acquire(a.only), heads = a.seqs * a.kv_heads;
    u32* order = order_of(a);
    u32 found = 0;
#pragma unroll 1
    for (u32 first = 0; listed && first < heads; first += 32 * SAMPLES) {
        const u32 left = (heads - first + 31) / 32, words = left < SAMPLES ? left : SAMPLES;
        for (u32 i = threadIdx.x; i < words; i += THREADS) bits[i] = 0;
        sync_threads();
#pragma unroll 1
        for (u32 i = threadIdx.x; i < listed; i += THREADS) {
            const u32 at = a.only[1 + i] - first;
            if (at < 32 * words) atomic_or(bits + at / 32, 1u << at % 32);
        }
        sync_threads();
#pragma unroll 1
        for (u32 i = threadIdx.x; i < words; i += THREADS) {
            u32 at = found;
#pragma unroll 4
            for (u32 j = 0; j < i; j++) at += popc(bits[j]);
#pragma unroll 1
            for (u32 rest = bits[i]; rest; rest &= rest - 1) order[at++] = first + 32 * i + popc((rest & (0u - rest)) - 1);
        }
#pragma unroll 4
        for (u32 j = 0; j < words; j++) found += popc(bits[j]);
        sync_threads();
    }
    return (int)found;
}

// Blocks before each of at most 32 sequences, and how many each of their heads has, or 0 if they differ. One warp; all threads of the CTA wait for it.
CKV_FN void plan_few(const CkvAttendArgs& a, u32* before, u32* alike) {
    if (threadIdx.x < 32) {
        u32 head;
        const bool there = lane() < a.seqs;
        const u32 blocks = there ? blocks_of(a, sequence_of(a, (int)lane(), head).tokens) : 0;
        const u32 first = shfl(blocks, 0);
        const bool differs = warp_any(there && blocks != first);
        u32 sum = blocks * a.kv_heads;
#pragma unroll
        for (int d = 1; d < 32; d <<= 1) {
            const u32 y = shfl(sum, (int)lane() - d);
            if ((int)lane() >= d) sum += y;
        }
        before[lane() + 1] = sum;
        if (lane() == 0) before[0] = 0, *alike = differs ? 0 : blocks;
    }
    sync_threads();
}

// Cuts the line whose entries are summed; `alike`: blocks of every head, or 0.
CKV_FN Tasks cut_all(const CkvAttendArgs& a, Tasks t, u32 alike) {
    t.total = t.before[t.samples];
    t.ctas = 0;
    if (t.total) cut(t, (u32)t.entries * t.heads, alike, ctas_of_pass(a));
    return t;
}

// Fills `before` (shared, ENTRY_BYTES). All threads of the CTA.
CKV_FN Tasks plan(const CkvAttendArgs& a, u32* before) {
    Tasks t;
    t.before = before;
    t.heads = a.only ? 1 : a.kv_heads;
    t.entries = a.only ? order_list(a, before) : (int)a.seqs;
    t.stride = (t.entries + SAMPLES - 1) / SAMPLES;
    t.samples = t.stride > 1 ? (t.entries + t.stride - 1) / t.stride : t.entries;
    // Words behind the sums.
    u32 *uneven = before + SAMPLES + 1, *alike = before + SAMPLES + 2;
    if (!a.only && a.seqs <= 32) {
        plan_few(a, before, alike);
        return cut_all(a, t, *alike);
    }
    if (threadIdx.x == 0) before[0] = 0, *uneven = 0;
    sync_threads();
    for (int i = threadIdx.x; i < t.samples; i += THREADS) {
        u32 sum = 0, head, last = 0;
#pragma unroll 1
        for (int e = i * t.stride; e < (i + 1) * t.stride && e < t.entries; e++) {
            const u32 blocks = blocks_of(a, sequence_of(a, e, head).tokens);
            if (e > i * t.stride && blocks != last) *uneven = 1;
            last = blocks;
            sum += blocks * t.heads;
        }
        before[i + 1] = sum;
        // The sums of alike entries are alike too, but for the last sample's.
        if (i && blocks_of(a, sequence_of(a, 0, head).tokens) != last) *uneven = 1;
    }
    sync_threads();
    // One warp turns counts into sums, 32 at a time.
    if (t.samples > 1) {
        if (threadIdx.x < 32) {
            u32 carry = 0;
#pragma unroll 1
            for (int i = 0; i < t.samples; i += 32) {
                const int at = i + (int)lane();
                u32 x = at < t.samples ? before[at + 1] : 0;
#pragma unroll
                for (int d = 1; d < 32; d <<= 1) {
                    const u32 y = shfl(x, (int)lane() - d);
                    if ((int)lane() >= d) x += y;
                }
                x += carry;
                if (at < t.samples) before[at + 1] = x;
                carry = shfl(x, 31);
            }
        }
        sync_threads();
    }
    return cut_all(a, t, !t.entries || *uneven ? 0 : before[1] / (t.heads * (u32)t.stride));
}

// Where a CTA's share begins on the line of costs, on which block `at` of head number n lies at `at + (n + 1) HEAD_COST`.
CKV_FN u32 cost_start(const Tasks& t, u32 cta) { return cta * t.share + (cta < t.more ? cta : t.more); }

// The entry that holds place `at` of a line on which every head of a launch takes `each` places beside its blocks.
struct Entry {
    Sequence sequence;
    int index;
    u32 head;    // its first head
    u32 blocks;  // of a head, the open one included
    u32 before;  // blocks of the entries before it
};

CKV_FN Entry entry_at(const CkvAttendArgs& a, const Tasks& t, u32 at, u32 each) {
    each *= t.heads;
    int low = 0, high = t.samples - 1;
#pragma unroll 1
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (t.before[middle] + (u32)(middle * t.stride) * each <= at) low = middle;
        else high = middle - 1;
    }
    Entry e;
    e.index = low * t.stride;
    e.before = t.before[low];
    e.sequence = sequence_of(a, e.index, e.head);
    e.blocks = blocks_of(a, e.sequence.tokens);
#pragma unroll 1
    for (int i = 1; i < t.stride && e.before + e.blocks * t.heads + (u32)(e.index + 1) * each <= at; i++) {
        e.before += e.blocks * t.heads;
        e.sequence = sequence_of(a, ++e.index, e.head);
        e.blocks = blocks_of(a, e.sequence.tokens);
    }
    return e;
}

// First block of a CTA's share. A share may be empty: it lies within the cost of a head.
CKV_FN u32 share_start(const CkvAttendArgs& a, const Tasks& t, u32 cta) {
    if (cta >= t.ctas) return t.total;
    if (t.alike) {
        if (t.apart) return cta * t.per * t.alike;
        const u32 head = cta / t.per;
        return head * t.alike + (cta - head * t.per) * t.alike / t.per;
    }
    const u32 at = cost_start(t, cta);
    const Entry e = entry_at(a, t, at, HEAD_COST);
    const u32 cost = e.blocks + HEAD_COST, into = at - e.before - (u32)e.index * t.heads * HEAD_COST;
    const u32 h = into / cost, rest = into - h * cost;
    return e.before + h * e.blocks + (rest > HEAD_COST ? rest - HEAD_COST : 0);
}

// Where the share of a CTA begins and where it ends. Every warp of the CTA; two lanes look.
CKV_FN void share_of_cta(const CkvAttendArgs& a, const Tasks& t, u32 cta, u32& lo, u32& hi) {
    const u32 start = share_start(a, t, cta + (lane() & 1));
    lo = shfl(start, 0), hi = shfl(start, 1);
}

// The CTA whose share holds block `at` of head number `head` of the launch.
CKV_FN u32 share_of(const Tasks& t, u32 at, u32 head) {
    if (t.alike) {
        if (t.apart) return head / t.per;
        return head * t.per + ((at - head * t.alike + 1) * t.per - 1) / t.alike;
    }
    const u32 cost = at + (head + 1) * HEAD_COST;
    const u32 large = t.more * (t.share + 1), size = cost < large ? t.share + 1 : t.share;
    return (cost < large ? cost : cost - large) / size + (cost < large ? 0 : t.more);
}

// One head's blocks in the line.
struct Segment {
    u32 head;    // sequence of the batch * kv_heads + head
    u32 seq;     // sequence of the batch
    u32 row;     // row of the sequence in the tables
    u32 kv;      // head of the sequence
    u32 entry;   // which entry of the launch
    u32 number;  // which head of the launch
    u32 start;   // first block in the line
    u32 blocks;  // the open block included
    u32 tokens;
    u32 open;    // rows that lie in tails: of the open block, 0 for none; and of the one before it, where a draft has filled that
};
// Its blocks that lie in tails.
CKV_FN u32 tails_of(const Segment& seg) { return DRAFTED ? (seg.open + BLOCK - 1) / BLOCK : seg.open ? 1u : 0u; }
// Those that have records.
CKV_FN u32 full_blocks(const Segment& seg) { return seg.blocks - tails_of(seg); }
// Rows of the `which`-th block in a tail.
CKV_FN u32 tail_rows(const Segment& seg, u32 which) {
    if constexpr (!DRAFTED) return seg.open;
    const u32 left = seg.open - which * BLOCK;
    return left < BLOCK ? left : BLOCK;
}

// The segment that holds block `at`.
CKV_FN Segment segment_at(const CkvAttendArgs& a, const Tasks& t, u32 at) {
    const Entry e = entry_at(a, t, at, 0);
    const u32 h = e.blocks ? (at - e.before) / e.blocks : 0;
    Segment s;
    s.blocks = e.blocks;
    s.tokens = e.sequence.tokens;
    s.open = CORRECTS ? 0 : LEVELLED ? (e.sequence.filled ? (u32)BLOCK : s.tokens % BLOCK) : open_rows(a, s.tokens);
    s.seq = e.sequence.seq;
    s.row = e.sequence.row;
    if (DRAFTED && !CORRECTS && draft_of(a, s.seq).tail) s.open += BLOCK;
    s.kv = e.head + h;
    s.entry = (u32)e.index;
    s.number = (u32)e.index * t.heads + h;
    s.head = s.seq * a.kv_heads + s.kv;
    s.start = e.before + h * e.blocks;
    return s;
}
