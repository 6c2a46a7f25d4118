// Codes one side (keys or values) of a full block of one KV head, with its half of the error summary. By one CTA of
// THREADS threads; the twin of record.rs.
//
// Codes and scales are bit for bit those of the CPU encoder; the summary bounds the same block (see summary.cuh). The
// sides are independent: a side whose scales do not fit their type is left without codes, its section zero, the bounds of
// its errors infinite and its norms true, so that a kernel has to read its originals; the other side stays coded.
// So is a side whose originals are not all finite, with infinite norms too: nothing on it can be certified.
//
// Macros (see RecordLayout): CKV_DIM, CKV_BLOCK, CKV_STORE, CKV_KEY, CKV_KEY_BITS, CKV_KEY_GROUP, CKV_KEY_META, CKV_VALUE,
// CKV_VALUE_BITS, CKV_VALUE_GROUP, and the byte offsets CKV_KEY_CODES, CKV_KEY_SCALES, CKV_VALUE_CODES,
// CKV_VALUE_SCALES, CKV_SUMMARY, CKV_RECORD; CKV_FOLD: 1 if keys are coded in the metric of a calibration; for residual planes CKV_KEY_REFINE, CKV_VALUE_REFINE, CKV_KEY_RESIDUALS and
// CKV_VALUE_RESIDUALS.
#pragma once
#include "machine.cuh"
#include "codec/affine.cuh"
#include "codec/channel8.cuh"
#include "codec/fragment.cuh"
#include "codec/identity.cuh"
#include "codec/page_scale.cuh"
#include "codec/refine.cuh"
#include "codec/token_sym.cuh"
#include "codec/turboquant.cuh"
#include "directions.cuh"
#include "grouped.cuh"
#include "spectral.cuh"

