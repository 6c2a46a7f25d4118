// A partial result: what some blocks of a KV head add to its outputs and certificates, as kernels leave it for others to merge.
#pragma once
#include "sizes.cuh"

// Numbers of the certificate that one head keeps beside its output: see attend/certificate.cuh.
constexpr int SCALARS = 13;
// [GROUP][D] outputs relative to 2^m, then SCALARS numbers per head.
constexpr int PARTIAL = GROUP * D + GROUP * SCALARS;
constexpr int PARTIAL_STRIDE = (PARTIAL + 3) / 4 * 4;

// Places of a head's scalars.
enum { AT_M, AT_L, AT_G, AT_GR, AT_H, AT_V, AT_G_ROWS, AT_GR_ROWS, AT_GROSS, AT_RADIUS, AT_NORM, AT_CHAIN, AT_FLAGS };
