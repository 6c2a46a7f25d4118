#!/usr/bin/env python3
"""Dense decode attention of other libraries on one GPU: what certkv's kernels are compared with.

One layer, one query token per sequence, 32 query heads, 8 KV heads, d = 128, by default. Groups:

  sdpa        torch scaled_dot_product_attention, cuDNN and FlashAttention-2 back ends, dense fp16 cache
  fa3         FlashAttention-3 as built by vLLM, paged cache, fp16 and fp8 (queries fp8 as well)
  flashinfer  FlashInfer batch decode, paged cache, fp16 and fp8: tensor-core (tc) and CUDA-core kernels
  xqa         FlashInfer XQA, paged cache, fp16 and fp8

Method. Time per call inside a replayed CUDA graph: median over the replays of (replay time / calls in the graph). Each
call of a graph reads another slice of a pool, and the slices of one graph outgrow the L2 several times (over 512 MB),
so every key and value is read from device memory. Pages are scattered at random. What a server computes once per step
for all layers (scheduler metadata, plans) is outside the time. Small shapes are checked against double precision.
Each group runs in a process of its own, so a failing library takes only its group along.

Modules: --fa3 is vLLM's _vllm_fa3_C.abi3.so (or the environment variable BASELINES_FA3); --site a folder with
flashinfer, tvm_ffi and FlashInfer's compiled modules, unless they are installed (or BASELINES_SITE); --ceilings the
program built from ceilings.cu. What is absent is left out and listed under "missing" in the JSON file.

  python3 baselines.py --fa3 _vllm_fa3_C.abi3.so --site site --ceilings ./ceilings --json baselines.json
"""

import argparse
import ctypes
import importlib.util
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

GROUPS = ("sdpa", "fa3", "flashinfer", "xqa")
SHAPES = (
    "1x1K 1x2K 1x4K 1x8K 1x32K 1x128K 8x1K 8x8K 8x32K 8x128K 32x1K 32x8K 32x32K"  # batch x context
).split()
ROTATION_BYTES = 512 << 20  # cold bytes one graph reads at least: over eight times the L2 of an H200
MOST_CALLS = 256  # in one graph
CHECKED_TOKENS = 1 << 16  # shapes up to so many tokens are checked against double precision


def parse_shape(text):
    """(batch, context) of a text such as 8x32K."""
    match = re.fullmatch(r"(\d+)x(\d+)(K?)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not BATCHxCONTEXT, such as 8x32K")
    return int(match[1]), int(match[2]) * (1024 if match[3] else 1)


def context_name(n):
    return f"{n // 1024}K" if n % 1024 == 0 else str(n)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--shapes", nargs="+", type=parse_shape, default=[parse_shape(s) for s in SHAPES])
    parser.add_argument("--pages", nargs="+", type=int, default=[16, 64], help="page sizes in tokens")
    parser.add_argument("--only", default=".", help="measure only the kernels whose name matches this expression")
    parser.add_argument("--heads", type=int, nargs=3, default=[32, 8, 128], metavar=("QUERY", "KV", "DIM"))
    parser.add_argument("--replays", type=int, default=21, help="timed replays of each graph and round, at most")
    parser.add_argument("--seconds", type=float, default=0.15, help="most seconds of replays per graph and round")
    parser.add_argument("--rounds", type=int, default=2, help="how often each group goes over all its graphs")
    parser.add_argument("--limit", type=float, default=90, help="most seconds of one group")
    parser.add_argument("--fa3", default=os.environ.get("BASELINES_FA3"))
    parser.add_argument("--site", default=os.environ.get("BASELINES_SITE"))
    parser.add_argument("--ceilings", help="program built from ceilings.cu")
    parser.add_argument("--json", default="baselines.json")
    parser.add_argument("--child", choices=GROUPS, help=argparse.SUPPRESS)
    return parser.parse_args()


# ------------------------------------------------------------------ one group, in a process of its own


