// How much a block may add to the bound of a head before its residuals are read: from what steps before this one have shown.
#pragma once

// Even shares to begin with, their limits, and how they change: down after a head over tolerance, up after a step that left half of
// it. `FADE` is how an old least norm rises.
constexpr float KAPPA = 3.0f, LEAST_KAPPA = 0.125f, MOST_KAPPA = 3.0f, KAPPA_UP = 1.02f, KAPPA_DOWN = 0.5f, FADE = 1.1f;

// Of a head of the group, in shared memory. What a block may add to the bound's numerator, as a share of the sum of weights; log2 of that
// sum over the blocks that were scored first; ||O' - c|| and the tolerance; how many blocks a warp's mean block stands for.
struct alignas(16) Limit {
    float share, log2_probed, reach, others;
};

// Of head `h` of the group at hand, which all tokens of a draft share.
CKV_FN CkvDemand* demand_of(const CkvAttendArgs& a, const Segment& seg, int h) {
    return a.demands + ((u64)seg.row * a.kv_heads + seg.kv) * OF_TOKEN + (DRAFTED ? h % OF_TOKEN : h);
}

// What a head has learned from this step. `norm`, `radius`: ||O'||, ||O' - c||.
CKV_FN void learn(CkvDemand& d, const CkvCertificate& c) {
    const bool fresh = !(d.kappa > 0.0f);
    const float faded = d.norm * FADE;
    // Written so that NaN does not stay.
    d.norm = fresh || !(c.norm >= faded) ? c.norm : faded;
    d.radius = c.radius;
    if (fresh) {
        d.kappa = KAPPA;
    } else if (c.status == 0) {
        d.kappa = fmaxf(d.kappa * KAPPA_DOWN, LEAST_KAPPA);
    } else if (c.bound < 0.5f * c.tolerance) {
        d.kappa = d.kappa * KAPPA_UP < MOST_KAPPA ? d.kappa * KAPPA_UP : MOST_KAPPA;
    }
}
