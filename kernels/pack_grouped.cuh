// Codes keys in groups of unlike width, math.md (2.19c): the part of pack.cuh that goes by rows of such. A warp takes a row at a time, place 32 m + lane in y[m].
// Widths, levels and rotations are the head's table's (grouped.cuh). Twin of groups.rs.
#pragma once

#if CKV_GROUPED
namespace ckv_encode {

// What a warp needs for rotations lies behind the codes of all rows, a byte each, in the place of errors.
constexpr u32 TILES = DIM / 16, SUMS = 2 * TILES + CKV_KEY_SLOTS;
static_assert(BLOCK * DIM + 8 * WARPS * (DIM + SUMS) <= ERROR_BYTES && CKV_KEY_SLOTS <= 32, "rows and sums fit");

// The head's table, behind everything else: to be read there by all rows.
CKV_FN const u32* table_of(const Work& w) { return (const u32*)((u8*)w.raw + AT_TABLE); }
CKV_FN void stage_table(const Work& w, const float* metric) {
    u32* table = (u32*)((u8*)w.raw + AT_TABLE);
    for (u32 i = threadIdx.x; i < ckv_grouped::WORDS; i += THREADS) table[i] = ckv_grouped::table_of(metric, 0)[i];
}

// A row around its centre, every channel times its scale, and each group of it rotated, by place; the warp's own, until its next.
CKV_FN const double* grouped_row(const Work& w, u32 token) {
    double* own = (double*)((u8*)w.errors + BLOCK * DIM) + warp() * DIM;
    const u32* table = table_of(w);
    syncwarp();
#pragma unroll
    for (u32 m = 0; m < DIM / 32; ++m) {
        const u32 channel = ckv_grouped::channel_at(table, 32 * m + lane());
        own[32 * m + lane()] = ((double)original<STORE>(w.raw[token * ROW + channel]) - (double)metric_of(w)[channel]) * (double)metric_of(w)[DIM + channel];
    }
    ckv_grouped::turn<double>(table, [own](u32 place) -> double& { return own[place]; });
    return own;
}
// Numbers that a warp's lanes tell each other beside the row: sums of tiles, twice, then a number of each group.
CKV_FN double* sums_of(const Work& w) { return (double*)((u8*)w.errors + BLOCK * DIM) + WARPS * DIM + warp() * SUMS; }

CKV_FN double level_of(const u32* table, u32 tile, u32 code) {
    const u32 half = 1u << (ckv_grouped::bits_of(tile) - 1);
    const u8* levels = (const u8*)(table + ckv_grouped::AT_LEVELS + ckv_grouped::LEVEL_WORDS * ckv_grouped::group_of(tile));
    const double size = (double)(u32)levels[code & (half - 1)];
    return code & half ? size : -size;
}

// The code of a coordinate `y` of a group of norm `by`: a sign, and how many thresholds lie below the magnitude. A tie takes the lower level.
CKV_FN u32 grouped_code(const u32* table, u32 tile, double y, double by) {
    const double* thresholds = (const double*)(table + ckv_grouped::AT_THRESHOLDS) + ckv_grouped::THRESHOLDS * ckv_grouped::group_of(tile);
    const bool positive = y > 0.0;
    const double size = magnitude(y);
    u32 index = 0;
    const u32 half = 1u << (ckv_grouped::bits_of(tile) - 1);
#pragma unroll 1
    for (u32 step = half / 2; step > 0; step /= 2) {
        const double at = thresholds[index + step - 1] * by;
        if (positive ? at < size : at <= size) index += step;
    }
    return index | (positive ? half : 0);
}

// Places of a lane that are held in registers at a time, and how many of them a row has.
constexpr u32 HELD = DIM > 64 ? 4 : 2, PLACES = DIM / 32;

// Sums over the 16 places of each tile to `sums`, by tile, of the places 32 (from + m) + lane in x[m]: lanes halve what they hold as they add.
CKV_FN void tile_sums(double (&x)[HELD], u32 from, double* sums) {
#pragma unroll
    for (u32 n = HELD, d = 8; d > 0; d /= 2) {
        if (n == 1) {
            x[0] += shfl_xor(x[0], (int)d);
            continue;
        }
        n /= 2;
#pragma unroll
        for (u32 m = 0; m < n; ++m) {
            const double low = x[m], high = x[m + n];
            x[m] = (lane() & d ? high : low) + shfl_xor(lane() & d ? low : high, (int)d);
        }
    }
    const u32 m = from + (lane() & 15) / (16 / HELD);
    if (lane() % (16 / HELD) == 0 && m < PLACES) sums[2 * m + (lane() >> 4)] = x[0];
}

// As turbo_scales: codes of all rows, a byte each, in the place of errors; radii to `section`, by group and token, and w.scale, norms to w.offset. Returns
// OVERFLOW if one does not fit. All groups of a row at once: a lane sums the tiles of one.
CKV_FN u32 grouped_scales(const Work& w, u8* section) {
    const u32* table = table_of(w);
    double *sums = sums_of(w), *norms = sums + 2 * TILES;
    // The tiles of this lane's group, if it has one.
    u32 first = TILES, end = 0, bad = 0;
#pragma unroll 1
    for (u32 tile = 0; tile < TILES; ++tile) {
        if (ckv_grouped::group_of(ckv_grouped::tile_at(table, tile)) == lane()) first = tile < first ? tile : first, end = tile + 1;
    }
#pragma unroll 1
    for (u32 t = warp(); t < BLOCK; t += WARPS) {
        const double* y = grouped_row(w, t) + lane();
        u8* staged = (u8*)w.errors + t * DIM + lane();
#pragma unroll 1
        for (u32 from = 0; from < PLACES; from += HELD) {
            double x[HELD];
#pragma unroll
            for (u32 m = 0; m < HELD; ++m) x[m] = from + m < PLACES ? y[32 * (from + m)] * y[32 * (from + m)] : 0.0;
            tile_sums(x, from, sums);
        }
        syncwarp();
        double norm = 0.0;
#pragma unroll 1
        for (u32 tile = first; tile < end; ++tile) norm += sums[tile];
        norm = sqrt(norm);
        if (lane() < CKV_KEY_SLOTS) norms[lane()] = norm;
        syncwarp();
#pragma unroll 1
        for (u32 from = 0; from < PLACES; from += HELD) {
            double x[HELD];
            u32 tiles[HELD], codes[HELD];
#pragma unroll
            for (u32 m = 0; m < HELD; ++m) {
                if (from + m >= PLACES) {
                    x[m] = 0.0, tiles[m] = codes[m] = 0;
                    continue;
                }
                tiles[m] = ckv_grouped::tile_at(table, 2 * (from + m) + (lane() >> 4));
                const double by = norms[ckv_grouped::group_of(tiles[m])], at = y[32 * (from + m)];
                codes[m] = grouped_code(table, tiles[m], at, by > 0.0 ? by : 1.0);
                staged[32 * (from + m)] = (u8)codes[m];
                x[m] = level_of(table, tiles[m], codes[m]) * at;
            }
            tile_sums(x, from, sums);
#pragma unroll
            for (u32 m = 0; m < HELD; ++m) {
                const double level = from + m < PLACES ? level_of(table, tiles[m], codes[m]) : 0.0;
                x[m] = level * level;
            }
            tile_sums(x, from, sums + TILES);
        }
        syncwarp();
        double of_products = 0.0, of_levels = 0.0;
#pragma unroll 1
        for (u32 tile = first; tile < end; ++tile) of_products += sums[tile], of_levels += sums[TILES + tile];
        const double fitted = larger(of_products / of_levels, 0.0), radius = round_nearest<F16>(norm > 0.0 ? fitted : 0.0);
        // Slots without a group have zeros.
        if (!is_finite(radius)) bad = OVERFLOW;
        else if (lane() < CKV_KEY_SLOTS) store_scale<F16>(section, lane() * BLOCK + t, radius), put_step(w, lane() * BLOCK + t, radius, norm);
    }
    return bad;
}

// Planes of a unit of a tile: up to four bits as other levels have them; of wider ones the magnitude's lower four bits, then the rest.
CKV_FN void store_grouped(u8* codes, u32 bits, u32 unit, const Codes& of) {
    constexpr u32 UNITS = ckv_grouped::UNITS;
    switch (bits) {
    case 1: store_level_plane<1>(codes, unit, of, 0); break;
    case 2: store_level_plane<2>(codes, unit, of, 0); break;
    case 3: store_level_plane<2>(codes, unit, of, 1), store_level_plane<1>(codes + 128 * UNITS, unit, of, 0); break;
    case 4: store_level_plane<4>(codes, unit, of, 0); break;
    case 5: store_plane<4>(codes, unit, of, 0), store_plane<1>(codes + 256 * UNITS, unit, of, 4); break;
    default: store_plane<4>(codes, unit, of, 0), store_plane<2>(codes + 256 * UNITS, unit, of, 4); break;
    }
}

// As turbo_measure: codes to the record, errors in the place of the originals, and in `top` the largest squared norm of an error, of a decoded row, and of a row as it is coded.
CKV_FN void grouped_measure(const Work& w, u8* section, double unit, Product<BLOCK>& gram, double (&top)[TURNED_NORMS]) {
    const u32* table = table_of(w);
    constexpr u32 UNIT_PLACES = BLOCK < 32 ? 32 : 16, UNITS = ckv_grouped::UNITS;
    const u8* staged = (const u8*)w.errors;
#pragma unroll 1
    for (u32 u = warp(); u < DIM / UNIT_PLACES * UNITS; u += WARPS) {
        const u32 number = u / UNITS, first = 32 * (u % UNITS), at = number * (UNIT_PLACES / 16);
        Codes codes = {{0, 0, 0, 0}};
#pragma unroll 1
        for (u32 p = 0; p < 16; ++p) {
            const u32 operand = p >> 3, within = lane() / 4 + 8 * (p >> 1 & 1), place = 4 * (lane() % 4) + 2 * (p >> 2 & 1) + (p & 1);
            const u32 token = UNIT_PLACES == 32 ? within : first + 16 * operand + within;
            codes.set(p, staged[token * DIM + number * UNIT_PLACES + (UNIT_PLACES == 32 ? 16 * operand : 0) + place]);
        }
        store_grouped(section + ckv_grouped::codes_before(table, at), ckv_grouped::bits_of(ckv_grouped::tile_at(table, at)), u % UNITS, codes);
    }
    gram.clear();
#pragma unroll
    for (u32 i = 0; i < TURNED_NORMS; ++i) top[i] = 0.0;
#pragma unroll 1
    for (u32 t = warp(); t < BLOCK; t += WARPS) {
        const double* y = grouped_row(w, t);
        double error = 0.0, decoded = 0.0, square = 0.0;
#pragma unroll HELD
        for (u32 p = lane(); p < DIM; p += 32) {
            const u32 tile = ckv_grouped::tile_at(table, p / 16);
            const double radius = (double)w.scale[ckv_grouped::group_of(tile) * BLOCK + t];
            const double x = level_of(table, tile, staged[t * DIM + p]) * radius, e = y[p] - x;
            error += e * e, decoded += x * x, square += y[p] * y[p];
            w.raw[t * ROW + p] = h_rn((float)(e * unit));
        }
        error = warp_total(error), decoded = warp_total(decoded), square = warp_total(square);
        top[0] = larger(error, top[0]), top[1] = larger(decoded, top[1]), top[2] = larger(square, top[2]);
    }
    sync_threads();
    gram.add(w.raw, ROW, DIM);
    sync_threads();
}

// ||x||^2 as key_magnitude: of every group the largest level times the largest radius, in all of its channels.
CKV_FN double grouped_magnitude(const Work& w) {
    double square = 0.0;
    if (threadIdx.x < DIM / 16) {
        const u32 tile = ckv_grouped::tile_at(table_of(w), threadIdx.x);
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