namespace ckv_encode {

constexpr u32 DIM = CKV_DIM, BLOCK = CKV_BLOCK, COUNT = DIM * BLOCK;
constexpr int STORE = CKV_STORE;
constexpr bool KEY_CHANNEL = CKV_KEY == 1, KEY_TOKEN = CKV_KEY == 2, KEY_CODED = CKV_KEY != 0, VALUE_CODED = CKV_VALUE != 0;
constexpr bool KEY_TURBO = CKV_KEY == 3, VALUE_TURBO = CKV_VALUE == 2;
// Of several widths: their bits and levels are the head's.
constexpr bool KEY_GROUPED = CKV_GROUPED > 0;
constexpr bool KEY_DIRECTIONS = CKV_KEY == 7;
constexpr bool KEY_PAGE = CKV_KEY >= 4 && CKV_KEY <= 6, VALUE_PAGE = CKV_VALUE >= 3 && CKV_VALUE <= 5, VALUE_CHANNEL = CKV_VALUE == 6;
// Widths and groups that no branch of this layout uses still have to make types.
constexpr int KEY_BITS = KEY_CODED && !KEY_GROUPED ? CKV_KEY_BITS : 8, VALUE_BITS = VALUE_CODED ? CKV_VALUE_BITS : 8;
constexpr u32 KEY_GROUP = KEY_TOKEN || KEY_PAGE || KEY_DIRECTIONS ? CKV_KEY_GROUP : DIM, VALUE_GROUP = VALUE_CODED ? CKV_VALUE_GROUP : DIM;
// Codes of a side with one scale per block, if it is one.
template <bool KEY> using PageOf = PageScale<KEY ? KEY_PAGE ? CKV_KEY - 4 : 0 : VALUE_PAGE ? CKV_VALUE - 3 : 0, KEY ? KEY_BITS : VALUE_BITS>;

// Residual planes, math.md (2.23), are made from the same errors once the codes are measured: the originals stay until then.
constexpr bool REFINABLE = CKV_KEY_REFINE > 0;
constexpr u32 SUMMARY_BYTES = REFINABLE ? 48 : 32;

// A row of originals in shared memory: 16 bytes of padding spread the rows over the banks.
constexpr u32 ROW = DIM + 8;
// Channels whose errors are held at a time, so that a block of any size needs 32 KiB.
constexpr u32 CHUNK = DIM < 4096 / BLOCK ? DIM : 4096 / BLOCK;
// Channels of a piece: what one thread takes the range of; groups are made of whole pieces.
constexpr u32 PIECE = 16, PIECES = DIM / PIECE;

// Scales of a side that live in shared memory.
constexpr u32 KEY_STEPS =
    KEY_CHANNEL ? DIM : KEY_PAGE ? DIM / KEY_GROUP : KEY_GROUPED ? BLOCK * CKV_KEY_SLOTS : KEY_TOKEN || KEY_TURBO || KEY_DIRECTIONS ? BLOCK * (DIM / KEY_GROUP) : 0;
constexpr u32 VALUE_STEPS = VALUE_CHANNEL ? DIM : VALUE_PAGE ? DIM / VALUE_GROUP : VALUE_CODED ? BLOCK * (DIM / VALUE_GROUP) : 0;
// An even number: doubles lie behind them.
constexpr u32 STEPS = ((KEY_STEPS > VALUE_STEPS ? KEY_STEPS : VALUE_STEPS) + 1) / 2 * 2;

// The shared memory of the CTA, in bytes; the launch asks for PACK_SHARED of them.
// Errors of a channel lie a double more than a block apart: the banks of two channels differ.
constexpr u32 COLUMN = BLOCK + 1, AT_ERRORS = 2 * BLOCK * ROW, ERROR_BYTES = 8 * CHUNK * COLUMN;
// Errors as halves, a row per token, 16 bytes of padding as above.
constexpr u32 PITCH = CHUNK + 8, AT_HALVES = AT_ERRORS + ERROR_BYTES, HALF_BYTES = KEY_CODED || VALUE_CODED ? 2 * BLOCK * PITCH : 0;
constexpr u32 AT_CENTRE = AT_HALVES + HALF_BYTES, AT_INVERSES = AT_CENTRE + 8 * DIM;
constexpr u32 INVERSES = REFINABLE ? STEPS : KEY_CHANNEL ? DIM : 0, AT_STEPS = AT_INVERSES + 8 * INVERSES;
constexpr u32 AT_SLOTS = AT_STEPS + 12 * STEPS, SLOT_BYTES = 8 * 4 * WARPS;
constexpr u32 AT_FLAGS = AT_SLOTS + SLOT_BYTES, AT_TABLE = AT_FLAGS + 4 * 2 * WARPS;
#if CKV_GROUPED
constexpr u32 PACK_SHARED = AT_TABLE + 4 * ckv_grouped::WORDS;
#else
constexpr u32 PACK_SHARED = AT_TABLE;
#endif
static_assert(4 * BLOCK * Product<BLOCK>::PITCH <= ERROR_BYTES, "powers fit");
static_assert(8 * 4 * THREADS <= ERROR_BYTES && 8 * BLOCK * PIECES <= ERROR_BYTES, "norms and ranges fit");

// Order of the originals that are packed: [token][channel], or fragment order as tails and promoted sides have it.
constexpr u32 ROWS = 0;
[[maybe_unused]] constexpr u32 FRAGMENT = 1;

// What stopped a side from being coded; the bits of a status word.
constexpr u32 OVERFLOW = 1, NONFINITE = 2;

struct Work {
    u16* raw;          // originals, [BLOCK][ROW]
    double* errors;    // x - x^, [channel of the chunk][COLUMN]; ranges, partial sums and powers of matrices in between
    u16* halves;       // the same in steps, [BLOCK][PITCH]
    double* centre;    // per channel
    double* inverses;  // [INVERSES], 1/scale, or 1 where the scale is 0; index as below
    float* scale;      // [STEPS], and so on: index channel, or group * BLOCK + token, or group
    float* offset;
    float* inverse;
    double* slots;
    u32* flags;
};
CKV_FN Work work_of(u8* shared) {
    float* steps = (float*)(shared + AT_STEPS);
    return Work{(u16*)shared,  (double*)(shared + AT_ERRORS), (u16*)(shared + AT_HALVES), (double*)(shared + AT_CENTRE),
                (double*)(shared + AT_INVERSES), steps, steps + STEPS, steps + 2 * STEPS,
                (double*)(shared + AT_SLOTS), (u32*)(shared + AT_FLAGS)};
}

CKV_FN void put_step(const Work& w, u32 at, double scale, double offset) {
    w.scale[at] = (float)scale;
    w.offset[at] = (float)offset;
    w.inverse[at] = inverse_step((float)scale);
    if (at < INVERSES) w.inverses[at] = 1.0 / (scale > 0.0 ? scale : 1.0);
}
// What scales of a side with one per group are made of where they are fixed: of every PIECE channels of a head the largest magnitude that is to be
// reached, of its keys, then of its values; null: the block's own. `saturated` counts elements beyond.
struct Fixed {
    const float* reaches;
    u64* saturated;
};
CKV_FN Fixed fixed_of(const float* reaches, u64* saturated, u32 head) {
    return Fixed{reaches == nullptr ? nullptr : reaches + head * (2 * PIECES), saturated};
}

CKV_FN Step step_at(const Work& w, u32 at) { return Step{w.scale[at], w.offset[at], w.inverse[at]}; }

CKV_FN float least(float a, float b) { return b < a ? b : a; }
CKV_FN float most(float a, float b) { return b > a ? b : a; }

CKV_FN void zero(u8* at, u32 from, u32 to) {
    for (u32 i = from + threadIdx.x; i < to; i += THREADS) at[i] = 0;
}

// Originals into shared memory, from rows or from fragment order. True if all of them are finite.
template <bool KEY> CKV_FN bool stage(const Work& w, const u16* source, u32 order) {
    bool finite = true;
#pragma unroll 4
    for (u32 i = threadIdx.x; i < COUNT / 8; i += THREADS) {
        // Not through the read-only path: the last row may have been written by this CTA.
        const Vec4 v = ((const Vec4*)source)[i];
        finite = finite && !(has_nonfinite<STORE>(v.x) || has_nonfinite<STORE>(v.y) || has_nonfinite<STORE>(v.z) ||
                             has_nonfinite<STORE>(v.w));
        if (order == ROWS) {
            *(Vec4*)(w.raw + i / (DIM / 8) * ROW + i % (DIM / 8) * 8) = v;
        } else {
            Identity::scatter<KEY, DIM, ROW>(w.raw, i, v);
        }
    }
    return finite;
}

}  // namespace ckv_encode
#include "pack_scales.cuh"
namespace ckv_encode {

// The codec and the place of its scales for one side.
template <bool KEY> struct Side {
    static constexpr bool page = KEY ? KEY_PAGE : VALUE_PAGE;
    using Symmetric = TokenSym<KEY ? KEY_BITS : VALUE_BITS>;
    static __device__ __forceinline__ u32 place(u32 token, u32 channel) {
        if (page) return channel / (KEY ? KEY_GROUP : VALUE_GROUP);
        if (!KEY && VALUE_CHANNEL) return channel;
        if (!KEY) return channel / VALUE_GROUP * BLOCK + token;
        return KEY_CHANNEL ? channel : channel / KEY_GROUP * BLOCK + token;
    }
    static __device__ __forceinline__ u32 code(float n) {
        if (page) return Symmetric::code(n);
        if (!KEY && VALUE_CHANNEL) return Channel<VALUE_BITS>::code(n);
        if (!KEY) return Affine<VALUE_BITS>::code(n);
        return KEY_CHANNEL ? Channel<KEY_BITS>::code(n) : TokenSym<KEY_BITS>::code(n);
    }
    static __device__ __forceinline__ double error(float x, float n, const Step& step) {
        if (page) return Symmetric::error(x, n, step);
        if (!KEY && VALUE_CHANNEL) return Channel<VALUE_BITS>::error(x, n, step);
        if (!KEY) return Affine<VALUE_BITS>::error(x, n, step);
        return KEY_CHANNEL ? Channel<KEY_BITS>::error(x, n, step) : TokenSym<KEY_BITS>::error(x, n, step);
    }
};

// Codes of channels first .. first + width, their errors to shared memory: to the record, or, FINE, those of the residuals of the codes that
// are there already, and what they leave. A warp takes a unit at a time, a lane 16 elements,
// a batch in flight.
template <bool KEY, bool FINE> CKV_FN void code_chunk(const Work& w, u8* section, u32 first, u32 width) {
    constexpr bool FLOATING = PageOf<KEY>::floating;
    constexpr u32 TILES = BLOCK / 16, BATCH = REFINABLE || DIM > 128 ? 4 : 8;
    constexpr int BITS = FINE ? KEY ? CKV_KEY_REFINE : CKV_VALUE_REFINE : KEY ? KEY_BITS : VALUE_BITS;
    // The code of an element n steps from its offset, and its error.
    auto code_of = [&w](u32 at, float x, float n, const Step& step, double& error) {
        if constexpr (FLOATING) {
            const u32 code = PageOf<KEY>::code((double)x, (double)step.scale);
            error = (double)x - PageOf<KEY>::value(code) * (double)step.scale;
            return code;
        }
        error = Side<KEY>::error(x, n, step);
        if constexpr (FINE) return Residual<BITS>::code(error, (double)step.scale, w.inverses[at]);
        else return Side<KEY>::code(n);
    };
    const u32 units = TILES * width / 32;
    for (u32 u = warp(); u < units; u += WARPS) {
        const u32 tile = u % TILES, at = 32 * (u / TILES);
        Codes codes = {{0, 0, 0, 0}};
        // Floating-point codes take a double quotient each.
        u32 unclear = FLOATING ? 0xffffu : 0;
#pragma unroll 1
        for (u32 batch = 0; !FLOATING && batch < 16; batch += BATCH) {
            float x[BATCH];
            Step step[BATCH];
            double error[BATCH];
            u32 four = 0;
#pragma unroll
            for (u32 q = 0; q < BATCH; ++q) {
                const u32 token = 16 * tile + token_of<KEY>(lane(), batch + q), channel = first + at + channel_of<KEY>(lane(), batch + q);
                x[q] = original<STORE>(w.raw[token * ROW + channel]);
                step[q] = step_at(w, Side<KEY>::place(token, channel));
            }
#pragma unroll
            for (u32 q = 0; q < BATCH; ++q) {
                const u32 token = 16 * tile + token_of<KEY>(lane(), batch + q), channel = first + at + channel_of<KEY>(lane(), batch + q);
                bool clear;
                const float n = steps(x[q], step[q], clear);
                if (!clear) unclear |= 1u << (batch + q);
                four |= code_of(Side<KEY>::place(token, channel), x[q], n, step[q], error[q]) << (8 * (q % 4));
                if (q % 4 == 3) codes.set_four((batch + q) / 4, four), four = 0;
            }
#pragma unroll
            for (u32 q = 0; q < BATCH; ++q) {
                w.errors[(at + channel_of<KEY>(lane(), batch + q)) * COLUMN + 16 * tile + token_of<KEY>(lane(), batch + q)] = error[q];
            }
        }
        // Those that the double quotient decides, one division for all places of the loops above.
        if (unclear != 0) {
#pragma unroll 1
            for (u32 p = 0; p < 16; ++p) {
                if ((unclear >> p & 1) == 0) continue;
                const u32 token = 16 * tile + token_of<KEY>(lane(), p), local = at + channel_of<KEY>(lane(), p);
                const float x = original<STORE>(w.raw[token * ROW + first + local]);
                const u32 place = Side<KEY>::place(token, first + local);
                const Step step = step_at(w, place);
                codes.set(p, code_of(place, x, FLOATING ? 0.0f : exact_steps(x, step), step, w.errors[local * COLUMN + token]));
            }
        }
        store_unit<BITS, COUNT>(section, tile * (DIM / 32) + (first + at) / 32, codes);
    }
}

// Squared norms of a token, over the channels that this thread takes.
struct Norms {
    double original, error, decoded, centred;
};
// Adds channels first .. first + width: thread = part * BLOCK + token. Leaves the errors times `unit` as halves; those of keys with a
// scale per channel in steps of their channel too, (3.6). FINE: only what residuals change.
template <bool KEY, bool CODED, bool FINE = false> CKV_FN void add_norms(const Work& w, u32 first, u32 width, double unit, Norms& n) {
    const u32 token = threadIdx.x % BLOCK;
#pragma unroll 1
    for (u32 c = 2 * (threadIdx.x / BLOCK); c < width; c += 2 * (THREADS / BLOCK)) {
        const u32 two = *(const u32*)(w.raw + token * ROW + first + c);
        float scaled[2];
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const double x = (double)original<STORE>((u16)(i == 0 ? two & 0xffffu : two >> 16));
            const double e = CODED ? w.errors[(c + i) * COLUMN + token] : 0.0;
            n.error += e * e;
            if (!FINE) n.original += x * x;
            if (!KEY) n.decoded += (x - e) * (x - e);
            if (!KEY && !FINE) {
                const double from_centre = x - w.centre[first + c + i];
                n.centred += from_centre * from_centre;
            }
            if (CODED) scaled[i] = (float)(e * unit * (KEY && KEY_CHANNEL ? w.inverses[first + c + i] : 1.0));
        }
        if (CODED) *(u32*)(w.halves + token * PITCH + c) = h2_pack(scaled[0], scaled[1]);
    }
}
// Largest over the tokens: {error, max(original, decoded), centred}, still squared.
CKV_FN void largest_norms(const Work& w, const Norms& n, double (&top)[3]) {
    sync_threads();
    w.errors[threadIdx.x] = n.original;
    w.errors[THREADS + threadIdx.x] = n.error;
    w.errors[2 * THREADS + threadIdx.x] = n.decoded;
    w.errors[3 * THREADS + threadIdx.x] = n.centred;
    sync_threads();
    top[0] = top[1] = top[2] = 0.0;
    if (threadIdx.x < BLOCK) {
        double sums[4] = {0.0, 0.0, 0.0, 0.0};
#pragma unroll 1
        for (u32 part = 0; part < THREADS / BLOCK; ++part) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) sums[i] += w.errors[i * THREADS + part * BLOCK + threadIdx.x];
        }
        top[0] = sums[1];
        top[1] = larger(sums[0], sums[2]);
        top[2] = sums[3];
    }
    cta_largest(top, w.slots);
}

