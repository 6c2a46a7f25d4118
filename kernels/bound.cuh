// The sums that bound what codes and rounding do to an output: math.md (5.11) per block, (5.10) at the end. For every kernel that attends.
#pragma once
#include "verdict.cuh"
#include "sizes.cuh"

// Weights stay below 2^HEADROOM; m is set so that the largest is at most 2^AIM.
constexpr float HEADROOM = 14.0f;
constexpr float AIM = 12.0f;
// Running exponent of an empty sum: integer, far below every logit.
constexpr float EMPTY = -1073741824.0f;

// Upward factor over the few roundings of the certificate's own arithmetic.
constexpr float UP = 1.00001f;

CKV_FN constexpr float root(float x, float guess = 16.0f, int steps = 24) {
    return steps == 0 ? guess : root(x, 0.5f * (guess + x / guess), steps - 1);
}
constexpr float ROOT_D = root((float)D) * UP;
constexpr float ROOT_BLOCK = root((float)BLOCK) * UP;

// 2^k for an integer k <= 0 as it comes from exponents; 0 below the normal numbers.
CKV_FN float power_of_two(float k) {
    return k < -126.0f ? 0.0f : u32_as_float((u32)((i32)k + 127) << 23);
}

// The same from above, never 0: what bounds grow by may be too large for a float, and infinity times 0 is no number.
CKV_FN float power_of_two_up(float k) { return u32_as_float((u32)((i32)fmaxf(k, -126.0f) + 127) << 23); }

// The error summary of a record, in its stored order.
struct Summary {
    float kappa, eps, key_mag, key_norm, eta, sop, radius, value_norm;
};

CKV_FN Summary load_summary(const u8* at) {
    const Vec4 a = *(const Vec4*)at, b = *(const Vec4*)(at + 16);
    return Summary{u32_as_float(a.x), u32_as_float(a.y), u32_as_float(a.z), u32_as_float(a.w),
                   u32_as_float(b.x), u32_as_float(b.y), u32_as_float(b.z), u32_as_float(b.w)};
}

// Running sums of (5.11) of head lane % HEADS over every LOT-th block, relative to 2^m. `g_rows`, `gr_rows`: what the rounding of logits and
// weights adds, (5.28), which is all there is of blocks whose keys are exact. `gross`: of a correction, all weights added or taken away.
struct Sums {
    float m, g, gr, h, v, g_rows, gr_rows;
    float radius, value_norm;
    float gross;
};

CKV_FN void clear(Sums& s) {
    s.m = EMPTY;
    s.g = s.gr = s.h = s.v = s.g_rows = s.gr_rows = s.radius = s.value_norm = s.gross = 0.0f;
}

// A sum times 2^k, from above: what was taken away, which only a correction has, never counts for more.
CKV_FN float scaled_up(float x, float k) { return x * (CORRECTS && x < 0.0f ? power_of_two(k) : power_of_two_up(k)); }

CKV_FN void rescale(Sums& s, float m) {
    const float k = s.m - m;
    s.m = m;
    s.g = scaled_up(s.g, k), s.gr = scaled_up(s.gr, k), s.h = scaled_up(s.h, k), s.v = scaled_up(s.v, k);
    s.g_rows = scaled_up(s.g_rows, k), s.gr_rows = scaled_up(s.gr_rows, k);
    if constexpr (CORRECTS) s.gross = scaled_up(s.gross, k);
}

// Larger of two, keeping NaN.
CKV_FN float most(float a, float b) { return b <= a ? a : b; }
// Smaller of two; a NaN in the first is kept.
CKV_FN float least(float a, float b) { return b < a ? b : a; }

// Square root from above by a relative 2e-4 or less, in three operations; 0, infinity and NaN stay.
CKV_FN float root_up(float x) { return ex2(0.5f * lg2(x)) * 1.0002f; }

// phi(x) = (e^x - 1)/x from above, for x >= 0.
CKV_FN float phi_up(float x) {
    // x^2/6 + x^3/24 + ... <= 0.19 x^2 for x <= 1/2.
    const float near = 1.0f + x * (0.5f + 0.19f * x);
    const float far = (ex2(x * 1.4426951f * UP) * UP - 1.0f) * rcp(x);
    return (x <= 0.5f ? near : far) * UP;
}

// What bounds the logits of one block for one head: Delta, Lambda and zeta of math.md section 4, in nats.
struct LogitBound {
    float delta, lambda, zeta;
};

// The key term of a block (5.9): what its codes cost, and what the rounding of its logits by `z` adds to that, E(Delta + zeta) - E(Delta) of
// (5.28).
struct KeyTerm {
    float codes, rounding;
};
CKV_FN KeyTerm key_term(const LogitBound& k, float z, float W, float P) {
    const float phi = phi_up(k.delta + z), one = phi * W, two = phi * P;
    const float codes = least(one * k.delta, two * k.lambda), both = least(one * (k.delta + z), two * (k.lambda + ROOT_BLOCK * z));
    // What their difference lost is less than a millionth. Terms that no sum could hold are the codes' alone.
    return both < 1.0e30f ? KeyTerm{codes, both - codes + codes * 1.0e-6f} : KeyTerm{both, 0.0f};
}

