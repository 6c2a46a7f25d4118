// Units of keys and of values as halves that are multiplied as they are: of the originals, or of what codes stand for, scales and offsets included,
// rounded once.
//
// For a few queries scales are better multiplied into the query (attend/keys.cuh): for the many of a chunk a unit is decoded once for all of
// a CTA's, by one of its warps, and every format is halves in shared memory from here on.
#pragma once

// A bf16 pair as halves: exact, but for what is out of their range, which is seen by its norm (rounding_of_logits).
CKV_FN void as_halves(u32 (&h)[8]) {
#if CKV_STORE == 1
#pragma unroll
    for (int i = 0; i < 8; i++) h[i] = h2_pack(b_lo(h[i]), b_hi(h[i]));
#endif
}

// A unit of originals, whose two halves each other four lanes have in the opposite order: eight lanes then read from as many banks, and write to as many (put_unit).
CKV_FN u32 opposite() { return lane() >> 2 & 1; }
CKV_FN void load_apart(const u8* side, int unit, u32 (&h)[8]) {
    const u8* at = side + unit * 1024 + lane() * 32;
    const Vec4 a = *(const Vec4*)(at + 16 * opposite()), b = *(const Vec4*)(at + 16 - 16 * opposite());
    h[0] = a.x, h[1] = a.y, h[2] = a.z, h[3] = a.w;
    h[4] = b.x, h[5] = b.y, h[6] = b.z, h[7] = b.w;
}

// Scales and offsets of the lane's eight channels of a chunk.
struct KeyScales {
    u32 scale[4], offset[4];
};
CKV_FN void load_key_scales(const u8* record, int j, KeyScales& s) {
#if CKV_KEY == 1
    const u8* at = record + CKV_KEY_SCALES + (32 * j + 8 * (lane() & 3)) * 2;
    const Vec4 v = *(const Vec4*)at, z = *(const Vec4*)(at + 2 * D);
    s.scale[0] = v.x, s.scale[1] = v.y, s.scale[2] = v.z, s.scale[3] = v.w;
    s.offset[0] = z.x, s.offset[1] = z.y, s.offset[2] = z.z, s.offset[3] = z.w;
#endif
}

// Both halves of a register.
CKV_FN u32 twice(u16 x) { return (u32)x | (u32)x << 16; }

// The scale of a group of a block, in both halves, and what load_page leaves multiplied by it: e4m3 codes, which are 256 times too small, first by what they lack, exactly.
// The scale by that could be infinite, as a fixed one may be larger than what its block needs.
CKV_FN u32 page_scale(const u8* scales, int group) { return twice(*(const u16*)(scales + 2 * group)); }
template <int KIND> CKV_FN u32 page_product(u32 code, u32 scale) { return h2_mul(KIND == 1 ? h2_mul(code, h2_const(0x5c00u)) : code, scale); }

// Chunk j of tile t of a record's keys. Registers 0, 2, 4, 6: token lane / 4 of the tile; the others: token lane / 4 + 8. Channels 8 (lane % 4) and on, a
// pair for two registers each; originals as load_apart leaves them. `table`: what keep_directions leaves.
#if CKV_KEY == 7
CKV_FN void direction_unit(const u8* record, const u32* halves, int t, int j, u32 (&h)[8]);
#endif
CKV_FN void key_unit(const u8* record, const u32* table, int t, int j, u32 (&h)[8]) {
#if CKV_KEY == 1
    KeyScales s;
    load_key_scales(record, j, s);
    load_codes<CKV_KEY_BITS, 1u << (CKV_KEY_BITS - 1)>(record + CKV_KEY_CODES, t * CHUNKS + j, h);
#pragma unroll
    for (int i = 0; i < 8; i++) h[i] = h2_fma(h[i], s.scale[i / 2], s.offset[i / 2]);
#elif CKV_KEY == 7
    direction_unit(record, table, t, j, h);
#elif CKV_KEY >= 4
    load_page<CKV_KEY - 4, CKV_KEY_BITS>(record + CKV_KEY_CODES, t * CHUNKS + j, h);
    const u32 scale = page_scale(record + CKV_KEY_SCALES, 32 * j / CKV_KEY_GROUP);
#pragma unroll
    for (int i = 0; i < 8; i++) h[i] = page_product<CKV_KEY - 4>(h[i], scale);
#elif CKV_GROUPED
    // Never asked for: decode_groups.
#elif CKV_KEY == 2 || CKV_KEY == 3
#if CKV_KEY == 2
    load_codes<CKV_KEY_BITS, 1u << (CKV_KEY_BITS - 1)>(record + CKV_KEY_CODES, t * CHUNKS + j, h);
    const int group = 32 * j / CKV_KEY_GROUP;
#else
    constexpr auto LEVELS = key_levels();
    load_levels<CKV_KEY_BITS, 0>(record + CKV_KEY_CODES, t * CHUNKS + j, LEVELS, h);
    const int group = 0;
#endif
    const u8* at = record + CKV_KEY_SCALES + (group * BLOCK + 16 * t + (lane() >> 2)) * 2;
    const u32 first = twice(*(const u16*)at), second = twice(*(const u16*)(at + 16));
#pragma unroll
    for (int i = 0; i < 8; i++) h[i] = h2_mul(h[i], i & 1 ? second : first);
#else
    load_apart(record + CKV_KEY_CODES, t * CHUNKS + j, h);
    as_halves(h);
#endif
}

