// Which blocks a warp works on: all blocks of a ragged batch in one line, cut evenly.
//
// Entries are sequences (each with all KV heads) or, with a list, single heads. Every CTA sums the entries' blocks by itself:
// lengths are read on the device, so a captured launch stays right while they grow.
#pragma once

struct Tasks {
    const u32* before;  // blocks before entry i * stride
    int samples;
    int stride;
    int entries;
    int heads;          // heads per entry
    int ctas;           // CTAs that have work
    u32 total;
};

CKV_FN u32 entry_head(const CkvAttendArgs& a, int entry) { return a.only ? ldg(a.only + 1 + entry) : (u32)entry * a.kv_heads; }
CKV_FN u32 blocks_of(u32 tokens) { return (tokens + BLOCK - 1) / BLOCK; }
// Row of a sequence of the batch in the tables.
CKV_FN u32 row_of(const CkvAttendArgs& a, u32 seq) { return a.rows ? ldg(a.rows + seq) : seq; }
CKV_FN u32 entry_blocks(const CkvAttendArgs& a, int heads, int entry) {
    return blocks_of(ldg(a.lens + row_of(a, entry_head(a, entry) / a.kv_heads))) * (u32)heads;
}

// Fills `before` (shared, ENTRY_BYTES). All threads of the CTA.
CKV_FN Tasks plan(const CkvAttendArgs& a, u32* before) {
    Tasks t;
    t.before = before;
    t.heads = a.only ? 1 : (int)a.kv_heads;
    t.entries = a.only ? (int)ld_acquire(a.only) : (int)a.seqs;
    t.stride = (t.entries + SAMPLES - 1) / SAMPLES;
    t.samples = t.entries ? (t.entries + t.stride - 1) / t.stride : 0;
    for (int i = threadIdx.x; i < t.samples; i += THREADS) {
        u32 sum = 0;
        for (int e = i * t.stride; e < (i + 1) * t.stride && e < t.entries; e++) sum += entry_blocks(a, t.heads, e);
        before[i + 1] = sum;
    }
    if (threadIdx.x == 0) before[0] = 0;
    sync_threads();
    // One warp turns counts into sums, 32 at a time.
    if (t.samples > 1) {
        if (threadIdx.x < 32) {
            u32 carry = 0;
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
    t.total = before[t.samples];
    const u32 wanted = (t.total + WARPS - 1) / WARPS;
    t.ctas = (int)(wanted < gridDim.x ? wanted : gridDim.x);
    return t;
}

// First block of a CTA's share.
CKV_FN u32 share_start(const Tasks& t, int cta) { return (u32)((u64)cta * t.total / t.ctas); }
// The CTA whose share holds block `at`.
CKV_FN int share_of(const Tasks& t, u32 at) {
    int cta = (int)((u64)at * t.ctas / t.total);
    while (cta > 0 && share_start(t, cta) > at) cta--;
    while (share_start(t, cta + 1) <= at) cta++;
    return cta;
}

// The entry that block `at` belongs to; `start` becomes its first block.
CKV_FN int entry_of(const CkvAttendArgs& a, const Tasks& t, u32 at, u32& start) {
    int low = 0, high = t.samples - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (t.before[middle] <= at) low = middle;
        else high = middle - 1;
    }
    start = t.before[low];
    int e = low * t.stride;
    for (int i = 1; i < t.stride && e + 1 < t.entries; i++) {
        const u32 next = start + entry_blocks(a, t.heads, e);
        if (next > at) break;
        start = next, e++;
    }
    return e;
}

// One head's blocks in the line.
struct Segment {
    u32 head;    // sequence of the batch * kv_heads + head
    u32 row;     // row of the sequence * kv_heads + head
    u32 entry;   // which entry of the launch
    u32 start;   // first block in the line
    u32 blocks;  // the open block included
    u32 tokens;
};

CKV_FN Segment segment_at(const CkvAttendArgs& a, const Tasks& t, u32 at) {
    u32 before;
    const int e = entry_of(a, t, at, before);
    const u32 first = entry_head(a, e);
    Segment s;
    s.entry = (u32)e;
    const u32 row = row_of(a, first / a.kv_heads);
    s.tokens = ldg(a.lens + row);
    s.blocks = blocks_of(s.tokens);
    const u32 h = s.blocks ? (at - before) / s.blocks : 0;
    s.head = first + h;
    s.row = row * a.kv_heads + first % a.kv_heads + h;
    s.start = before + h * s.blocks;
    return s;
}
