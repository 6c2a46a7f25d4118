// What kernels say of an output. The twin in Rust is `Certificate`.
#pragma once

// A tolerance: the larger of a share of the output's norm and of a length.
struct alignas(8) CkvLimit {
    float relative, absolute;
};

// That of query head `head` of a sequence: its own, where `a` has them.
template <class Args> __device__ __forceinline__ CkvLimit limit_of(const Args& a, u32 head) {
    return a.limits ? ldg(a.limits + head) : CkvLimit{a.relative, a.absolute};
}

// What is known of one query head's output. `status`: 0 uncertified, 1 certified, 2 exact.
struct CkvCertificate {
    float e_key, e_val, e_arith, bound;
    float tolerance;
    float norm, radius;  // ||O'||, ||O' - c||
    float lse;           // nats
    u32 status;
    u32 rung;            // written by whoever runs the ladder
    u32 refined_keys;    // of a corrected head: blocks whose residuals the correction read beside what the pass had, of keys, of values
    u32 refined_values;
};
