// Codes keys in groups of unlike width, math.md (2.19c): the part of pack.cuh that goes by rows of such. A warp takes a row at a time, place 32 m + lane in y[m].
// Widths, levels and rotations are the head's table's (grouped.cuh). Twin of groups.rs.
#pragma once

#if CKV_GROUPED
namespace ckv_encode {

// What a warp needs for rotations lies behind the codes of all rows, a byte each, in the place of errors.
static_assert(BLOCK * DIM + 8 * WARPS * DIM <= ERROR_BYTES, "rows fit");

// A row around its centre, every channel times its scale, and each group of it rotated.
CKV_FN void grouped_row(const Work& w, const u32* head, u32 token, double (&y)[DIM / 32]) {
#pragma unroll
    for (u32 m = 0; m < DIM / 32; ++m) {
        const u32 channel = ckv_grouped::channel_at(head, 32 * m + lane());
        y[m] = ((double)original<STORE>(w.raw[token * ROW + channel]) - (double)metric_of(w)[channel]) * (double)metric_of(w)[DIM + channel];
    }
    double* own = (double*)((u8*)w.errors + BLOCK * DIM) + warp() * DIM;
    ckv_grouped::turn(head, y, [own](u32 place) -> double& { return own[place]; });
}

// Of every place the sum over its group.
CKV_FN void group_totals(const double (&x)[DIM / 32], const u32 (&tile)[DIM / 32], double (&total)[DIM / 32]) {
    double even[DIM / 32], odd[DIM / 32];
    u32 group_even[DIM / 32], group_odd[DIM / 32];
#pragma unroll
    for (u32 m = 0; m < DIM / 32; ++m) {
        double sum = x[m];
#pragma unroll
        for (int d = 8; d > 0; d >>= 1) sum += shfl_xor(sum, d);
        even[m] = shfl(sum, 0), odd[m] = shfl(sum, 16);
        const u32 group = ckv_grouped::group_of(tile[m]);
        group_even[m] = shfl(group, 0), group_odd[m] = shfl(group, 16);
    }
#pragma unroll
    for (u32 m = 0; m < DIM / 32; ++m) {
        const u32 group = ckv_grouped::group_of(tile[m]);
        double sum = 0.0;
#pragma unroll
        for (u32 k = 0; k < DIM / 32; ++k) sum += (group_even[k] == group ? even[k] : 0.0) + (group_odd[k] == group ? odd[k] : 0.0);
        total[m] = sum;
    }
}

CKV_FN double level_of(const u32* head, u32 tile, u32 code) {
    const u32 half = 1u << (ckv_grouped::bits_of(tile) - 1);
    const u8* levels = (const u8*)(head + ckv_grouped::AT_LEVELS + ckv_grouped::LEVEL_WORDS * ckv_grouped::group_of(tile));
    const double size = (double)(u32)ldg(levels + (code & (half - 1)));
    return code & half ? size : -size;
}

// The code of a coordinate `y` of a group of norm `by`: a sign, and how many thresholds lie below the magnitude. A tie takes the lower level.
CKV_FN u32 grouped_code(const u32* head, u32 tile, double y, double by) {
    const double* thresholds = (const double*)(head + ckv_grouped::AT_THRESHOLDS) + ckv_grouped::THRESHOLDS * ckv_grouped::group_of(tile);
    const bool positive = y > 0.0;
    const double size = magnitude(y);
    u32 index = 0;
    const u32 half = 1u << (ckv_grouped::bits_of(tile) - 1);
#pragma unroll 1
    for (u32 step = half / 2; step > 0; step /= 2) {
        const double at = ldg(thresholds + index + step - 1) * by;
        if (positive ? at < size : at <= size) index += step;
    }
    return index | (positive ? half : 0);
}

// As turbo_scales: codes of all rows, a byte each, in the place of errors; radii to `section`, by group and token, and w.scale, norms to w.offset. Returns
// OVERFLOW if one does not fit.
CKV_FN u32 grouped_scales(const Work& w, const u32* head, u8* section) {
    u8* staged = (u8*)w.errors;
    u32 tile[DIM / 32], bad = 0;
#pragma unroll
    for (u32 m = 0; m < DIM / 32; ++m) tile[m] = ckv_grouped::tile_at(head, 2 * m + lane() / 16);
    const u32 count = ckv_grouped::group_of(ckv_grouped::tile_at(head, DIM / 16 - 1)) + 1;
#pragma unroll 1
    for (u32 t = warp(); t < BLOCK; t += WARPS) {
        double y[DIM / 32], x[DIM / 32], norm[DIM / 32], product[DIM / 32], levels[DIM / 32];
        grouped_row(w, head, t, y);
#pragma unroll
        for (u32 m = 0; m < DIM / 32; ++m) x[m] = y[m] * y[m];
        group_totals(x, tile, norm);
#pragma unroll
        for (u32 m = 0; m < DIM / 32; ++m) {
            norm[m] = sqrt(norm[m]);
            const u32 code = grouped_code(head, tile[m], y[m], norm[m] > 0.0 ? norm[m] : 1.0);
            staged[t * DIM + 32 * m + lane()] = (u8)code;
            const double level = level_of(head, tile[m], code);
            product[m] = level * y[m], x[m] = level * level;
        }
        group_totals(x, tile, levels);
#pragma unroll
        for (u32 m = 0; m < DIM / 32; ++m) x[m] = product[m];
        group_totals(x, tile, product);
#pragma unroll
        for (u32 m = 0; m < DIM / 32; ++m) {
            const double fitted = larger(product[m] / levels[m], 0.0);
            const double radius = round_nearest<F16>(norm[m] > 0.0 ? fitted : 0.0);
            if (!is_finite(radius)) bad = OVERFLOW;
            const u32 at = ckv_grouped::group_of(tile[m]) * BLOCK + t;
            if (ckv_grouped::ends(tile[m]) && lane() % 16 == 0 && is_finite(radius)) store_scale<F16>(section, at, radius), put_step(w, at, radius, norm[m]);
        }
        if (lane() >= count && lane() < CKV_KEY_SLOTS) store_scale<F16>(section, lane() * BLOCK + t, 0.0), put_step(w, lane() * BLOCK + t, 0.0, 0.0);
    }
    return bad;
}

// Planes of a unit of a tile: up to four bits as other codes have them; of wider ones the magnitude's lower four bits, then the rest.
CKV_FN void store_grouped(u8* codes, u32 bits, u32 unit, const Codes& of) {
    constexpr u32 UNITS = ckv_grouped::UNITS;
    switch (bits) {
    case 1: store_plane<1>(codes, unit, of, 0); break;
    case 2: store_plane<2>(codes, unit, of, 0); break;
    case 3: store_plane<2>(codes, unit, of, 1), store_plane<1>(codes + 128 * UNITS, unit, of, 0); break;
    case 4: store_plane<4>(codes, unit, of, 0); break;
    case 5: store_plane<4>(codes, unit, of, 0), store_plane<1>(codes + 256 * UNITS, unit, of, 4); break;
    default: store_plane<4>(codes, unit, of, 0), store_plane<2>(codes + 256 * UNITS, unit, of, 4); break;
    }
}

// As turbo_measure: codes to the record, errors, and in `top` the largest squared norm of an error, of a decoded row, and of a row as it is coded.
CKV_FN void grouped_measure(const Work& w, const u32* head, u8* section, double unit, Product<BLOCK>& gram, double (&top)[TURNED_NORMS]) {
    constexpr u32 PLACES = BLOCK < 32 ? 32 : 16, UNITS = ckv_grouped::UNITS;
    const u8* staged = (const u8*)w.errors;
#pragma unroll 1
    for (u32 u = warp(); u < DIM / PLACES * UNITS; u += WARPS) {
        const u32 number = u / UNITS, first = 32 * (u % UNITS), tile = ckv_grouped::tile_at(head, number * (PLACES / 16));
        Codes codes = {{0, 0, 0, 0}};
#pragma unroll 1
        for (u32 p = 0; p < 16; ++p) {
            const u32 operand = p >> 3, within = lane() / 4 + 8 * (p >> 1 & 1), place = 4 * (lane() % 4) + 2 * (p >> 2 & 1) + (p & 1);
            const u32 token = PLACES == 32 ? within : first + 16 * operand + within;
            codes.set(p, staged[token * DIM + number * PLACES + (PLACES == 32 ? 16 * operand : 0) + place]);
        }
        store_grouped(section + ckv_grouped::codes_before(tile), ckv_grouped::bits_of(tile), u % UNITS, codes);
    }
    u32 tile[DIM / 32];
#pragma unroll
    for (u32 m = 0; m < DIM / 32; ++m) tile[m] = ckv_grouped::tile_at(head, 2 * m + lane() / 16);
    gram.clear();
#pragma unroll
    for (u32 i = 0; i < TURNED_NORMS; ++i) top[i] = 0.0;
#pragma unroll 1
    for (u32 first = 0; first < DIM; first += CHUNK) {
        const u32 width = first + CHUNK <= DIM ? CHUNK : DIM - first;
#pragma unroll 1
        for (u32 t = warp(); t < BLOCK; t += WARPS) {
            double y[DIM / 32], error = 0.0, decoded = 0.0, square = 0.0;
            grouped_row(w, head, t, y);
#pragma unroll
            for (u32 m = 0; m < DIM / 32; ++m) {
                const u32 c = 32 * m + lane();
                const double radius = (double)w.scale[ckv_grouped::group_of(tile[m]) * BLOCK + t];
                const double x = level_of(head, tile[m], staged[t * DIM + c]) * radius, e = y[m] - x;
                error += e * e, decoded += x * x, square += y[m] * y[m];
                if (c >= first && c < first + width) w.halves[t * PITCH + c - first] = h_rn((float)(e * unit));
            }
            error = warp_total(error), decoded = warp_total(decoded), square = warp_total(square);
            top[0] = larger(error, top[0]), top[1] = larger(decoded, top[1]), top[2] = larger(square, top[2]);
        }
        sync_threads();
        gram.add(w.halves, PITCH, width);
        sync_threads();
    }
}

// ||x||^2 as key_magnitude: of every group the largest level times the largest radius, in all of its channels.
CKV_FN double grouped_magnitude(const Work& w, const u32* head) {
    double square = 0.0;
    if (threadIdx.x < DIM / 16) {
        const u32 tile = ckv_grouped::tile_at(head, threadIdx.x);
        double x = 0.0;
#pragma unroll 4
        for (u32 t = 0; t < BLOCK; ++t) x = larger((double)w.scale[ckv_grouped::group_of(tile) * BLOCK + t], x);
        x *= ckv_grouped::bits_of(tile) > 4 ? 127.0 : 63.0;
        square = 16.0 * x * x;
    }
    return cta_sum(square, w.slots);
}

}  // namespace ckv_encode
#endif
