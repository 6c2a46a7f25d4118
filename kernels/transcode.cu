// ckv_transcode: records of one format to records of another, of the same geometry and block.
//
// From originals, where the list has them: the result is that of ckv_pack. Else from the record alone, side by side:
// - a side that keeps its format is copied, and so is its half of the summary;
// - a side that the old record keeps uncoded is packed from there, as from originals;
// - any other coded side is decoded, rounded to the store type and coded again. Three errors add up, and so do their norms
//   (triangle inequality): e' = e + r + f, with e the old error (its bounds are in the old summary), r the rounding
//   (measured here: its largest row, and its Frobenius norm, which is not below its spectral norm) and f the new error.
//   Per-channel scales of old keys turn into a spectral norm by ||E|| <= ||E diag(1/sigma)|| max sigma: a channel of
//   scale 0 has no error. Norms of originals (key_norm, radius) stay; value_norm takes the larger of old and new.
// Keys with a scale per channel cannot be made from codes: their logit error is taken from sigma/2, math.md (4.2), which
// an older error would break; nor can an uncoded side. Such a side is refused (NEEDS_ORIGINALS): its section and summary
// are those of a side without codes.
//
// Compiled with the macros of the new layout, and those of the old one as CKV_FROM_*. Launched as ckv_pack.
#include "pack.cuh"

// One block of one KV head; addresses are multiples of 16.
struct CkvTranscodeItem {
    const u8* from;
    const u16* keys;      // originals, or null
    const u16* values;    // originals, or null
    const float* centre;  // [DIM], the centre of the old record
    u8* record;           // not the old one
};

struct CkvTranscodeArgs {
    const CkvTranscodeItem* items;
    const u32* count;
    u32* status;  // OR of OVERFLOW, NONFINITE and NEEDS_ORIGINALS; null: not wanted
    u32 order;    // of the originals: 0 [token][channel], 1 fragment order
    u32 unused;
};