// Chunk j of tile t of a record's values. Registers 0, 1, 4, 5: tokens 2 (lane % 4) and the next of the tile; the others: 8 tokens on. Channels 16 (i / 4) +
// 8 (i % 2) + lane / 4.
CKV_FN void value_unit(const u8* record, int t, int j, u32 (&h)[8]) {
    const int token = 16 * t + 2 * (int)(lane() & 3);
#if CKV_VALUE == 1
    constexpr int GROUPS = D / CKV_VALUE_GROUP;
    load_codes<CKV_VALUE_BITS, 0>(record + CKV_VALUE_CODES, t * CHUNKS + j, h);
    const u8* scales = record + CKV_VALUE_SCALES;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int group = (32 * j + 16 * e) / CKV_VALUE_GROUP;
#pragma unroll
        for (int later = 0; later < 2; later++) {
            const u8* at = scales + (group * BLOCK + token + 8 * later) * 2;
            const u32 scale = *(const u32*)at, offset = *(const u32*)(at + 2 * BLOCK * GROUPS);
#pragma unroll
            for (int i = 4 * e + 2 * later; i < 4 * e + 2 * later + 2; i++) h[i] = h2_fma(h[i], scale, offset);
        }
    }
#elif CKV_VALUE == 2
    constexpr auto LEVELS = value_levels();
    load_levels<CKV_VALUE_BITS, 0>(record + CKV_VALUE_CODES, t * CHUNKS + j, LEVELS, h);
    const u8* at = record + CKV_VALUE_SCALES + token * 2;
    const u32 first = *(const u32*)at, second = *(const u32*)(at + 16);
#pragma unroll
    for (int i = 0; i < 8; i++) h[i] = h2_mul(h[i], i & 2 ? second : first);
#elif CKV_VALUE == 6
    load_codes<CKV_VALUE_BITS, 1u << (CKV_VALUE_BITS - 1)>(record + CKV_VALUE_CODES, t * CHUNKS + j, h);
    const u32* pairs = (const u32*)(record + CKV_VALUE_SCALES) + 32 * j + (lane() >> 2);
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const u32 pair = pairs[8 * e], scale = prmt(pair, pair, 0x1010), offset = prmt(pair, pair, 0x3232);
#pragma unroll
        for (int i = 0; i < 2; i++) h[4 * (e / 2) + e % 2 + 2 * i] = h2_fma(h[4 * (e / 2) + e % 2 + 2 * i], scale, offset);
    }
#elif CKV_VALUE >= 3
    load_page<CKV_VALUE - 3, CKV_VALUE_BITS>(record + CKV_VALUE_CODES, t * CHUNKS + j, h);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const u32 scale = page_scale(record + CKV_VALUE_SCALES, (32 * j + 16 * e) / CKV_VALUE_GROUP);
#pragma unroll
        for (int i = 4 * e; i < 4 * e + 4; i++) h[i] = page_product<CKV_VALUE - 3>(h[i], scale);
    }
#else
    load_apart(record + CKV_VALUE_CODES, t * CHUNKS + j, h);
    as_halves(h);
#endif
}

