#!/usr/bin/env bash
# run.sh [RESULTS]: what a bundle holds, on a GPU: parity with the CPU, the same small cases under compute-sanitizer if it is
# installed, and the measurements. Results go to RESULTS (default: results beside this file); the exit code is 0 if something
# ran and all of it passed. NVRTC may name libnvrtc.so; SKIP lists steps to leave out (smoke, parity, sanitizer, bench).
#
# Programs are called as
#   cuda_smoke ORDINAL [NVRTC]
#   gpu_parity --cubins DIR [--nvrtc FILE] --json FILE [--small]
#   gpu_bench  --cubins DIR [--nvrtc FILE] --json FILE --csv FILE
# and exit with 0: passed, 2: nothing to run on, else: failed.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
results=${1:-$here/results}
mkdir -p "$results"
common=(--cubins "$here/cubins")
if [ -n "${NVRTC:-}" ]; then
    common+=(--nvrtc "$NVRTC")
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
step parity parity "$here/bin/gpu_parity" "${common[@]}" --json "$results/parity.json"

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | tail -n 1 || true)
for tool in memcheck racecheck initcheck synccheck; do
    if [ -x "$here/bin/gpu_parity" ]; then
        step "$tool" sanitizer "${sanitizer:-compute-sanitizer}" --tool "$tool" --error-exitcode 9 \
            "$here/bin/gpu_parity" "${common[@]}" --small --json "$results/$tool.json"
    fi
done

step bench bench "$here/bin/gpu_bench" "${common[@]}" --json "$results/bench.json" --csv "$results/bench.csv"
if [ -s "$results/bench.log" ]; then
    grep -v '^$' "$results/bench.log" | tail -n 40
fi
grep -h '^GATE ' "$results"/*.log || true

# The same summary for programs.
awk -F, 'NR > 1 {printf "%s{\"step\":\"%s\",\"status\":\"%s\",\"seconds\":%d}", (NR > 2 ? "," : "["), $1, $2, $3} END {print "]"}' \
    "$summary" >"$results/summary.json"
exit $((failed > 0 || passed == 0))