namespace ckv_encode {

[[maybe_unused]] constexpr u32 NEEDS_ORIGINALS = 4;

constexpr bool SAME_KEY = CKV_FROM_KEY == CKV_KEY && CKV_FROM_KEY_BITS == CKV_KEY_BITS &&
                          CKV_FROM_KEY_GROUP == CKV_KEY_GROUP && CKV_FROM_KEY_META == CKV_KEY_META;
constexpr bool SAME_VALUE =
    CKV_FROM_VALUE == CKV_VALUE && CKV_FROM_VALUE_BITS == CKV_VALUE_BITS && CKV_FROM_VALUE_GROUP == CKV_VALUE_GROUP;

template <int META> CKV_FN double scale_at(const u8* section, u32 index) {
    if constexpr (META == F32) return (double)((const float*)section)[index];
    return (double)original<META>(((const u16*)section)[index]);
}

// Scale of element (token, channel) in the old record, and its value.
template <bool KEY> CKV_FN double decode(const u8* from, u32 token, u32 channel, double& scale) {
    constexpr u32 GROUP = KEY ? CKV_FROM_KEY_GROUP : CKV_FROM_VALUE_GROUP;
    constexpr int BITS = KEY ? CKV_FROM_KEY_BITS : CKV_FROM_VALUE_BITS;
    constexpr bool CHANNEL = KEY && CKV_FROM_KEY == 1;
    constexpr int META = CHANNEL ? CKV_FROM_KEY_META : F16;
    const u8* scales = from + (KEY ? CKV_FROM_KEY_SCALES : CKV_FROM_VALUE_SCALES);
    const u32 code =
        read_code<KEY, BITS, COUNT, DIM>(from + (KEY ? CKV_FROM_KEY_CODES : CKV_FROM_VALUE_CODES), token, channel);
    const u32 at = CHANNEL ? channel : channel / GROUP * BLOCK + token;
    scale = scale_at<META>(scales, at);
    double offset = 0.0;
    if (CHANNEL) offset = scale_at<META>(scales, DIM + at);
    if (!KEY) offset = scale_at<META>(scales, BLOCK * (DIM / GROUP) + at);
    const double n = (double)code - (KEY ? (double)(1u << (BITS - 1)) : 0.0);
    return n * scale + offset;
}

// Codes a side again from its codes.
template <bool KEY> CKV_FN u32 recode_side(const u8* from, const float* centre, u8* record, u8* shared) {
    const Work w = work_of(shared);
    const u32 token = threadIdx.x % BLOCK;
    u32 bad = 0;
    double square = 0.0, widest[2] = {0.0, 0.0};
    for (u32 c = threadIdx.x / BLOCK; c < DIM; c += THREADS / BLOCK) {
        double scale;
        const double x = decode<KEY>(from, token, c, scale);
        const u16 word = STORE == F16 ? h_rn((float)x) : (u16)(b2_pack((float)x, 0.0f) & 0xffffu);
        if (has_nonfinite<STORE>(word)) bad = NONFINITE;
        w.raw[token * ROW + c] = word;
        const double r = x - (double)original<STORE>(word);
        square += r * r;
        widest[1] = larger(scale, widest[1]);
    }
    w.errors[threadIdx.x] = square;
    sync_threads();
    if (threadIdx.x < BLOCK) {
        for (u32 part = 0; part < THREADS / BLOCK; ++part) widest[0] += w.errors[part * BLOCK + threadIdx.x];
    }
    cta_largest(widest, w.slots);
    const double whole = cta_sum(square, w.slots);
    bad = pack_staged<KEY>(w, bad, centre, record, Fixed{nullptr, nullptr});
    if (threadIdx.x == 0) {
        const float* old = (const float*)(from + CKV_FROM_SUMMARY);
        float* now = (float*)(record + CKV_SUMMARY);
        const double row = sqrt(widest[0]), all = sqrt(whole);
        if (KEY) {
            // A side without codes has no scales either: its infinity must not meet a zero.
            const double factor = CKV_FROM_KEY == 1 && is_finite((double)old[0]) ? widest[1] : 1.0;
            const double spectral_old = (double)old[0] * factor;
            now[0] = publish(spectral_old + all + (double)now[0]);
            now[1] = publish((double)old[1] + row + (double)now[1]);
            now[3] = old[3];
        } else {
            now[4] = publish((double)old[4] + row + (double)now[4]);
            now[5] = publish((double)old[5] + all + (double)now[5]);
            now[6] = old[6];
            now[7] = most(old[7], now[7]);
        }
    }
    return bad;
}

// A side without codes: zeros, the norms of the old summary, no bound of an error.
template <bool KEY> CKV_FN u32 refuse_side(const u8* from, u8* record) {
    zero(record, KEY ? CKV_KEY_CODES : CKV_VALUE_CODES, KEY ? CKV_VALUE_CODES : CKV_SUMMARY);
    if (threadIdx.x < 4) {
        const u32 i = threadIdx.x + (KEY ? 0 : 4);
        const bool norm = KEY ? i == 3 : i >= 6;
        ((float*)(record + CKV_SUMMARY))[i] = norm ? ((const float*)(from + CKV_FROM_SUMMARY))[i] : u32_as_float(0x7f800000u);
    }
    return NEEDS_ORIGINALS;
}

template <bool KEY> CKV_FN u32 transcode_side(const CkvTranscodeItem& item, u32 order, u8* shared) {
    const u16* originals = KEY ? item.keys : item.values;
    if (originals != nullptr) return pack_side<KEY>(originals, order, item.centre, item.record, shared);
    u32 bad = 0;
    if constexpr (KEY ? SAME_KEY : SAME_VALUE) {
        // The sections of a side have the same length in both layouts, whatever comes before them.
        constexpr u32 FROM = KEY ? CKV_FROM_KEY_CODES : CKV_FROM_VALUE_CODES, TO = KEY ? CKV_KEY_CODES : CKV_VALUE_CODES;
        constexpr u32 BYTES = (KEY ? CKV_VALUE_CODES : CKV_SUMMARY) - TO;
        for (u32 i = threadIdx.x; i < BYTES / 16; i += THREADS)
            ((Vec4*)(item.record + TO))[i] = ((const Vec4*)(item.from + FROM))[i];
        constexpr u32 HALF = KEY ? 0 : 16;
        if (threadIdx.x == 0) *(Vec4*)(item.record + CKV_SUMMARY + HALF) = *(const Vec4*)(item.from + CKV_FROM_SUMMARY + HALF);
    } else if constexpr (KEY ? CKV_FROM_KEY == 0 : CKV_FROM_VALUE == 0) {
        const u16* kept = (const u16*)(item.from + (KEY ? CKV_FROM_KEY_CODES : CKV_FROM_VALUE_CODES));
        return pack_side<KEY>(kept, FRAGMENT, item.centre, item.record, shared);
    } else if constexpr (KEY ? KEY_TOKEN : VALUE_CODED) {
        bad = recode_side<KEY>(item.from, item.centre, item.record, shared);
    } else {
        bad = refuse_side<KEY>(item.from, item.record);
    }
    if (!KEY) zero(item.record, CKV_SUMMARY + 32, CKV_RECORD);
    sync_threads();
    return bad;
}

}  // namespace ckv_encode

extern "C" __global__ void __launch_bounds__(256, 2) ckv_transcode(const __grid_constant__ CkvTranscodeArgs a) {
    CKV_DYNAMIC_SHARED(shared);
    grid_dependency_wait();
    grid_dependency_launch();
    const u32 sides = 2 * *a.count;
    for (u32 i = blockIdx.x; i < sides; i += gridDim.x) {
        const CkvTranscodeItem item = a.items[i / 2];
        const u32 bad = i % 2 == 0 ? ckv_encode::transcode_side<true>(item, a.order, shared)
                                   : ckv_encode::transcode_side<false>(item, a.order, shared);
        if (bad != 0 && a.status != nullptr && threadIdx.x == 0) atomic_or(a.status, bad);
    }
}