// The same of a block of originals. Values of rows from `rows` on were never written: not numbers to be multiplied, not even by zero.
CKV_FN void key_rows(const u8* block, int t, int j, u32 (&h)[8]) {
    load_apart(block, t * CHUNKS + j, h);
    as_halves(h);
}
CKV_FN void value_rows(const u8* block, int t, int j, int rows, u32 (&h)[8]) {
    load_apart(block + SIDE_BYTES, t * CHUNKS + j, h);
    as_halves(h);
    if (rows >= BLOCK) return;
    const int left = rows - 16 * t - 2 * (int)(lane() & 3);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int token = i & 2 ? 8 : 0;
        h[i] &= left > token + 1 ? 0xffffffffu : left > token ? 0x0000ffffu : 0u;
    }
}

// Operands: of each unit first registers 0..3 of all lanes, then the others, so that eight lanes write and read as many banks; in the order of two products.
CKV_FN void put_operands(u8* side, int unit, int e, u32 h0, u32 h1, u32 h2, u32 h3) {
    *(Vec4*)(side + unit * 1024 + e * 512 + lane() * 16) = Vec4{h0, h2, h1, h3};
}
// ORIGINAL: as load_apart leaves it.
template <bool ORIGINAL> CKV_FN void put_unit(u8* side, int unit, const u32 (&h)[8]) {
    const int first = ORIGINAL ? (int)opposite() : 0;
    put_operands(side, unit, first, h[0], h[1], h[2], h[3]);
    put_operands(side, unit, 1 - first, h[4], h[5], h[6], h[7]);
}
CKV_FN Vec4 operands_at(const u8* side, int unit, int e) { return *(const Vec4*)(side + unit * 1024 + e * 512 + lane() * 16); }

// The sides of PART tiles of a block.
struct Operands {
    const u8* keys;
    const u8* values;
};

#if CKV_GROUPED
CKV_FN void decode_groups(const u8* record, const u32* table, int part, u8* keys);
#endif

// Calls read(unit, h) and then puts what that left for the warp's share of the units of a side, a few at a time. ORIGINAL: in the place of what they are read from.
template <bool ORIGINAL, class Read>
CKV_FN void make_operands(u8* side, const Read& read) {
    constexpr int UNITS = PART * CHUNKS, AT_ONCE = UNITS < 2 * WARPS || (GROUPED && ORIGINAL) ? 1 : 2, IN_A_ROW = ORIGINAL ? 1 : UNITS;
#pragma unroll IN_A_ROW
    for (int first = 0; first < UNITS; first += AT_ONCE * WARPS) {
        u32 h[AT_ONCE][8];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int unit = first + i * WARPS + (int)warp();
            if (UNITS % (AT_ONCE * WARPS) == 0 || unit < UNITS) read(unit, h[i]);
        }
        if constexpr (ORIGINAL) syncwarp();
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int unit = first + i * WARPS + (int)warp();
            if (UNITS % (AT_ONCE * WARPS) == 0 || unit < UNITS) put_unit<ORIGINAL>(side, unit, h[i]);
        }
    }
}

// Makes operands of tiles part .. part + PART of the block in `slot`: CODED of a record, whose codes are decoded to `decoded`, else of a block of originals with `rows`
// rows. Originals become operands in their place. All warps, a share each; a barrier comes before and behind.
template <bool CODED>
CKV_FN Operands decode(u8* slot, u8* decoded, const u32* table, int part, int rows) {
    const int before = part * CHUNKS * 1024;
    u8* keys = !CODED ? slot + before : KEYS_CODED ? decoded : slot + CKV_KEY_CODES + before;
    u8* values = !CODED ? slot + SIDE_BYTES + before : VALUES_CODED ? decoded + (KEYS_CODED ? PART * CHUNKS * 1024 : 0) : slot + CKV_VALUE_CODES + before;
#if CKV_GROUPED
    if constexpr (CODED) decode_groups(slot, table, part, keys);
#endif
    if constexpr (!CODED || !GROUPED) {
        make_operands<!CODED || !KEYS_CODED>(keys, [=](int unit, u32 (&h)[8]) {
            if constexpr (CODED) key_unit(slot, table, part + unit / CHUNKS, unit % CHUNKS, h);
            else key_rows(slot, part + unit / CHUNKS, unit % CHUNKS, h);
        });
    }
    make_operands<!CODED || !VALUES_CODED>(values, [=](int unit, u32 (&h)[8]) {
        if constexpr (CODED) value_unit(slot, part + unit / CHUNKS, unit % CHUNKS, h);
        else value_rows(slot, part + unit / CHUNKS, unit % CHUNKS, rows, h);
    });
    return Operands{keys, values};
}