// ||x||^2 with x_c the largest magnitude that enters channel c's products, (4.12); record.rs: key_magnitude.
template <bool CODED> CKV_FN double key_magnitude(const Work& w) {
    double square = 0.0;
    if (!CODED || KEY_CHANNEL) {
        if (threadIdx.x < DIM) {
            double x = 0.0;
            if (CODED) {
                x = Channel<KEY_BITS>::half * (double)w.scale[threadIdx.x] + magnitude((double)w.offset[threadIdx.x]);
            } else {
#pragma unroll 4
                for (u32 t = 0; t < BLOCK; ++t)
                    x = larger(magnitude((double)original<STORE>(w.raw[t * ROW + threadIdx.x])), x);
            }
            square = x * x;
        }
    } else if (threadIdx.x < DIM / KEY_GROUP) {
        double x = KEY_PAGE ? (double)w.scale[threadIdx.x] : 0.0;
#pragma unroll 4
        for (u32 t = 0; !KEY_PAGE && t < BLOCK; ++t) x = larger((double)w.scale[threadIdx.x * BLOCK + t], x);
        // The largest code; TurboQuant's largest level.
        x *= KEY_PAGE ? PageOf<true>::most : KEY_TURBO ? (KEY_BITS > 4 ? 127.0 : 63.0) : (double)(1u << (KEY_BITS - 1));
        square = x * x * (double)KEY_GROUP;
    }
    return cta_sum(square, w.slots);
}

