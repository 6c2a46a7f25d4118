"""Our decode kernel beside the best dense and FP8 kernels: compare.py BENCH.json BASELINES.json [FORMAT].

BENCH.json is what `gpu_bench --json` wrote, BASELINES.json what `baselines.py --json` wrote, both from one session on one machine.
Prints a Markdown table: microseconds, ratios, share of the read ceiling, what the certificate costs.
"""

import json
import sys


def size(count):
    return f"{count // 1024}K" if count % 1024 == 0 else str(count)


def best(results, cache):
    found = {}
    for r in results:
        if r["cache"] == cache:
            shape = f"{r['batch']}x{size(r['context'])}"
            if shape not in found or r["us"] < found[shape][0]:
                found[shape] = (r["us"], r["kernel"])
    return found


def main():
    ours = json.load(open(sys.argv[1]))
    base = json.load(open(sys.argv[2]))
    wanted = sys.argv[3] if len(sys.argv) > 3 else ours[0]["format"]
    dense, fp8 = best(base["results"], "fp16"), best(base["results"], "fp8")
    ceiling = next(c["gbs"] for c in base["ceilings"] if c["name"] == "read_best")
    print(f"`{wanted}`, read ceiling {ceiling:.0f} GB/s\n")
    print("| batch x context | certified us | best dense us | ratio | best FP8 us | ratio | of the ceiling | certificate | masses |")
    print("|---|---|---|---|---|---|---|---|---|")
    rows = [r for r in ours if r["shape"] in dense]
    for row in rows:
        if row["format"] != wanted or row["promoted"]:
            continue
        us, shape = row["certified_us"], row["shape"]
        d, f = dense.get(shape), fp8.get(shape)
        share = row["bytes"] / us * 1e-3 / ceiling
        cost, masses = us / row["bare_us"] - 1, row["masses_us"] / us - 1
        print(
            f"| {shape.replace('x', ' x ')} | {us:.1f} | {d[0]:.1f} | **{d[0] / us:.2f}** | {f[0]:.1f} | {f[0] / us:.2f} "
            f"| {share:.0%} | {cost:+.0%} | {masses:+.0%} |"
        )


main()