// Beside every radius of a value worth the name.
constexpr float LEAST_RADIUS = 1.0e-30f;

// What add_block found: the key term's share G/W as if the block were scored from codes, and P/W.
struct Found {
    float share, evenness;
};

// Adds one block of one head. `w`, `square`: its sum of weights and of their squares, from the high halves alone, relative to
// the exponent of the sums.
CKV_FN Found add_block(Sums& s, const Summary& b, const LogitBound& k, float zeta, bool exact_keys, bool exact_values, float w,
                       float square) {
    // What the high halves and their floor leave out.
    const float W = w * 1.001f + BLOCK * 6.0e-8f, P = root_up(square) * 1.001f + ROOT_BLOCK * 6.0e-8f;
    // x - m is rounded relative to its size; ex2 and the pair of halves each by 2^-22.
    const float z = zeta + 1.3e-7f * fabsf(s.m) + 8.0e-7f;
    const float delta = k.delta + z, lambda = k.lambda + ROOT_BLOCK * z;
    // As if from codes, which is what a promotion would save.
    const KeyTerm key = key_term(k, z, W, P);
    const float code = key.codes * UP;
    s.radius = most(b.radius, s.radius);
    s.value_norm = most(b.value_norm, s.value_norm);
    // Never 0, by which infinity would be no number.
    const float radius = b.radius + LEAST_RADIUS;
    // 1 - e^-x <= x - x^2/2 + x^3/6, and at most 1.
    const float x = exact_keys ? z : delta, two = P * (exact_keys ? ROOT_BLOCK * z : lambda);
    s.h += least(W * least(x * (1.0f - x * (0.5f - x * 0.16667f)) * UP, 1.0f), two) * UP;
    if (exact_keys) {
        // z is small: (e^z - 1)/z <= 1 + z for z <= 1.
        const float g = z <= 1.0f ? W * z * (1.0f + z) * UP : u32_as_float(0x7f800000u);
        s.g_rows += g, s.gr_rows += g * radius;
    } else {
        s.g += code, s.gr += code * radius;
        s.g_rows += key.rounding, s.gr_rows += key.rounding * radius;
    }
    if (!exact_values) s.v += least(W * b.eta, P * b.sop) * UP;
    const float inverse = rcp(W);
    return Found{code * inverse, P * inverse};
}

// All that is known of one head's output when its blocks have been added: the sums relative to 2^m, the largest distance of a value from the
// centre, and ||O'|| and ||O' - c|| as computed.
struct Judged {
    float m, l, g, gr, h, v, g_rows, gr_rows, most_radius, norm, radius;
};

// Its certificate, (5.10) and (5.28). `accumulated`: (5.27).
CKV_FN CkvCertificate conclude(const Judged& s, float accumulated, float relative, float absolute) {
    const float inf = u32_as_float(0x7f800000u);
    CkvCertificate c;
    c.norm = s.norm;
    c.radius = s.radius;
    c.rung = 0;
    c.refined_keys = c.refined_values = 0;
    c.tolerance = fmaxf(relative * s.norm * 0.9999f, absolute);
    c.lse = (s.m + lg2(s.l)) * 0.69314718f;
    c.status = 0;
    const float inverse = rcp(s.l) * UP;
    const float reach = s.radius * UP + accumulated + LEAST_RADIUS;
    const float left = 1.0f - s.h * inverse * UP;
    // Together first: less than a float holds, divided by l, would be 0 times infinity.
    const float over = inverse * (left > 0.0f ? rcp(left) * UP * UP : inf);
    const float of_keys = s.gr + reach * s.g, moved = s.gr_rows + reach * s.g_rows;
    // Nothing stays nothing; what is no number, or less than nothing, has no bound but the cap.
    const float key = of_keys == 0.0f ? 0.0f : of_keys * over, value = s.v == 0.0f ? 0.0f : s.v * over;
    c.e_key = key >= 0.0f ? key : inf;
    c.e_val = value >= 0.0f ? value : inf;
    // No weights, however wrong, take the output farther than the cap: it holds for what codes and rounding do together. Written so that NaN
    // ends in infinity.
    const float cap = s.most_radius + reach;
    const float all_rows = moved == 0.0f ? 0.0f : moved * over, rows = all_rows < 0.0f || all_rows > cap ? cap : all_rows;
    const float sum = c.e_key + c.e_val, whole = sum + rows, most_whole = cap < inf ? cap : inf;
    const float quant = sum <= cap ? sum : most_whole;
    const float total = (whole <= cap ? whole : most_whole) + accumulated;
    const bool finite = s.l > 0.0f && s.l < inf && total < inf && rows < inf && s.norm < inf;
    if (!finite) {
        c.e_key = c.e_val = c.e_arith = c.bound = inf;
        return c;
    }
    c.e_arith = (rows + accumulated) * UP;
    c.bound = total * UP;
    const bool exact = s.g == 0.0f && s.gr == 0.0f && s.v == 0.0f;
    if (exact) {
        c.status = 2;
    } else if (quant <= c.tolerance) {
        c.status = 1;
    }
    return c;
}