// ||x||^2 with x_c the most that the products of value channel c come to, those of residuals included; channel8.rs: magnitude.
CKV_FN double value_magnitude(const Work& w) {
    double square = 0.0;
    if (threadIdx.x < DIM) {
        const double x = ((double)(1u << (VALUE_BITS - 1)) + 1.5) * (double)w.scale[threadIdx.x] + magnitude((double)w.offset[threadIdx.x]);
        square = x * x;
    }
    return cta_sum(square, w.slots);
}

// The power of two that brings the errors of a side's codes to at most about 1 as halves, those of keys with a scale per channel when
// they are taken in steps: an error is at most half a step, and of a floating-point code half the widest one; `widest` is such a step of a side with
// one scale per group, which may be fixed. One of a rotated row is at most its norm, which may lie far below the least
// radius of f16.
template <bool KEY> CKV_FN double unit_of(const Work& w, float widest) {
    if (KEY && KEY_CHANNEL) return 1.0;
    float largest = widest;
    const float* sizes = (KEY ? KEY_TURBO || KEY_DIRECTIONS : VALUE_TURBO) ? w.offset : w.scale;
    for (u32 i = threadIdx.x; i < (Side<KEY>::page ? 0 : KEY ? KEY_STEPS : VALUE_STEPS); i += THREADS) largest = most(largest, sizes[i]);
    float none[1] = {0.0f}, top[1] = {largest};
    cta_sums_and_largest(none, top, (float*)w.slots);
    // A scale is a value of f16, or 0: then there are no errors.
    const int exponent = (int)(float_as_u32(top[0]) >> 23) - 127 + PageOf<KEY>::error_exponent;
    return top[0] > 0.0f ? exp2i(-exponent) : 1.0;
}

