#!/usr/bin/env bash
# run.sh [RESULTS]: what a bundle holds, on a GPU: parity with the CPU, the same small cases under compute-sanitizer if it is
# installed (after kernels with planted defects, of which each tool must report its own), a small life of the engine under it (where
# ladders run), the engine, and the measurements. Results
# go to RESULTS (default: results beside this file); the exit code is 0 if something ran and all of it passed. NVRTC may name
# libnvrtc.so; SKIP lists steps to leave out (smoke, parity, sanitizer, engine, bench).
#
# Programs exit with 0: passed, 2: nothing to run on, else: failed.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
results=${1:-$here/results}
mkdir -p "$results"
mkdir -p "$results/cache"
common=(--cubins "$here/cubins" --cache "$results/cache")
if [ -n "${NVRTC:-}" ]; then
    export LD_LIBRARY_PATH=$(dirname "$NVRTC")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
summary=$results/summary.csv
echo 'step,status,seconds' >"$summary"
failed=0
passed=0

# step NAME GROUP COMMAND..: runs it with its output in a log of its own.
step() {
    local name=$1 group=$2 start=$SECONDS status
    shift 2
    case " ${SKIP:-} " in
    *" $group "*) status=skipped ;;
    *)
        if [ ! -x "$1" ] && ! command -v "$1" >/dev/null; then
            status=absent
        elif timeout "${LIMIT:-300}" "$@" >"$results/$name.log" 2>&1; then
            status=passed
            passed=$((passed + 1))
        else
            status="failed($?)"
            if [ "$status" = 'failed(2)' ]; then
                status=unable
            else
                failed=$((failed + 1))
            fi
        fi
        ;;
    esac
    echo "$name,$status,$((SECONDS - start))" >>"$summary"
    printf '%-24s %-12s %4d s\n' "$name" "$status" "$((SECONDS - start))"
    if [[ $status == failed* || $status == unable ]]; then
        tail -n 15 "$results/$name.log" | sed 's/^/    /'
    fi
}

if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv | tee "$results/gpu.csv"
fi
step smoke smoke "$here/bin/cuda_smoke" 0 ${NVRTC:+"$NVRTC"}
step parity parity "$here/bin/gpu_parity" "${common[@]}"

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | tail -n 1 || true)
# caught TOOL: whether the tool reports the defect that was planted for it.
caught() {
    "${sanitizer:-compute-sanitizer}" --tool "$1" --error-exitcode 9 "$here/bin/gpu_planted" "$1" ${NVRTC:+"$NVRTC"}
    local status=$?
    printf 'GATE planted-%s executed=1 failed=0 controls=%d/1 seed=0x0\n' "$1" "$((status == 9))"
    [ "$status" -eq 9 ]
}
export -f caught
export here sanitizer
for tool in memcheck racecheck initcheck synccheck; do
    if [ -x "$here/bin/gpu_parity" ] && command -v "${sanitizer:-compute-sanitizer}" >/dev/null; then
        step "planted-$tool" sanitizer bash -c "caught $tool"
    fi
    step "$tool" sanitizer "${sanitizer:-compute-sanitizer}" --tool "$tool" --num-cuda-barriers 200000 --report-api-errors no \
        --error-exitcode 9 "$here/bin/gpu_parity" "${common[@]}" --small
done
# Not initcheck: open blocks are read whole and copied whole, and rows that nobody wrote are masked (gpu_states holds that to the bit).
for tool in memcheck racecheck "synccheck --num-cuda-barriers 4096"; do
    for format in k8-v4g64-b64-r8.4 k8-v4g32-b16; do
        # shellcheck disable=SC2086 # a tool and its option
        step "engine-${tool%% *}-$format" sanitizer "${sanitizer:-compute-sanitizer}" --tool $tool --report-api-errors no \
            --error-exitcode 9 "$here/bin/gpu_engine" --cache "$results/cache" --small --steps 20 --replays 4 \
            --only windows --format "$format"
    done
done

step engine engine "$here/bin/gpu_engine" --cache "$results/cache" --small
step swap engine "$here/bin/gpu_swap" --cache "$results/cache" --tokens 4096
step states engine "$here/bin/gpu_states" "${common[@]}"
step verbs bench "$here/bin/gpu_verbs" --cache "$results/cache"
step bench bench "$here/bin/gpu_bench" "${common[@]}" --json "$results/bench.json" --csv "$results/bench.csv"
if [ -s "$results/bench.log" ]; then
    grep -v '^$' "$results/bench.log" | tail -n 40
fi
grep -h '^GATE ' "$results"/*.log || true

# The same summary for programs.
awk -F, 'NR > 1 {printf "%s{\"step\":\"%s\",\"status\":\"%s\",\"seconds\":%d}", (NR > 2 ? "," : "["), $1, $2, $3} END {print "]"}' \
    "$summary" >"$results/summary.json"
exit $((failed > 0 || passed == 0))
