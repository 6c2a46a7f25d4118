// Spherical keys, math.md (2.22), for chunks: a head's directions as halves in shared memory, and units of decoded keys from them.
#pragma once
#include "directions.cuh"

#if CKV_KEY == 7
// The head's directions, [group][word][channel]. All threads.
CKV_FN void keep_directions(const CkvExtendArgs& a, const Tile& t, u32* halves) {
    const float* words = ckv_directions::words_of(a.metrics, t.head);
    for (int i = (int)threadIdx.x; i < CKV_METRIC / 2; i += THREADS) halves[i] = h2_pack(ldg(words + 2 * i), ldg(words + 2 * i + 1));
}

// Chunk j of tile t of a record's keys, as key_unit leaves it: a radius, a direction and their product, each rounded to a half.
CKV_FN void direction_unit(const u8* record, const u32* halves, int t, int j, u32 (&h)[8]) {
    using namespace ckv_directions;
    const int channel = 32 * j + 8 * (int)(lane() & 3), group = channel / WIDTH;
    const float scale = h_value(*(const u16*)(record + CKV_KEY_SCALES + 2 * group));
#pragma unroll
    for (int later = 0; later < 2; later++) {
        const Codes codes = codes_of(record + CKV_KEY_CODES, group, (int)(lane() >> 2) + 8 * later);
        const u32 radius = twice(h_rn(scale * codes.radius(t)));
        const Vec4 v = *(const Vec4*)(halves + ((group * WORDS + (int)codes.word(t)) * WIDTH + channel % WIDTH) / 2);
        h[later] = h2_mul(v.x, radius), h[2 + later] = h2_mul(v.y, radius), h[4 + later] = h2_mul(v.z, radius), h[6 + later] = h2_mul(v.w, radius);
    }
}
#endif
