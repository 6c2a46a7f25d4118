// What a block's codes cost each head's bound, math.md (6.5), as a share of what the head may leave; and the buckets of such
// shares, by which the set is chosen.
//
// A share decides what is read, never what is certified: it is computed to a few parts in a hundred, from masses in steps of
// 1/32 octave.
#pragma once
#include "sizes.cuh"

namespace choice {

// Blocks whose loads one thread has in flight together.
constexpr u32 FLIGHT = GROUP <= 4 ? 4 : GROUP <= 8 ? 2 : 1;

// Eight buckets to an octave, straight from a float's bits. The last one is for shares of 1 and more, which cannot be left.
constexpr u32 BUCKETS = 256, LAST = BUCKETS - 1, BUCKET_SHIFT = 20, FIRST_BITS = 127 * 8 - LAST;

CKV_FN u32 bucket_of(u32 share_bits) {
    const u32 k = share_bits >> BUCKET_SHIFT;
    return k <= FIRST_BITS ? 0 : (k - FIRST_BITS < LAST ? k - FIRST_BITS : LAST);
}
// The power of two at or below the shares of a bucket.
CKV_FN float octave_of(u32 bucket) { return u32_as_float((bucket + FIRST_BITS) >> 3 << 23); }

CKV_FN float per_octave(u32 bucket) { return u32_as_float((254 - ((bucket + FIRST_BITS) >> 3)) << 23); }

// One query head's side of the scores.
struct HeadScale {
    float log2_total;  // of the sum of exponentials
    float reach;       // ||O' - c|| + eps: D_b is R_b plus the first, and h_b counts with eps
    float per_target;  // 1 / what may be left
    u32 unused;
};

// A block as the scores need it.
struct Look {
    Vec4 first, second;  // the error summary
    Vec4 third;          // with residuals: what they leave
    u32 masses[GROUP];
};

// Shares of one block: per head for each side, and the bits of the largest.
struct Shares {
    float keys[GROUP], values[GROUP];
    u32 key_bits, value_bits;
};

CKV_FN void load_summary(const u8* at, Look& b) {
    b.first = ldg((const Vec4*)at), b.second = ldg((const Vec4*)(at + 16));
    b.third = REFINABLE ? ldg((const Vec4*)(at + 32)) : Vec4{0, 0, 0, 0};
}

CKV_FN const u8* summary_of(const CkvSelectArgs& a, u32 page, u32 head) {
#if CKV_LEVEL
    const CkvLevel* of = a.levels + a.level_count - 1;
    while (of->first > page) of--;
    return (const u8*)(of->packed + (page - of->first) * of->page_stride + (u64)head * of->head_stride + of->summary);
#endif
    return a.packed + page * a.page_stride + head * a.head_stride + CKV_SUMMARY;
}

CKV_FN void load_masses(const u32* at, u32 (&masses)[GROUP]) {
    if constexpr (GROUP % 4 == 0) {
#pragma unroll
        for (int i = 0; i < (int)GROUP / 4; i++) {
            const Vec4 v = ldg((const Vec4*)at + i);
            masses[4 * i] = v.x, masses[4 * i + 1] = v.y, masses[4 * i + 2] = v.z, masses[4 * i + 3] = v.w;
        }
    } else {
#pragma unroll
        for (u32 h = 0; h < GROUP; h++) masses[h] = ldg(at + h);
    }
}

// Which residuals the pass has read of a block.
CKV_FN u32 looks_of(const CkvSelectArgs& a, u64 at) { return REFINABLE && a.looks ? a.looks[at] : 0; }

CKV_FN float larger(float a, float b) { return float_as_u32(a) > float_as_u32(b) ? a : b; }

// What residuals leave of the key term of a block, as a part of it: at most 1.
CKV_FN float left_of_keys(const Look& b) {
    const float x = larger(u32_as_float(b.third.x) * rcp(u32_as_float(b.first.x)), u32_as_float(b.third.y) * rcp(u32_as_float(b.first.y)));
    return x < 1.0f ? x : 1.0f;
}

// (5.9) from the mass words (attend/certificate.cuh): g_b D_b + eps h_b <= g_b (R_b + ||O' - c|| + eps), and W eta or P sop, whichever is
// less. FINE: what residuals leave of them; the mass words speak of keys as they were read, `looks`.
template <bool FINE> CKV_FN void score(const Look& b, const HeadScale* scales, bool every, u32 looks, Shares& s) {
    const float inf = u32_as_float(0x7f800000u);
    const float kappa = u32_as_float(b.first.x), eps = u32_as_float(b.first.y);
    const float eta = u32_as_float(FINE ? b.third.z : b.second.x), sop = u32_as_float(FINE ? b.third.w : b.second.y);
    const float radius = u32_as_float(b.second.z), left = FINE && !(looks & 1) ? left_of_keys(b) : 1.0f;
    // A side that has no codes has no finite bound.
    const bool force_keys = every || !(kappa < inf && eps < inf), force_values = every || !(eta < inf);
    float most_key = 0.0f, most_value = 0.0f;
#pragma unroll
    for (u32 h = 0; h < GROUP; h++) {
        const HeadScale& scale = scales[h];
        const u32 word = b.masses[h];
        const bool some = word != 0;
        // In steps of 1/64: the block's share of all mass, and G and P as parts of it.
        const float mass = (float)(2 * ((i32)(word >> 17) - 16384)) * 0.015625f - scale.log2_total;
        const float part = (float)((i32)(word >> 5 & 4095u) - 2048) * 0.015625f, even = (float)(word & 31u) * -0.125f;
        s.keys[h] = s.values[h] = 0.0f;
        if (KEYS_CODED && some) {
            s.keys[h] = ex2(mass + part) * ((radius + scale.reach) * scale.per_target) * left;
            most_key = larger(s.keys[h], most_key);
        }
        if (VALUES_CODED && some) {
            const float spread = sop * ex2(even);
            s.values[h] = ex2(mass) * ((spread < eta ? spread : eta) * scale.per_target);
            most_value = larger(s.values[h], most_value);
        }
    }
    s.key_bits = KEYS_CODED ? (force_keys ? 0x7f800000u : float_as_u32(most_key)) : 0;
    s.value_bits = VALUES_CODED ? (force_values ? 0x7f800000u : float_as_u32(most_value)) : 0;
}

}  // namespace choice