class Bench:
    """Inputs, timing and checks shared by the groups of kernels."""

    def __init__(self, options, sink):
        import torch

        self.torch, self.options, self.sink = torch, options, sink
        self.heads, self.kv_heads, self.dim = options.heads
        self.f16, self.f8 = torch.float16, torch.float8_e4m3fn
        self.scale = 1 / math.sqrt(self.dim)
        self.times, self.facts = {}, {}
        torch.manual_seed(1)
        self.tokens = 2 * max(b * n for b, n in options.shapes)  # of the pool: two slices of the largest shape
        self.tokens = max(self.tokens, ROTATION_BYTES // (self.kv_heads * self.dim * 2))
        elements = self.tokens * self.kv_heads * self.dim
        self.pools = {self.f16: [torch.empty(elements, device="cuda", dtype=self.f16).normal_() for _ in range(2)]}
        self.queries = {}
        self.pages = {}
        # An idle GPU has low clocks; half a second of reads brings them up.
        begin = time.time()
        while time.time() - begin < 0.5:
            self.pools[self.f16][0].sum()
            torch.cuda.synchronize()

    def query(self, batch):
        """Queries [batch, heads, dim] in fp16, the same for every kernel of the process."""
        if batch not in self.queries:
            generator = self.torch.Generator(device="cuda").manual_seed(batch)
            shape = (batch, self.heads, self.dim)
            self.queries[batch] = self.torch.randn(shape, generator=generator, device="cuda", dtype=self.f16)
        return self.queries[batch]

    def cache(self, dtype, batch, context, index):
        """Keys and values of slice `index`: two flat tensors of batch * context * kv_heads * dim numbers."""
        if dtype not in self.pools:
            self.pools[dtype] = [x.to(dtype) for x in self.pools[self.f16]]
        size = batch * context * self.kv_heads * self.dim
        return [x[index * size : (index + 1) * size] for x in self.pools[dtype]]

    def table(self, batch, context, page):
        """Page table [batch, pages of a sequence], int32, pages of a slice in random order."""
        count = batch * context // page
        if count not in self.pages:
            self.pages[count] = self.torch.randperm(count, device="cuda").to(self.torch.int32)
        return self.pages[count].view(batch, -1)

    def gathered(self, dtype, batch, context, page, layout):
        """Slice 0 as dense fp16 keys and values [batch, kv_heads, context, dim]."""
        order = self.table(batch, context, page).flatten().long()
        dense = []
        for x in self.cache(dtype, batch, context, 0):
            if layout == "NHD":
                x = x.view(-1, page, self.kv_heads, self.dim).view(self.torch.int8 if dtype == self.f8 else dtype)
                x = x[order].view(dtype).reshape(batch, context, self.kv_heads, self.dim).transpose(1, 2)
            else:
                x = x.view(-1, self.kv_heads, page, self.dim).view(self.torch.int8 if dtype == self.f8 else dtype)
                x = x[order].view(dtype).view(batch, context // page, self.kv_heads, page, self.dim)
                x = x.transpose(1, 2).reshape(batch, self.kv_heads, context, self.dim)
            dense.append(x.to(self.f16))
        return dense

    def error(self, out, query, keys, values):
        """Relative error (2-norm) of `out` against attention in double precision."""
        torch, batch = self.torch, query.shape[0]
        q = query.double().view(batch, self.kv_heads, self.heads // self.kv_heads, self.dim)
        logits = torch.einsum("bhgd,bhnd->bhgn", q, keys.double()) * self.scale
        exact = torch.einsum("bhgn,bhnd->bhgd", logits.softmax(-1), values.double()).reshape(batch, -1)
        return ((out.reshape(batch, -1).double() - exact).norm() / exact.norm()).item()

    def measure(self, name, dtype, batch, context, page, build):
        """Times one kernel at one shape. build(slices) returns call(slice), and dense keys and values for the check."""
        if not re.search(self.options.only, name):
            return
        torch = self.torch
        size = 2 * batch * context * self.kv_heads * self.dim * (1 if dtype == self.f8 else 2)
        slices = min(MOST_CALLS, max(2, math.ceil(ROTATION_BYTES / size)), self.tokens // (batch * context))
        key = (name, page, batch, context)
        row = {"kernel": name, "cache": "fp8" if dtype == self.f8 else "fp16", "page": page, "batch": batch,
               "context": context, "bytes": size}  # fmt: skip
        try:
            call, dense = build(slices)
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                out = call(0).clone()
            stream.synchronize()
            if key not in self.facts:
                facts = {"slices": slices}
                if batch * context <= CHECKED_TOKENS:
                    facts["error"] = self.error(out, self.query(batch), *dense())
                self.facts[key] = facts
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.stream(stream):  # torch.cuda.graph would also collect garbage, for longer than the timing
                graph.capture_begin()
                try:
                    for i in range(slices):
                        call(i)
                finally:
                    graph.capture_end()
            torch.cuda.synchronize()
            self.times.setdefault(key, []).extend(self.replay(graph, slices))
            times = sorted(self.times[key])
            median = statistics.median(times)
            row |= {"us": median, "min_us": times[0], "p90_us": times[int(0.9 * (len(times) - 1))]}
            row |= {"replays": len(times), "gbs": size / median * 1e-3} | self.facts[key]
        except Exception as failure:  # a shape a library refuses is a result too
            cause = failure.__context__ or failure  # a failed call in a capture also fails the capture's end
            row["failure"] = f"{type(cause).__name__}: {(str(cause).strip().splitlines() or [''])[0]}"
        self.sink.write(json.dumps(row) + "\n")
        self.sink.flush()

    def replay(self, graph, calls):
        """Microseconds per call of each timed replay."""
        torch, times, begin = self.torch, [], None
        for i in range(-2, self.options.replays):
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            begin = begin or time.time()
            if i >= 0:
                times.append(start.elapsed_time(stop) * 1e3 / calls)
            if len(times) >= 5 and time.time() - begin > self.options.seconds:
                break
        return times


def sdpa(bench):
    """Dense cache [batch, kv_heads, context, dim]."""
    torch = bench.torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def kernel(name, backend, batch, context):
        def build(slices):
            q = bench.query(batch).view(batch, bench.heads, 1, bench.dim)
            shape = (batch, bench.kv_heads, context, bench.dim)
            caches = [[x.view(shape) for x in bench.cache(bench.f16, batch, context, i)] for i in range(slices)]

            def call(i):
                with sdpa_kernel(backend):
                    return torch.nn.functional.scaled_dot_product_attention(q, *caches[i], enable_gqa=True)

            return call, lambda: caches[0]

        bench.measure(name, bench.f16, batch, context, None, build)

    for batch, context in bench.options.shapes:
        kernel("sdpa_cudnn_fp16", SDPBackend.CUDNN_ATTENTION, batch, context)
        kernel("sdpa_fa2_fp16", SDPBackend.FLASH_ATTENTION, batch, context)


def fa3(bench):
    """Paged cache [pages, page, kv_heads, dim]."""
    torch = bench.torch
    torch.ops.load_library(bench.options.fa3)
    op = torch.ops._vllm_fa3_C

    def kernel(name, dtype, batch, context, page):
        def build(slices):
            shape = (-1, page, bench.kv_heads, bench.dim)
            caches = [[x.view(shape) for x in bench.cache(dtype, batch, context, i)] for i in range(slices)]
            q, table = bench.query(batch).to(dtype), bench.table(batch, context, page)
            used = torch.full((batch,), context, device="cuda", dtype=torch.int32)
            starts = torch.arange(batch + 1, device="cuda", dtype=torch.int32)
            unit = torch.ones(batch, bench.kv_heads, device="cuda") if dtype == bench.f8 else None
            out = torch.empty(q.shape, device="cuda", dtype=torch.bfloat16 if dtype == bench.f8 else bench.f16)
            # Zero splits: the library chooses, as vLLM lets it.
            plan = op.get_scheduler_metadata(
                batch, 1, context, bench.heads, bench.kv_heads, bench.dim, bench.dim, dtype, used, starts,
                None, None, None, None, page, 0, True, -1, -1, False, 0, None, 0)  # fmt: skip

            def call(i):
                return op.fwd(
                    q, *caches[i], None, None, None, out, starts, None, None, None, used, 1, context, table,
                    None, None, None, None, None, unit, unit, unit, bench.scale, True, -1, -1, 0.0, True,
                    plan, 0, None, 0, None, 1, 0, None)[0]  # fmt: skip

            return call, lambda: bench.gathered(dtype, batch, context, page, "NHD")

        bench.measure(name, dtype, batch, context, page, build)

    for batch, context in bench.options.shapes:
        for page in bench.options.pages:
            kernel("fa3_fp16", bench.f16, batch, context, page)
            kernel("fa3_fp8", bench.f8, batch, context, page)


def flashinfer(bench):
    """Paged cache [pages, page, kv_heads, dim]."""
    torch = bench.torch
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    workspace = torch.zeros(512 << 20, dtype=torch.uint8, device="cuda")

    def kernel(name, dtype, tensor_cores, batch, context, page):
        def build(slices):
            shape = (-1, page, bench.kv_heads, bench.dim)
            caches = [tuple(x.view(shape) for x in bench.cache(dtype, batch, context, i)) for i in range(slices)]
            wrapper = BatchDecodeWithPagedKVCacheWrapper(
                workspace, "NHD", use_tensor_cores=tensor_cores, backend="fa2")  # fmt: skip
            starts = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * (context // page)
            last = torch.full((batch,), page, dtype=torch.int32, device="cuda")
            wrapper.plan(
                starts, bench.table(batch, context, page).flatten(), last, bench.heads, bench.kv_heads, bench.dim,
                page, q_data_type=bench.f16, kv_data_type=dtype)  # fmt: skip
            q = bench.query(batch)
            out = torch.empty_like(q)
            return (
                lambda i: wrapper.run(q, caches[i], out=out),
                lambda: bench.gathered(dtype, batch, context, page, "NHD"),
            )

        bench.measure(name, dtype, batch, context, page, build)

    for batch, context in bench.options.shapes:
        for page in bench.options.pages:
            kernel("flashinfer_tc_fp16", bench.f16, True, batch, context, page)
            kernel("flashinfer_tc_fp8", bench.f8, True, batch, context, page)
        kernel("flashinfer_core_fp16", bench.f16, False, batch, context, bench.options.pages[0])


def xqa(bench):
    """Paged cache [pages, kv_heads, page, dim]."""
    torch = bench.torch
    ctypes.CDLL("libcuda.so.1", ctypes.RTLD_GLOBAL)  # the module may have been linked without it
    from flashinfer.decode import xqa_batch_decode_with_kv_cache

    workspace = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")  # its semaphores must start at zero

    def kernel(name, dtype, batch, context, page):
        def build(slices):
            shape = (-1, bench.kv_heads, page, bench.dim)
            caches = [tuple(x.view(shape) for x in bench.cache(dtype, batch, context, i)) for i in range(slices)]
            q, table = bench.query(batch), bench.table(batch, context, page)
            used = torch.full((batch,), context, device="cuda", dtype=torch.int32).view(torch.uint32)
            out = torch.empty_like(q)

            def call(i):
                return xqa_batch_decode_with_kv_cache(
                    q, caches[i], workspace, table, used, context, bmm1_scale=bench.scale, bmm2_scale=1.0, out=out,
                    kv_layout="HND")  # fmt: skip

            return call, lambda: bench.gathered(dtype, batch, context, page, "HND")

        bench.measure(name, dtype, batch, context, page, build)

    for batch, context in bench.options.shapes:
        for page in bench.options.pages:
            kernel("xqa_fp16", bench.f16, batch, context, page)
            kernel("xqa_fp8", bench.f8, batch, context, page)


def run_child(options):
    with open(options.json, "w") as sink:
        bench = Bench(options, sink)
        torch = bench.torch
        versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
        if importlib.util.find_spec("flashinfer") and options.child in ("flashinfer", "xqa"):
            import flashinfer as package

            versions["flashinfer"] = package.__version__
        sink.write(json.dumps({"device": torch.cuda.get_device_name(), "versions": versions}) + "\n")
        for _ in range(options.rounds):
            globals()[options.child](bench)


# ------------------------------------------------------------------ all groups


def available(group, options):
    if group == "fa3":
        return bool(options.fa3) and os.path.exists(options.fa3)
    if group in ("flashinfer", "xqa"):
        if options.site:
            return os.path.isdir(os.path.join(options.site, "flashinfer"))
        return importlib.util.find_spec("flashinfer") is not None
    return True


def run_group(group, options, folder):
    """Rows of one group and the facts of its process; a crash keeps the rows written before it."""
    rows = os.path.join(folder, group + ".jsonl")
    command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--child", group, "--json", rows]
    environment = dict(os.environ, FLASHINFER_DISABLE_JIT="1", FLASHINFER_CUDA_ARCH_LIST="9.0a")
    environment["FLASHINFER_WORKSPACE_BASE"] = folder
    if options.site:
        paths = [os.path.abspath(options.site), os.environ.get("PYTHONPATH")]
        environment["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
    try:
        child = subprocess.run(command, env=environment, timeout=options.limit, capture_output=True, text=True)
        problem = None if child.returncode == 0 else (child.stderr.strip().splitlines() or ["no message"])[-1]
    except subprocess.TimeoutExpired:
        problem = f"stopped after {options.limit:g} s"
    results, facts = {}, {}
    if os.path.exists(rows):
        with open(rows) as lines:
            for line in lines:
                if not line.endswith("\n"):
                    break  # cut off in the middle
                row = json.loads(line)
                if "kernel" in row:  # a later round's row holds the earlier rounds too
                    results[row["kernel"], row["page"], row["batch"], row["context"]] = row
                else:
                    facts = row
    return list(results.values()), facts, problem


def read_ceilings(options, folder):
    if not options.ceilings:
        return []
    path = os.path.join(folder, "ceilings.json")
    try:
        command = [os.path.abspath(options.ceilings), "read", "--json", path]
        subprocess.run(command, check=True, timeout=60, stdout=subprocess.DEVNULL)
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError, subprocess.SubprocessError) as failure:
        print(f"ceilings: {failure}", file=sys.stderr)
        return []


def print_table(results, ceilings, shapes):
    """One line per shape, microseconds per call; `read` is the read probe's time for the bytes of that cache."""
    columns = []
    for row in results:
        name = (row["kernel"], row["page"])
        if name not in columns:
            columns.append(name)
    cells = {(r["kernel"], r["page"], r["batch"], r["context"]): r for r in results}
    cold = {int(c["bytes"]): c["us"] for c in ceilings if c["name"] == "read_cold"}
    for width in ("fp16", "fp8"):
        chosen = [c for c in columns if c[0].endswith(width)]
        if not chosen:
            continue
        print(f"\n{width} cache, us per call (median)")
        titles = [name.removesuffix("_" + width) + (f"/{page}" if page else "") for name, page in chosen]
        widths = [max(9, len(title) + 2) for title in titles]
        print(f"{'shape':>9}" + "".join(f"{t:>{w}}" for t, w in zip(titles, widths)) + f"{'best':>9}{'read':>9}")
        for batch, context in shapes:
            line, best = f"{f'{batch}x{context_name(context)}':>9}", None
            size = None
            for (name, page), w in zip(chosen, widths):
                row = cells.get((name, page, batch, context))
                if row and "us" in row:
                    best, size = min(best or row["us"], row["us"]), row["bytes"]
                    line += f"{row['us']:>{w}.1f}"
                else:
                    line += f"{'failed' if row else '-':>{w}}"
            line += f"{best:>9.1f}" if best else f"{'-':>9}"
            line += f"{cold[size]:>9.1f}" if size in cold else f"{'-':>9}"
            print(line)


def main():
    options = arguments()
    if options.child:
        run_child(options)
        return 0
    begin = time.time()
    report = {
        "heads": dict(zip(("query", "kv", "dim"), options.heads)),
        "method": "us: median over CUDA-graph replays of time per call; cold slices in turn; min and 90th percentile",
        "missing": {}, "seconds": {}, "ceilings": [], "results": [],
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        report["ceilings"] = read_ceilings(options, folder)
        report["seconds"]["ceilings"] = round(time.time() - begin, 1)
        for group in options.groups:
            if not available(group, options):
                report["missing"][group] = "module not given"
                continue
            start = time.time()
            results, facts, problem = run_group(group, options, folder)
            report["seconds"][group] = round(time.time() - start, 1)
            report["results"] += results
            report["device"] = facts.get("device", report.get("device"))
            report["versions"] = report.get("versions", {}) | facts.get("versions", {})
            if problem:
                report["missing"][group] = problem
            with open(options.json, "w") as file:  # after every group, so that a stopped run keeps what it has
                json.dump(report, file, indent=1)
                file.write("\n")
    best = [c["gbs"] for c in report["ceilings"] if c["name"] == "read_best"]
    print(f"{report.get('device')}, {report.get('versions')}, read ceiling {best[0] if best else '?'} GB/s")
    print_table(report["results"], report["ceilings"], options.shapes)
    errors = {}
    for row in report["results"]:
        if "error" in row:
            errors[row["kernel"]] = max(errors.get(row["kernel"], 0), row["error"])
    print("\nlargest relative error:", ", ".join(f"{k} {v:.1e}" for k, v in errors.items()))
    for row in report["results"]:
        if "failure" in row:
            print(f"failed: {row['kernel']}/{row['page']} {row['batch']}x{row['context']}: {row['failure'][:160]}")
    for group, problem in report["missing"].items():
        print(f"missing: {group}: {problem}")
    print("seconds:", report["seconds"])
    return 0 if report["results"] else 1


if __name__ == "__main__":
    sys.exit(main())
