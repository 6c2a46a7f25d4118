// Scales and offsets of a staged side: per channel, per token and group, or one per group. Twins of channel8.rs, affine.rs, token_sym.rs and page_scale.rs.
//
// Included by pack.cuh, behind what it has staged.
#pragma once

namespace ckv_encode {

// Scales per channel, (2.1), (2.2). Returns OVERFLOW if one does not fit.
template <bool KEY> CKV_FN u32 channel_scales(const Work& w, u8* section) {
    constexpr int META = KEY ? CKV_KEY_META : F16;
    constexpr u32 PAIRS = DIM / 2, PARTS = THREADS / PAIRS;
    float* ranges = (float*)w.errors;
    const u32 pair = threadIdx.x % PAIRS, part = threadIdx.x / PAIRS;
    if (part < PARTS) {
        const float inf = u32_as_float(0x7f800000u);
        float lo[2] = {inf, inf}, hi[2] = {-inf, -inf};
        for (u32 t = part; t < BLOCK; t += PARTS) {
            const u32 two = *(const u32*)(w.raw + t * ROW + 2 * pair);
            const float x = original<STORE>((u16)(two & 0xffffu)), y = original<STORE>((u16)(two >> 16));
            lo[0] = least(lo[0], x), hi[0] = most(hi[0], x);
            lo[1] = least(lo[1], y), hi[1] = most(hi[1], y);
        }
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            ranges[(2 * part) * DIM + 2 * pair + i] = lo[i];
            ranges[(2 * part + 1) * DIM + 2 * pair + i] = hi[i];
        }
    }
    sync_threads();
    u32 bad = 0;
    if (threadIdx.x < DIM) {
        const u32 c = threadIdx.x;
        float lo = ranges[c], hi = ranges[DIM + c];
        for (u32 p = 1; p < PARTS; ++p) {
            lo = least(lo, ranges[2 * p * DIM + c]);
            hi = most(hi, ranges[(2 * p + 1) * DIM + c]);
        }
        double sigma, z;
        if (Channel<KEY ? KEY_BITS : VALUE_BITS>::template scales<META>((double)lo, (double)hi, sigma, z)) {
            // Those of a value's channel are read together.
            store_scale<META>(section, KEY ? c : 2 * c, sigma);
            store_scale<META>(section, KEY ? DIM + c : 2 * c + 1, z);
            put_step(w, c, sigma, z);
        } else {
            bad = OVERFLOW;
        }
    }
    return bad;
}

// Scales per token and group, (2.4), (2.5) or (2.7). Returns OVERFLOW if one does not fit.
template <bool KEY> CKV_FN u32 token_scales(const Work& w, u8* section) {
    constexpr u32 GROUP = KEY ? KEY_GROUP : VALUE_GROUP, GROUPS = DIM / GROUP;
    float* lows = (float*)w.errors;
    float* highs = lows + BLOCK * PIECES;
    for (u32 i = threadIdx.x; i < BLOCK * PIECES; i += THREADS) {
        const u32 t = i % BLOCK, piece = i / BLOCK;
        const u32* two = (const u32*)(w.raw + t * ROW + piece * PIECE);
        float lo = original<STORE>((u16)(two[0] & 0xffffu)), hi = lo;
#pragma unroll
        for (u32 j = 0; j < PIECE / 2; ++j) {
            const float x = original<STORE>((u16)(two[j] & 0xffffu)), y = original<STORE>((u16)(two[j] >> 16));
            lo = least(least(lo, x), y);
            hi = most(most(hi, x), y);
        }
        lows[i] = lo;
        highs[i] = hi;
    }
    sync_threads();
    u32 bad = 0;
    for (u32 i = threadIdx.x; i < BLOCK * GROUPS; i += THREADS) {
        const u32 t = i % BLOCK, group = i / BLOCK, first = group * (GROUP / PIECE) * BLOCK + t;
        float lo = lows[first], hi = highs[first];
        for (u32 j = 1; j < GROUP / PIECE; ++j) {
            lo = least(lo, lows[first + j * BLOCK]);
            hi = most(hi, highs[first + j * BLOCK]);
        }
        double scale, offset = 0.0;
        bool fits;
        if (KEY) {
            fits = TokenSym<KEY_BITS>::scale((double)most(most(-lo, hi), 0.0f), scale);
        } else {
            fits = Affine<VALUE_BITS>::scales((double)lo, (double)hi, scale, offset);
        }
        if (fits) {
            store_scale<F16>(section, i, scale);
            if (!KEY) store_scale<F16>(section, BLOCK * GROUPS + i, offset);
            put_step(w, i, scale, offset);
        } else {
            bad = OVERFLOW;
        }
    }
    return bad;
}

