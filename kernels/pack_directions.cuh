// Codes spherical keys, math.md (2.20), (2.21): the part of pack.cuh that goes by groups of channels. Twin of certkv-codec's spherical/record.rs.
//
// A product of a key, of at most 11 bits, with a direction, of 24, is exact in double precision: sums are rounded as the CPU's are, in its order.
#pragma once

#if CKV_KEY == 7
namespace ckv_encode {

constexpr u32 WIDTH = ckv_directions::WIDTH, GROUPS = ckv_directions::GROUPS, WORDS = ckv_directions::WORDS;
// Threads that share a token, and directions that lie in shared memory at once, widened: in the place of errors, before the reaches of all tokens and
// the best direction that each thread has found.
constexpr u32 SHARERS = THREADS / BLOCK, AT_ONCE = WORDS < 32 ? WORDS : 32;
static_assert(8 * (AT_ONCE * WIDTH + BLOCK * GROUPS) + 12 * THREADS <= ERROR_BYTES, "directions fit");

// The index in the lower eight bits, the radius above.
CKV_FN u32* directions_found(const Work& w) { return (u32*)w.inverse; }

// The nearest direction of every group of every token, the first of equals; scales of radii to `section`, radii to w.scale, the largest magnitude of the group to w.offset.
// Returns OVERFLOW if a scale does not fit.
CKV_FN u32 direction_scales(const Work& w, const float* words, u8* section) {
    double *const book = w.errors, *const reaches = book + AT_ONCE * WIDTH, *const best = reaches + BLOCK * GROUPS;
    u32* const which = (u32*)(best + THREADS);
    const u32 token = threadIdx.x % BLOCK, share = threadIdx.x / BLOCK;
#pragma unroll 1
    for (u32 g = 0; g < GROUPS; ++g) {
        double k[WIDTH];
        float size = 0.0f;
#pragma unroll
        for (u32 c = 0; c < WIDTH; ++c) {
            const float x = original<STORE>(w.raw[token * ROW + g * WIDTH + c]);
            k[c] = (double)x, size = most(size, most(x, -x));
        }
        double reach = -infinity();
        u32 index = 0;
#pragma unroll 1
        for (u32 first = 0; first < WORDS; first += AT_ONCE) {
            sync_threads();
            for (u32 i = threadIdx.x; i < AT_ONCE * WIDTH; i += THREADS) book[i] = (double)ldg(words + (g * WORDS + first) * WIDTH + i);
            sync_threads();
#pragma unroll 1
            for (u32 word = share; word < AT_ONCE; word += SHARERS) {
                double sum = 0.0;
#pragma unroll
                for (u32 c = 0; c < WIDTH; ++c) sum += k[c] * book[word * WIDTH + c];
                if (sum > reach) reach = sum, index = first + word;
            }
        }
        best[threadIdx.x] = reach, which[threadIdx.x] = index;
        sync_threads();
        if (share == 0) {
#pragma unroll 1
            for (u32 i = token + BLOCK; i < THREADS; i += BLOCK) {
                if (best[i] > reach || (best[i] == reach && which[i] < index)) reach = best[i], index = which[i];
            }
            reaches[g * BLOCK + token] = larger(reach, 0.0);
            directions_found(w)[g * BLOCK + token] = index;
            w.offset[g * BLOCK + token] = size;
        }
    }
    sync_threads();
    u32 bad = 0;
#pragma unroll 1
    for (u32 g = warp(); g < GROUPS; g += WARPS) {
        double* const own = reaches + g * BLOCK;
        double top = 0.0;
        for (u32 t = lane(); t < BLOCK; t += 32) top = larger(own[t], top);
#pragma unroll
        for (int d = 16; d > 0; d >>= 1) top = larger(shfl_xor(top, d), top);
        const double scale = round_up<F16>(top / 255.0);
        if (!is_finite(scale)) {
            bad = OVERFLOW;
            continue;
        }
        if (lane() == 0) store_scale<F16>(section, g, scale);
        for (u32 t = lane(); t < BLOCK; t += 32) {
            const double near = rint_near(own[t] / (scale > 0.0 ? scale : 1.0)), radius = near < 255.0 ? near : 255.0;
            w.scale[g * BLOCK + t] = (float)(scale * radius);
            directions_found(w)[g * BLOCK + t] |= (u32)radius << 8;
        }
    }
    return bad;
}

// The planes of W bits of all indices.
template <int W> CKV_FN void store_indices(const u32* found, u8* section) {
    constexpr u32 TILES = BLOCK / 16;
    if constexpr ((ckv_directions::BITS & W) != 0) {
        for (u32 byte = threadIdx.x; byte < ckv_directions::CODES * W / 8; byte += THREADS) {
            u32 out = 0;
#pragma unroll
            for (u32 i = 0; i < 8 / W; ++i) {
                const u32 place = byte * (8 / W) + i, of = place % BLOCK, token = of % TILES * 16 + of / TILES;
                out |= (found[place / BLOCK * BLOCK + token] >> ckv_directions::shift_of<W>() & ((1u << W) - 1)) << (W * i);
            }
            section[ckv_directions::plane_at<W>() + byte] = (u8)out;
        }
    }
}

// As measure: codes to the record; norms of the errors, and their product as halves.
CKV_FN void direction_measure(const Work& w, const float* words, u8* section, double unit, Norms& norms, Product<BLOCK>& gram) {
    constexpr u32 TILES = BLOCK / 16;
    const u32* found = directions_found(w);
    for (u32 place = threadIdx.x; place < (u32)ckv_directions::CODES; place += THREADS) {
        const u32 of = place % BLOCK, token = of % TILES * 16 + of / TILES;
        section[place] = (u8)(found[place / BLOCK * BLOCK + token] >> 8);
    }
    store_indices<4>(found, section), store_indices<2>(found, section), store_indices<1>(found, section);
    gram.clear();
#pragma unroll 1
    for (u32 first = 0; first < DIM; first += CHUNK) {
        const u32 width = first + CHUNK <= DIM ? CHUNK : DIM - first;
        for (u32 i = threadIdx.x; i < width * BLOCK; i += THREADS) {
            const u32 token = i % BLOCK, channel = first + i / BLOCK, g = channel / WIDTH, at = g * BLOCK + token;
            const float direction = ldg(words + (g * WORDS + (found[at] & 255)) * WIDTH + channel % WIDTH);
            w.errors[i / BLOCK * COLUMN + token] = (double)original<STORE>(w.raw[token * ROW + channel]) - (double)w.scale[at] * (double)direction;
        }
        sync_threads();
        add_norms<true, true>(w, first, width, unit, norms);
        sync_threads();
        gram.add(w.halves, PITCH, width);
    }
}

// ||x||^2 as key_magnitude: no decoded key is longer, (2.22d). `section`: the scales.
CKV_FN double direction_magnitude(const Work& w, const u8* section) {
    const double scale = threadIdx.x < GROUPS ? (double)h_value(((const u16*)section)[threadIdx.x]) : 0.0;
    constexpr double MOST = 255.0 * (1.0 + 0x1p-20);
    return cta_sum(scale * scale, w.slots) * (MOST * MOST);
}

}  // namespace ckv_encode
#endif
