#!/usr/bin/env bash
# kernels/bundle.sh OUT: a folder that a GPU machine without Rust can run: release programs, machine code of the usual
# variants, and run.sh. Here it needs Rust and NVRTC: CUDA_HOME names a toolkit, else .ci/cuda-toolkit makes one.
set -euo pipefail

# PACKAGE:EXAMPLE of every program.
PROGRAMS=${PROGRAMS:-certkv-device:cuda_smoke certkv-device:gpu_planted certkv-kernel:gpu_parity certkv-kernel:gpu_bench certkv-kernel:gpu_verbs certkv:gpu_engine certkv:gpu_swap certkv:gpu_states}
# Code made ahead of time, on every architecture; what else a program wants it compiles, where there is NVRTC.
ARCHS=${ARCHS:-80,89,90a,100a,120a}
VARIANTS=${VARIANTS:-k8-v4g64-b64/f16/d128/g4,k8-v4g64-b64/f16/d128/g4/wide,k8-v4g64-b64/f16/d128/g8,k8-v4g64-b64-r8.4/f16/d128/g4,k8-v4g64-b64-r8.4/f16/d128/g4/wide,k8-v4g64-b64-r8.4/f16/d128/g4/correct,f16-f16-b16/f16/d128/g4}
MOST_BYTES=$((40 * 1024 * 1024))

if [ $# -ne 1 ]; then
    echo 'usage: kernels/bundle.sh OUT' >&2
    exit 2
fi
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
home=${CUDA_HOME:-}
if [ -z "$home" ]; then
    home=target/cuda-toolkit
    .ci/cuda-toolkit "$home"
fi
rm -rf "$out/bin" "$out/cubins"
mkdir -p "$out/bin"
built=${CARGO_TARGET_DIR:-target}/release/examples
for program in $PROGRAMS; do
    cargo build --release -p "${program%%:*}" --example "${program##*:}"
    install "$built/${program##*:}" "$out/bin/"
    strip "$out/bin/${program##*:}"
done
# The gate on spills is .ci/kernels; here a slow kernel is better than none.
cargo run -p certkv-kernel --example compile_kernels -- --nvrtc "$home/lib64/libnvrtc.so.13" \
    --archs "$ARCHS" --variants "$VARIANTS" --out "$out/cubins" --allow-failures
install kernels/bundle/run.sh "$out/run.sh"

bytes=$(du -sb "$out/bin" "$out/cubins" "$out/run.sh" | awk '{sum += $1} END {print sum}')
printf 'bundle: %s, %d files, %d bytes\n' "$out" "$(find "$out" -type f | wc -l)" "$bytes"
if [ "$bytes" -gt "$MOST_BYTES" ]; then
    printf 'bundle: more than %d bytes\n' "$MOST_BYTES" >&2
    exit 1
fi