// Elements of a group beyond the last level of a scale, added to the count. A warp.
template <bool KEY> CKV_FN void count_beyond(const Work& w, u32 group, double last, u64* count) {
    constexpr u32 GROUP = KEY ? KEY_GROUP : VALUE_GROUP;
    u32 n = 0;
    for (u32 i = lane(); i < GROUP * BLOCK; i += 32) {
        n += magnitude((double)original<STORE>(w.raw[i % BLOCK * ROW + group * GROUP + i / BLOCK])) > last ? 1 : 0;
    }
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) n += shfl_xor(n, d);
    if (lane() == 0 && count != nullptr) add_long(count, n);
}

// One scale per group, (2.9a). Returns OVERFLOW if one does not fit. `widest`: see unit_of.
template <bool KEY> CKV_FN u32 page_scales(const Work& w, u8* section, const Fixed& fixed, float& widest) {
    constexpr u32 GROUP = KEY ? KEY_GROUP : VALUE_GROUP, PLACES = GROUP / PIECE * BLOCK;
    float* sizes = (float*)w.errors;
    for (u32 i = threadIdx.x; i < BLOCK * PIECES; i += THREADS) {
        const u32* two = (const u32*)(w.raw + i % BLOCK * ROW + i / BLOCK * PIECE);
        float size = 0.0f;
#pragma unroll
        for (u32 j = 0; j < PIECE / 2; ++j) {
            const float x = original<STORE>((u16)(two[j] & 0xffffu)), y = original<STORE>((u16)(two[j] >> 16));
            size = most(most(size, most(x, -x)), most(y, -y));
        }
        sizes[i] = size;
    }
    sync_threads();
    u32 bad = 0;
    for (u32 g = warp(); g < DIM / GROUP; g += WARPS) {
        float size = 0.0f;
#pragma unroll 4
        for (u32 i = lane(); i < PLACES; i += 32) size = most(size, sizes[g * PLACES + i]);
#pragma unroll
        for (int d = 16; d > 0; d >>= 1) size = most(size, shfl_xor(size, d));
        float reach = size;
        if (fixed.reaches != nullptr) {
            const float* own = fixed.reaches + (KEY ? 0 : PIECES) + g * (GROUP / PIECE);
            reach = 0.0f;
            for (u32 j = 0; j < GROUP / PIECE; ++j) reach = most(reach, ldg(own + j));
        }
        double scale;
        if (!PageOf<KEY>::scale((double)reach, scale)) {
            bad = OVERFLOW;
            continue;
        }
        if (lane() == 0) {
            store_scale<F16>(section, g, scale);
            put_step(w, g, scale, 0.0);
            // All codes are 0, whatever a fixed scale of 0 meets.
            if (!(scale > 0.0)) w.inverse[g] = 0.0f;
        }
        const double last = (PageOf<KEY>::reach + (PageOf<KEY>::floating ? 0.0 : 0.5)) * scale;
        // No element is off by more than its own magnitude, nor, where the scale reaches, by more than half a step.
        const float whole = size * (float)exp2i(-PageOf<KEY>::error_exponent);
        const bool reached = !((double)size > last);
        widest = most(widest, reached ? least(whole, (float)scale) : whole);
        if (!reached && fixed.reaches != nullptr) count_beyond<KEY>(w, g, last, fixed.saturated);
    }
    return bad;
}

}  // namespace ckv_encode
