// What a CTA of the select kernel has in shared memory, and what a head of the launch is.
#pragma once

namespace choice {

// Blocks that are remembered between the two looks; those behind are scored again.
constexpr u32 REMEMBERED = 4096;
// Blocks looked at before the sides found are served.
constexpr u32 CHUNK = 1024;
// Bits of a found side beside 2 * number of its block + side.
constexpr u32 WANTED = 0x80000000u;
// Two octaves: a side in the present set stays while its share is at least a quarter of the least that was worth fetching.
constexpr u32 KEEP = 16;

// A block after the first look.
struct alignas(4) Found {
    u8 key, value;  // buckets of its sides
    u8 promoted;    // whether it has a word
    u8 unused;
};

struct Work {
    Histogram hist;
    HeadScale scales[GROUP];
    u32 thresholds[GROUP];
    u32 every;
    u32 threshold;
    u32 dry[2];
    u32 stats[STATS];
    u32 found;
    u32 list[2 * CHUNK];
#if CKV_KEY_REFINE > 0
    float left[WARPS][GROUP];
    u32 before[WARPS];
    CkvPicked picked;
#endif
    Found blocks[REMEMBERED];
};

// A head of the launch.
struct Place {
    u32 head;
    u32 row;
    u32 blocks;  // full ones that are seen
    u64 line;    // of its blocks in `promoted` and `masses`
#if CKV_WINDOW
    Seen seen;
#endif
};

// Number in tables of the j-th of a head's blocks. A macro, so that variants without windows stay as they are to the register.
#if CKV_WINDOW
#define NUMBER(p, j) (p).seen.number(j)
#else
#define NUMBER(p, j) (j)
#endif

// Of a certificate, what the scores need.
struct Known {
    float tolerance, radius, lse;
    u32 status;
};

// What a head of the group may leave, and how its shares are made of the masses; one thread.
CKV_FN void scale_of(const CkvSelectArgs& a, const Known& c, HeadScale& s, u32& every) {
    const float inf = u32_as_float(0x7f800000u);
    const float target = a.target * c.tolerance;
    s.log2_total = c.lse * 1.44269504f;
    s.reach = c.radius + c.tolerance;
    s.per_target = 1.0f / target;
    // Without a sum or a tolerance only what is exact will do. Written so that NaN ends there.
    if (a.mode == REFINE && c.status != 0) {
        // Under its tolerance: nothing is picked for this head.
        s.log2_total = s.reach = s.per_target = 0.0f;
        return;
    }
    if (!(target > 0.0f && fabsf(s.log2_total) < inf && c.radius < inf)) atomic_or(&every, 1);
}

}  // namespace choice