// Codes all channels and measures the errors: norms of tokens, and the product of the errors as halves. `codes`, FINE: as in code_chunk.
template <bool KEY, bool FINE> CKV_FN void measure(const Work& w, u8* codes, double unit, Norms& norms, Product<BLOCK>& gram) {
    gram.clear();
#pragma unroll 1
    for (u32 first = 0; first < DIM; first += CHUNK) {
        const u32 width = first + CHUNK <= DIM ? CHUNK : DIM - first;
        code_chunk<KEY, FINE>(w, codes, first, width);
        sync_threads();
        add_norms<KEY, true, FINE>(w, first, width, unit, norms);
        sync_threads();
        // The next chunk's codes do not touch the halves, and its norms come behind another wait.
        gram.add(w.halves, PITCH, width);
    }
}

// Upper bound of the spectral norm of the errors, in their own unit; 0 if all are 0.
CKV_FN double errors_norm_of(const Work& w, const Product<BLOCK>& gram, double unit, double largest_square) {
    if (largest_square == 0.0) return 0.0;
    return spectral<BLOCK>(gram, DIM, (u16*)w.errors, (float*)w.slots) / unit;
}

// Residual planes of a side and their part of the summary. `largest`: the largest squared norm of a value, which those of refined ones
// may raise.
template <bool KEY> CKV_FN void refine(const Work& w, u8* record, bool coded, double unit, Product<BLOCK>& gram, double& largest) {
    constexpr u32 BITS = KEY ? CKV_KEY_REFINE : CKV_VALUE_REFINE, AT = KEY ? CKV_KEY_RESIDUALS : CKV_VALUE_RESIDUALS;
    double norm = infinity(), most = infinity();
    if (coded) {
        Norms norms = {0.0, 0.0, 0.0, 0.0};
        // What residuals leave is finer by their bits.
        unit *= (double)(1u << BITS);
        sync_threads();
        measure<KEY, true>(w, record + AT, unit, norms, gram);
        double top[3];
        largest_norms(w, norms, top);
        largest = larger(largest, top[1]);
        most = top[0];
        norm = errors_norm_of(w, gram, unit, most);
    } else {
        zero(record, AT, AT + COUNT / 8 * BITS);
    }
    if (threadIdx.x == 0) {
        float* out = (float*)(record + CKV_SUMMARY) + 8;
        if (KEY) {
            out[0] = publish(norm), out[1] = publish(sqrt(most));
        } else {
            out[2] = publish(sqrt(most)), out[3] = publish(norm);
        }
    }
}

}  // namespace ckv_encode
#include "pack_turbo.cuh"
#include "pack_grouped.cuh"
#include "pack_directions.cuh"
namespace ckv_encode {

// Packs a side whose originals are in w.raw; `bad` is what each thread has against them. The rest as in pack_side.
template <bool KEY> CKV_FN u32 pack_staged(const Work& w, u32 bad, const float* centre, u8* record, const Fixed& fixed) {
    constexpr bool CODED = KEY ? KEY_CODED : VALUE_CODED;
    constexpr u32 START = KEY ? CKV_KEY_CODES : CKV_VALUE_CODES, SCALES = KEY ? CKV_KEY_SCALES : CKV_VALUE_SCALES;
    constexpr u32 END = KEY ? CKV_VALUE_CODES : CKV_SUMMARY;
    constexpr bool GROUPED = KEY && KEY_GROUPED, DIRECTIONS = KEY && KEY_DIRECTIONS;
    constexpr u32 CODES_END = START + (GROUPED ? COUNT / 16 * CKV_GROUPED : DIRECTIONS ? COUNT / KEY_GROUP * (8 + KEY_BITS) / 8 : COUNT / 8 * (CODED ? KEY ? KEY_BITS : VALUE_BITS : 16));
    constexpr u32 META = KEY && KEY_CHANNEL && CKV_KEY_META == 2 ? 4 : 2;
    constexpr u32 SCALES_END = SCALES + (CODED ? KEY ? KEY_CHANNEL ? 2 * DIM * META : KEY_DIRECTIONS ? 2 * (DIM / KEY_GROUP) : 2 * KEY_STEPS : (VALUE_TURBO || VALUE_PAGE ? 2 : 4) * VALUE_STEPS : 0);
    constexpr bool TURBO = KEY ? KEY_TURBO : VALUE_TURBO, PAGE = KEY ? KEY_PAGE : VALUE_PAGE, CHANNEL = KEY ? KEY_CHANNEL : VALUE_CHANNEL;

    if (!KEY && threadIdx.x < DIM) w.centre[threadIdx.x] = (double)centre[threadIdx.x];
#if CKV_FOLD
    if (KEY && threadIdx.x < DIM) {
        metric_of(w)[threadIdx.x] = centre[threadIdx.x], metric_of(w)[DIM + threadIdx.x] = centre[DIM + threadIdx.x];
    }
#endif
#if CKV_GROUPED
    if constexpr (GROUPED) stage_table(w, centre);
#endif
    bad = cta_union(bad, w.flags);
    Norms norms = {0.0, 0.0, 0.0, 0.0};
    double top[3];
    if constexpr (TURBO) {
        // Of the originals, before codes and errors take their places.
        add_norms<KEY, false>(w, 0, DIM, 1.0, norms);
        largest_norms(w, norms, top);
        sync_threads();
    }
    [[maybe_unused]] float widest = 0.0f;
    if (CODED && bad == 0) {
        if constexpr (CHANNEL) bad = channel_scales<KEY>(w, record + SCALES);
#if CKV_ROTATES
        if constexpr (TURBO && !GROUPED) bad = turbo_scales<KEY>(w, record + SCALES);
#endif
#if CKV_GROUPED
        if constexpr (GROUPED) bad = grouped_scales(w, record + SCALES);
#endif
        if constexpr (PAGE) bad = page_scales<KEY>(w, record + SCALES, fixed, widest);
#if CKV_KEY == 7
        if constexpr (DIRECTIONS) bad = direction_scales(w, centre, record + SCALES);
#endif
        if constexpr (!CHANNEL && CODED && !TURBO && !PAGE && !DIRECTIONS) bad = token_scales<KEY>(w, record + SCALES);
        bad = cta_union(bad, w.flags);
    }
    const bool coded = CODED && bad == 0;

    double errors_norm = 0.0;
    if constexpr (CODED) {
        Product<BLOCK> gram;
        double unit = 1.0;
        if (coded) {
            unit = unit_of<KEY>(w, widest);
            if constexpr (!TURBO && !DIRECTIONS) measure<KEY, false>(w, record + START, unit, norms, gram);
#if CKV_KEY == 7
            if constexpr (DIRECTIONS) direction_measure(w, centre, record + START, unit, norms, gram);
#endif
        }
#if CKV_KEY == 3 || CKV_VALUE == 2
        // Of a rotated side errors and decoded rows are measured where they are made.
        double turned[3] = {0.0, 0.0, 0.0};
        if constexpr (TURBO) {
            double largest[TURNED_NORMS] = {};
#if CKV_ROTATES
            if constexpr (!GROUPED) {
                if (coded) turbo_measure<KEY>(w, record + START, unit, gram, largest);
            }
#endif
#if CKV_GROUPED
            if constexpr (GROUPED) {
                if (coded) grouped_measure(w, record + START, unit, gram, largest);
            }
#endif
            turned[0] = largest[0], turned[1] = largest[1];
            if constexpr (TURNED_NORMS > 2) turned[2] = largest[TURNED_NORMS - 1];
        }
#endif
        double mag = 0.0;
        if constexpr (!TURBO) {
            if (!coded) add_norms<KEY, false>(w, 0, DIM, unit, norms);
            largest_norms(w, norms, top);
        }
#if CKV_KEY == 3 || CKV_VALUE == 2
        double off = 0.0;
        if constexpr (TURBO) {
            cta_largest(turned, w.slots);
            off = TURNED * sqrt(larger(KEY && TURNED_NORMS > 2 ? turned[2] : top[1], turned[1]));
            const double error = sqrt(turned[0]) + off;
            if (coded) top[0] = error * error, top[1] = KEY ? top[1] : larger(top[1], turned[1]);
        }
#endif
        if (coded) {
#if CKV_GROUPED
            if constexpr (GROUPED) mag = grouped_magnitude(w);
#endif
#if CKV_KEY == 7
            if constexpr (DIRECTIONS) mag = direction_magnitude(w, record + SCALES);
#endif
            if (KEY && !GROUPED && !DIRECTIONS) mag = key_magnitude<true>(w);
            errors_norm = errors_norm_of(w, gram, unit, top[0]);
#if CKV_KEY == 3 || CKV_VALUE == 2
            if constexpr (TURBO) errors_norm += off * (double)BLOCK;
#endif
            zero(record, CODES_END, SCALES);
            zero(record, SCALES_END, END);
        } else {
            for (u32 i = threadIdx.x; i < (END - START) / 16; i += THREADS) ((Vec4*)(record + START))[i] = Vec4{0, 0, 0, 0};
        }
        const double inf = infinity();
        float* out = (float*)(record + CKV_SUMMARY) + (KEY ? 0 : 4);
        // Three threads a number each, and one the norm that residuals may raise.
        if (threadIdx.x < 3) {
            constexpr u32 SPECTRAL = KEY ? 0 : 1;
            const double norm = sqrt(threadIdx.x == 1 - SPECTRAL ? top[0] : KEY ? mag : top[2]);
            const bool unbounded = threadIdx.x == 2 && !KEY ? (bad & NONFINITE) != 0 : !coded;
            out[threadIdx.x] = publish(unbounded ? inf : threadIdx.x == SPECTRAL ? errors_norm : norm);
        }
        double largest = top[1];
        if constexpr (!KEY && VALUE_CHANNEL) {
            if (coded) largest = value_magnitude(w);
        }
        if constexpr (REFINABLE) refine<KEY>(w, record, coded, unit, gram, largest);
        if (threadIdx.x == 3) out[3] = publish(bad & NONFINITE ? inf : sqrt(largest));
    } else {
        for (u32 i = threadIdx.x; i < COUNT / 8; i += THREADS)
            ((Vec4*)(record + START))[i] = Identity::gather<KEY, DIM, ROW>(w.raw, i);
        add_norms<KEY, false>(w, 0, DIM, 1.0, norms);
        largest_norms(w, norms, top);
        double mag = KEY ? key_magnitude<false>(w) : 0.0;
        zero(record, CODES_END, END);
        if (threadIdx.x == 0) {
            float* out = (float*)(record + CKV_SUMMARY);
            if (bad & NONFINITE) top[1] = top[2] = mag = infinity();
            out[KEY ? 0 : 4] = 0.0f;
            out[KEY ? 1 : 5] = 0.0f;
            out[KEY ? 2 : 6] = publish(sqrt(KEY ? mag : top[2]));
            out[KEY ? 3 : 7] = publish(sqrt(top[1]));
        }
    }
    if (!KEY) zero(record, CKV_SUMMARY + SUMMARY_BYTES, CKV_RECORD);
    sync_threads();
    return bad;
}

// Packs one side. `source` holds its BLOCK x DIM originals in `order`, `centre` the head's value centre (of keys of a calibration their centre, then their
// balance scale, and of several widths a table; of spherical ones their directions; of other keys nothing), both and the record aligned to 16 bytes; `shared` has PACK_SHARED bytes. Returns OVERFLOW, NONFINITE or 0, in every thread.
template <bool KEY> CKV_FN u32 pack_side(const u16* source, u32 order, const float* centre, u8* record, u8* shared, const Fixed& fixed = Fixed{nullptr, nullptr}) {
    const Work w = work_of(shared);
    const u32 bad = stage<KEY>(w, source, order) ? 0 : NONFINITE;
    return pack_staged<KEY>(w, bad, centre, record, fixed);
}

}  // namespace ckv_encode
