// Codes one TurboQuant side of a full block: the part of pack.cuh that goes by rotated rows. A warp takes a row at a time.
#pragma once

namespace ckv_encode {

// Squared norms that are measured of rotated rows.
constexpr u32 TURNED_NORMS = CKV_FOLD ? 3 : 2;
#if CKV_FOLD
static_assert(CKV_KEY == 3, "rotated keys have a metric");
// Centre and balance scale of the head's keys, by channel: in the place of the values' centre, of which keys know nothing.
CKV_FN float* metric_of(const Work& w) { return (float*)w.centre; }
#endif

#if CKV_ROTATES
constexpr u32 PER = DIM / 32;

// A row as its codec sees it; a key of a calibration around its centre, every channel times its balance scale, math.md (2.19a), rounded twice.
template <bool KEY> CKV_FN void rotated(const Work& w, u32 token, double (&y)[PER]) {
#pragma unroll
    for (u32 m = 0; m < PER; ++m) {
        y[m] = (double)original<STORE>(w.raw[token * ROW + 32 * m + lane()]);
#if CKV_FOLD
        if constexpr (KEY) y[m] = (y[m] - (double)metric_of(w)[32 * m + lane()]) * (double)metric_of(w)[DIM + 32 * m + lane()];
#endif
    }
    turn_row(y);
}

// Codes of all rows, a byte each, in the place of errors; radii to `section` and w.scale, norms to w.offset. Returns OVERFLOW if one
// does not fit.
template <bool KEY> CKV_FN u32 turbo_scales(const Work& w, u8* section) {
    u8* staged = (u8*)w.errors;
    u32 bad = 0;
#pragma unroll 1
    for (u32 t = warp(); t < BLOCK; t += WARPS) {
        double y[PER];
        u32 codes[PER];
        rotated<KEY>(w, t, y);
        double norm;
        const double radius = Turbo<KEY>::code_row(y, codes, norm);
#pragma unroll
        for (u32 m = 0; m < PER; ++m) staged[t * DIM + 32 * m + lane()] = (u8)codes[m];
        if (!is_finite(radius)) bad = OVERFLOW;
        if (lane() == 0 && is_finite(radius)) store_scale<F16>(section, t, radius), put_step(w, t, radius, norm);
    }
    return bad;
}

// The codes to the record, and the errors, which take the place of the originals: their product, and in `top` the largest squared norm of an error and of a decoded row; of a key of a calibration
// that of the row as it is coded, too.
template <bool KEY> CKV_FN void turbo_measure(const Work& w, u8* section, double unit, Product<BLOCK>& gram, double (&top)[TURNED_NORMS]) {
    constexpr u32 TILES = BLOCK / 16;
    const u8* staged = (const u8*)w.errors;
#pragma unroll 1
    for (u32 u = warp(); u < TILES * (DIM / 32); u += WARPS) {
        const u32 tile = u / (DIM / 32), chunk = u % (DIM / 32);
        Codes codes = {{0, 0, 0, 0}};
#pragma unroll 1
        for (u32 p = 0; p < 16; ++p) {
            codes.set(p, staged[(16 * tile + token_of<KEY>(lane(), p)) * DIM + 32 * chunk + channel_of<KEY>(lane(), p)]);
        }
        store_levels<Turbo<KEY>::bits, COUNT>(section, u, codes);
    }
    gram.clear();
#pragma unroll
    for (u32 i = 0; i < TURNED_NORMS; ++i) top[i] = 0.0;
#pragma unroll 1
    for (u32 t = warp(); t < BLOCK; t += WARPS) {
        double y[PER];
        rotated<KEY>(w, t, y);
        const double radius = (double)w.scale[t];
        double error = 0.0, decoded = 0.0;
#pragma unroll
        for (u32 m = 0; m < PER; ++m) {
            const u32 c = 32 * m + lane();
            const double x = Turbo<KEY>::level(staged[t * DIM + c]) * radius, e = y[m] - x;
            error += e * e, decoded += x * x;
            w.raw[t * ROW + c] = h_rn((float)(e * unit));
        }
        error = warp_total(error), decoded = warp_total(decoded);
        top[0] = error > top[0] ? error : top[0], top[1] = decoded > top[1] ? decoded : top[1];
#if CKV_FOLD
        if constexpr (KEY) {
            double square = 0.0;
#pragma unroll
            for (u32 m = 0; m < PER; ++m) square += y[m] * y[m];
            square = warp_total(square);
            top[2] = square > top[2] ? square : top[2];
        }
#endif
    }
    sync_threads();
    gram.add(w.raw, ROW, DIM);
    sync_threads();
}
#endif

}  // namespace ckv_encode
