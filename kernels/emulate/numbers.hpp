// Numbers as the GPU computes them: halves, directed rounding, the matrix product.
#pragma once
#include <cmath>
#include <cstring>

namespace ckv_emulate {

// What a launch may ask for beside the plain meaning; the bits of Launch::options.
constexpr u32 TRUNCATE_PRODUCTS = 1;  // matrix products lose bits the way tensor cores do
constexpr u32 NOISY_APPROXIMATIONS = 2;  // ex2, lg2 and rcp err by up to what the machine allows
static u32 options = 0;
static u64 noise_state = 1;

static inline u64 mix(u64& state) {
    u64 z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

template <class To, class From> static inline To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}

static inline float canonical(float x) { return x != x ? bits<float>(0x7fffffffu) : x; }

enum class Round { nearest, up, down };

// An exact sum s + e with |e| at most half an ulp of s, as a double rounded to odd: rounding it again to a format with at
// most 51 bits gives what rounding the sum once would give, in every direction.
static inline double odd(double s, double e) {
    if (e == 0 || !std::isfinite(s) || std::isnan(e)) return s;
    const u64 b = bits<u64>(s);
    if (b & 1) return s;
    return std::nextafter(s, e > 0 ? HUGE_VAL : -HUGE_VAL);
}

static inline double odd_sum(double a, double b) {
    const double s = a + b, back = s - a;
    return odd(s, (a - (s - back)) + (b - back));
}

static inline float to_float(double v, Round mode) {
    const float f = (float)v;
    if (mode == Round::up && (double)f < v) return std::nextafterf(f, HUGE_VALF);
    if (mode == Round::down && (double)f > v) return std::nextafterf(f, -HUGE_VALF);
    return canonical(f);
}

// A sum that vanishes exactly is -0 when rounding down, unless both addends are +0.
static inline float sum_to_float(double a, double b, Round mode) {
    const double s = odd_sum(a, b);
    if (s == 0 && mode == Round::down && (std::signbit(a) || std::signbit(b))) return -0.0f;
    return to_float(s, mode);
}

static inline float quotient(float a, float b, Round mode) {
    const double q = (double)a / b;
    if (!std::isfinite(q) || q == 0 || std::isinf(b)) return canonical((float)q);
    const double rest = std::fma(-q, (double)b, (double)a);
    return to_float(odd(q, b < 0 ? -rest : rest), mode);
}

static inline float root(float a, Round mode) {
    const double s = std::sqrt((double)a);
    if (!std::isfinite(s) || s == 0) return canonical((float)s);
    return to_float(odd(s, std::fma(-s, s, (double)a)), mode);
}

// x in a 16-bit format with `digits` significant bits, least exponent `lowest` (of the last bit of a subnormal) and largest
// value `top`; the result is the value, not the bits.
static inline double to_grid(double x, int digits, int lowest, double top, Round mode) {
    if (x != x || std::isinf(x) || x == 0) return x;
    int e = 0;
    std::frexp(x, &e);
    const int last = e - digits > lowest ? e - digits : lowest;
    const double scaled = std::ldexp(x, -last);
    double n = 0;
    if (mode == Round::up) n = std::ceil(scaled);
    if (mode == Round::down) n = std::floor(scaled);
    if (mode == Round::nearest) n = std::nearbyint(scaled);
    double v = std::copysign(std::ldexp(n, last), x);
    if (v > top) v = mode == Round::down ? top : HUGE_VAL;
    if (v < -top) v = mode == Round::up ? -top : -HUGE_VAL;
    return v;
}

static inline u16 half_bits(double x, Round mode) {
    if (x != x) return 0x7fff;
    const double v = to_grid(x, 11, -24, 65504.0, mode);
    const u16 sign = std::signbit(v) ? 0x8000 : 0;
    if (std::isinf(v)) return sign | 0x7c00;
    const double m = std::fabs(v);
    if (m < 0x1p-14) return sign | (u16)(m * 0x1p24);
    int e = 0;
    const double f = std::frexp(m, &e);
    return sign | (u16)((e + 14) << 10) | (u16)((u32)(f * 2048.0) - 1024u);
}

// Most conversions are to nearest and of normal range: those go by the bits of the float.
static inline u16 half_nearest(float x) {
    const u32 b = bits<u32>(x), sign = (b >> 16) & 0x8000u, m = b & 0x7fffffffu;
    if (m >= 0x38800000u && m < 0x477fe000u) return (u16)(sign | ((m - 0x38000000u + 0xfffu + ((m >> 13) & 1u)) >> 13));
    return half_bits(x, Round::nearest);
}

static inline float half_value_slow(u16 h) {
    const u32 e = (h >> 10) & 31, m = h & 1023;
    float v = e == 31 ? (m ? bits<float>(0x7fffffffu) : HUGE_VALF)
                      : (e ? std::ldexp((float)(1024 + m), (int)e - 25) : std::ldexp((float)m, -24));
    return h & 0x8000 && v == v ? -v : v;
}

struct HalfTable {
    float value[65536];
    HalfTable() {
        for (u32 h = 0; h < 65536; ++h) value[h] = half_value_slow((u16)h);
    }
};
static const HalfTable half_table;

static inline float half_value(u16 h) { return half_table.value[h]; }

static inline u16 bf16_nearest(float x) {
    const u32 b = bits<u32>(x);
    return x != x ? 0x7fff : (u16)((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
}

// Applies f to both halves; f works on exact doubles and returns a double that is exact or rounded to odd.
template <class F> static inline u32 each_half(F f) {
    return (u32)half_bits(f(0), Round::nearest) | (u32)half_bits(f(16), Round::nearest) << 16;
}

// An approximation off by up to `ulps`, when the launch asks for it; exact results stay. As on a machine the same number is off by the
// same wherever it comes up: two lanes that compute it have the same bits.
static inline float noisy(float x, int ulps) {
    if (!(options & NOISY_APPROXIMATIONS) || !std::isfinite(x) || x == 0 || x == 1.0f) return canonical(x);
    u64 own = noise_state + ((u64)bits<u32>(x) << 20);
    const int by = (int)(mix(own) % (2 * (u64)ulps + 1)) - ulps;
    for (int i = 0; i < std::abs(by); ++i) x = std::nextafterf(x, by > 0 ? HUGE_VALF : -HUGE_VALF);
    return x;
}

// One element of a matrix product, the plain way: each product exact (16-bit factors have 22 product bits; a bf16 product
// outside the float range rounds), added in the order k = 0..15 to the accumulator, every sum rounded to nearest.
static inline float dot_in_order(float acc, const float* a, const float* b) {
    for (int k = 0; k < 16; ++k) acc += a[k] * b[k];
    return acc;
}

// The same the way tensor cores are observed to work: all terms are cut (towards zero) at 2^-24 of the leading bit of the largest
// magnitude among them, then summed exactly and cut to float.
static inline float dot_truncated(float acc, const float* a, const float* b) {
    double term[17], largest = 0;
    term[16] = acc;
    for (int k = 0; k < 16; ++k) term[k] = (double)a[k] * b[k];
    for (double t : term) {
        if (!std::isfinite(t)) return dot_in_order(acc, a, b);
        largest = std::fmax(largest, std::fabs(t));
    }
    if (largest == 0) return acc;
    const int last = std::ilogb(largest) - 24;
    double sum = 0;
    for (double t : term) sum += std::trunc(std::ldexp(t, -last));
    const double v = std::ldexp(sum, last);
    return to_float(v, v > 0 ? Round::down : Round::up);
}

// c += a b for the 32 lanes of a warp, m16n8k16; in[lane] = a0..a3, b0, b1; element i of a register pair is value(word >> 16 i).
template <class Value> static inline void multiply(float (*c)[4], const u32 (*in)[6], Value value) {
    float a[16][16], b[8][16];
    for (int lane = 0; lane < 32; ++lane) {
        const int g = lane / 4, t = 2 * (lane % 4);
        for (int i = 0; i < 2; ++i) {
            a[g][t + i] = value((u16)(in[lane][0] >> 16 * i));
            a[g + 8][t + i] = value((u16)(in[lane][1] >> 16 * i));
            a[g][t + 8 + i] = value((u16)(in[lane][2] >> 16 * i));
            a[g + 8][t + 8 + i] = value((u16)(in[lane][3] >> 16 * i));
            b[g][t + i] = value((u16)(in[lane][4] >> 16 * i));
            b[g][t + 8 + i] = value((u16)(in[lane][5] >> 16 * i));
        }
    }
    const bool cut = options & TRUNCATE_PRODUCTS;
    for (int lane = 0; lane < 32; ++lane) {
        const int g = lane / 4, t = 2 * (lane % 4);
        for (int i = 0; i < 4; ++i) {
            const float *row = a[g + 8 * (i / 2)], *column = b[t + i % 2];
            c[lane][i] = canonical(cut ? dot_truncated(c[lane][i], row, column) : dot_in_order(c[lane][i], row, column));
        }
    }
}

}  // namespace ckv_emulate
