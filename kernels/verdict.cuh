// What kernels say of an output. The twin in Rust is `Certificate`.
#pragma once

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
