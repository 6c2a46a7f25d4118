#!/usr/bin/env python3
"""Certificates of every pair of formats, on a GPU or the CPU, beside attention in double precision: no error is beyond its bound.

  PYTHONPATH=python python3 benches/gpu/soundness.py LIBRARY --kernels FOLDER --calibrations FOLDER [--head-steps 1000000] [--from N] [--pairs N]

Each key format with each value format that a cache on a GPU takes (with --cpu: one on the CPU), in a geometry and a block size that go round with the pair's number. Sequences
of ragged lengths, each with rows of one kind (plain, with outliers, heavy tails, constant channels, one huge token, ...), decode with queries from flat to
sharp, some of them along a key; half of the steps as the codes are (packed), half under tolerances from 1% to 20%, in turn. torch computes attention of
the same 16-bit rows in double precision, with none of this library's code. A head-step fails if its error is beyond its bound or not a number, or if it
is certified and what compression costs is beyond its tolerance. The control of a pair is the bound divided by a hundred, which must be seen to fail
where values are coded.

CALIBRATIONS holds what `certkv calibrate` wrote for the bundled model: gB for budgets of B bits, sT for tiers of directions. Pairs are shared by processes,
one to a core; kernels are compiled as they are needed and kept in FOLDER.
Exit code 0: all sound; 1: not; 3: no torch or no GPU, with the reason.
"""
import argparse
import json
import multiprocessing
import os
import sys
import time

# What the CPU alone has is told apart: a cache on a GPU refuses it by name.
KEYS = """f16 k8 k7 k6 k5 k4 k3 k2 t8 t7 t6 t5 t4 t3 t2 t8g32 tq6 tq5 tq4 tq3 tq2 tq1 ctq6 ctq5 ctq4 ctq3 ctq2 ctq1 gtq6 gtq5 gtq4 gtq3 gtq2.5 gtq2
          s1 s2 s3 p8 p6 p4 p3 p2 e4m3 e4m3g32 e5m2""".split()
VALUES = "f16 v8g32 v7g32 v6g32 v5g32 v4g32 v4g16 v3g16 v2g16 c8 c4 c2 tq6 tq5 tq4 tq3 tq2 tq1 p8 p4 p4g16 p2 e4m3 e5m2".split()
ON_CPU = dict(
    keys="k8f32 k8bf16 k0 t4g16 p4g16".split(),
    values=["c0"],
    refined="k8f32-c8:r1.8 k5-c5:r3.4 k4-c4:r6.4 k4-v3g32:r8.3 k3-v2g16:r5.6 k3-c2:r3.5 k2-v8g32:r6.1 k2-c3:r8.8".split(),
)
REFINED = "k8-v4g32:r8.4 k7-v7g32:r1.1 k6-v6g32:r6.2 k4-v4g32:r4.4 k4-v3g32:r3.3 k3-v2g16:r3.2 k2-v8g32:r2.1".split()
# Channels, key heads and query heads to one of them.
GEOMETRIES = [(128, 4, 16), (128, 8, 4), (64, 8, 8), (256, 2, 8), (128, 16, 1), (96, 4, 6), (128, 4, 8), (64, 4, 4), (256, 4, 5), (128, 2, 12)]
BUNDLED = (128, 2, 2)
TOLERANCES = [0.01, 0.02, 0.05, 0.1, 0.2]
KINDS = 10


def pairs(cpu=False):
    keys, values = (KEYS + ON_CPU["keys"], VALUES + ON_CPU["values"]) if cpu else (KEYS, VALUES)
    plain = [(k, v, "") for k in keys for v in values if (k, v) != ("f16", "f16")]
    return plain + [(*text.split(":")[0].split("-"), "-" + text.split(":")[1]) for text in REFINED + (ON_CPU["refined"] if cpu else [])]


def rows_of(torch, count, tokens, heads, dim, make):
    """Keys and values, (sequence, head, token, channel), of kinds in turn; and the common part of each sequence's queries."""
    normal = lambda *shape: torch.randn(*shape, device="cuda", generator=make)
    keys, values = normal(count, heads, tokens, dim), normal(count, heads, tokens, dim)
    kind = torch.arange(count, device="cuda") % KINDS
    of = lambda k: kind == k
    outliers = normal(count, heads, 1, dim) * torch.where(torch.rand(count, heads, 1, dim, device="cuda", generator=make) < 0.1, 6.0, 1.0)
    keys[of(1)] += outliers[of(1)]
    heavy = normal(count, heads, tokens, dim).exp()
    keys[of(2)] *= heavy[of(2)].clamp(max=20)
    values[of(2)] *= heavy[of(2)].flip(2).clamp(max=20)
    norms = (1.5 * normal(count, heads, tokens, 1)).exp().clamp(max=50)
    keys[of(3)] *= norms[of(3)]
    values[of(3)] *= norms[of(3)].flip(2)
    keys[of(4)] = outliers[of(4)] + 1e-3 * keys[of(4)]
    values[of(4)] = outliers[of(4)] + 1e-3 * values[of(4)]
    few = torch.randint(0, 3, (tokens,), device="cuda", generator=make)
    keys[of(5)], values[of(5)] = keys[of(5)][:, :, few], values[of(5)][:, :, few.flip(0)]
    keys[of(6), :, 0] *= 30
    values[of(6), :, 0] *= 0.01
    keys[of(7)] *= 1e-3
    values[of(7)] *= 1e-3
    values[of(8)] += 10 * outliers[of(8)]
    keys[of(9)] *= torch.where(torch.rand(count, heads, tokens, 1, device="cuda", generator=make) < 0.02, 8.0, 1.0)[of(9)]
    return keys.half(), values.half()


class Pair:
    """One cache of one pair, and its rows beside it."""

    def __init__(self, torch, certkv, library, options, number, pair):
        self.torch, self.abi = torch, certkv._abi
        key, value, refine = pair
        self.format = f"{key}-{value}-b{(16, 32, 64)[number % 3]}{refine}"
        calibrated = key.startswith(("ctq", "gtq", "s"))
        self.cpu = options.cpu
        fields = dict(format=self.format)
        fields.update(dict(threads=1) if self.cpu else dict(device=self.abi.CERTKV_DEVICE_CUDA, kernels=options.kernels))
        geometries = [BUNDLED] if calibrated else GEOMETRIES[number % len(GEOMETRIES) :] + [(128, 8, 4)]
        if calibrated:
            name = key if key.startswith("s") else "g" + (key[3:] if key.startswith("gtq") else "3")
            fields["calibration"] = library.calibration(os.path.join(options.calibrations, name))
        self.layers = 6 if calibrated else 1
        refused = None
        for self.dim, self.kv, self.group in geometries:
            self.each = self.kv * self.group * self.layers
            self.count = min(max(4096 // self.each, KINDS), 96)
            self.steps = -(-options.head_steps // (self.count * self.each))
            self.prompts = [1 + (37 * s * s + 11 * s + number) % 420 for s in range(self.count)]
            self.most = max(self.prompts) + self.steps
            sizes = dict(layers=self.layers, q_heads=self.kv * self.group, kv_heads=self.kv, head_dim=self.dim)
            sizes.update(max_tokens=self.count * (-(-self.most // 64) * 64), max_sequences=self.count, max_context=self.most)
            try:
                self.cache = library.cache(**fields, **sizes)
                break
            except certkv.Error as error:
                # Of this geometry, or of any: the last one says.
                if "not supported" not in str(error):
                    raise
                refused = error
        else:
            raise refused
        make = torch.Generator("cuda").manual_seed(number)
        self.make = make
        self.rows = [rows_of(torch, self.count, self.most, self.kv, self.dim, make) for _ in range(self.layers)]
        self.exact = [[side.double() for side in layer] for layer in self.rows]
        self.sharp = torch.tensor([0.3, 1.0, 2.0, 6.0], device="cuda")[torch.arange(self.count, device="cuda") // KINDS % 4]
        self.every = torch.arange(self.count, device="cuda")
        self.base = torch.randn(self.count, self.kv * self.group, self.dim, device="cuda", generator=make)

    def begin(self):
        """Prompts, all at once."""
        torch = self.torch
        self.sequences = [self.cache.sequence() for _ in range(self.count)]
        self.lengths = torch.tensor(self.prompts, device="cuda")
        with self.cache.step(list(zip(self.sequences, self.prompts))) as step:
            for layer, sides in enumerate(self.rows):
                flat = [torch.cat([side[s, :, :n].transpose(0, 1) for s, n in enumerate(self.prompts)]).contiguous().cpu() for side in sides]
                step.append(layer, *flat)

    def step(self, turn, tally):
        """One token of every sequence."""
        torch, abi, every = self.torch, self.abi, self.every
        tolerance = TOLERANCES[turn // 2 % len(TOLERANCES)]
        certified = turn % 2 == 1
        stream = torch.cuda.current_stream()
        policy = dict(policy=abi.CERTKV_POLICY_CERTIFIED, tolerance=tolerance) if certified else dict(policy=abi.CERTKV_POLICY_PACKED)
        at = self.lengths
        with self.cache.step([(sequence, 1) for sequence in self.sequences], **policy) as step:
            # What is enqueued may be read until the step's certificates were waited for.
            kept, found = [], []
            for layer, (keys, values) in enumerate(self.rows):
                k, v = keys[every, :, at].contiguous(), values[every, :, at].contiguous()
                q = self.base * self.sharp[:, None, None] * (1 + 0.1 * torch.randn(self.base.shape, device="cuda", generator=self.make))
                # Every fourth sequence asks for one of its tokens.
                asked = (torch.rand(self.count, device="cuda", generator=self.make) * (at + 1)).long()
                along = keys[every, :, asked].float().repeat_interleave(self.group, 1)
                along = along / along.norm(dim=2, keepdim=True).clamp(min=1e-6) * self.dim**0.5
                q = torch.where((every % 4 == 3)[:, None, None], q + self.sharp[:, None, None] * along, q).contiguous()
                exact = self.oracle(layer, q, at + 1)
                out = torch.full_like(q, float("nan"), device="cpu" if self.cpu else "cuda")
                if self.cpu:
                    step.append(layer, k.cpu(), v.cpu())
                    found.append((out, exact, step.attend(layer, q.cpu(), out)))
                    continue
                step.after_stream(stream.cuda_stream)
                step.append(layer, k, v)
                step.attend(layer, q, out, certificates=False)
                step.before_stream(stream.cuda_stream)
                kept.append((k, v, q))
                found.append((out, exact, None))
            for layer, (out, exact, records) in enumerate(found):
                records = records if self.cpu else step.certificates(layer)
                self.judge(out.cuda(), exact, records, tolerance if certified else None, tally)
        self.lengths = at + 1

    def oracle(self, layer, q, lengths):
        torch = self.torch
        keys, values = self.exact[layer]
        most = int(lengths.max())
        queries = q.double().view(self.count, self.kv, self.group, self.dim)
        logits = queries @ keys[:, :, :most].transpose(2, 3) * self.dim**-0.5
        beyond = torch.arange(most, device="cuda")[None] >= lengths[:, None]
        weights = torch.softmax(logits.masked_fill_(beyond[:, None, None], float("-inf")), 3)
        return (weights @ values[:, :, :most]).view(self.count, -1, self.dim)

    def judge(self, out, exact, records, tolerance, tally):
        import numpy

        read = numpy.frombuffer(records, dtype=self.record)
        error = (out.double() - exact).norm(dim=2).flatten().cpu().numpy()
        bound, status = read["bound"], read["status"]
        # NaN is beyond every bound.
        failed = ~(error <= bound)
        if tolerance is not None:
            within = read["bound"] - read["e_arith"] <= tolerance * read["out_norm"] * (1 + 1e-6)
            failed |= ~((status == self.abi.CERTKV_EXACT) | (status == self.abi.CERTKV_CERTIFIED) & within)
        tally["executed"] += len(error)
        tally["failed"] += int(failed.sum())
        tally["infinite"] += int(numpy.isinf(bound).sum())
        tally["control"] += int((error > bound * 0.01).sum())
        tally["exact"] += int((status == self.abi.CERTKV_EXACT).sum())
        tally["repaired"] += int((read["repairs"] > 0).sum())
        seen = (error > 0) & (status != self.abi.CERTKV_EXACT) & numpy.isfinite(bound)
        if seen.any():
            tally["least"] = min(tally["least"], float((bound[seen] / error[seen]).min()))
        if failed.any() and "first" not in tally:
            i = int(failed.argmax())
            names = ("status", "rung", "cause", "bound", "tol", "out_norm", "e_key", "e_val", "e_arith", "promoted_keys", "promoted_values", "repairs")
            tally["first"] = dict({n: float(read[n][i]) for n in names}, at=i, error=float(error[i]), tolerance=tolerance, lengths=self.lengths.tolist()[i // (len(error) // self.count)])


def share(options, worker, numbers, queue):
    """A process's pairs, one after the other, as they are left."""
    if options.gpus > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(worker % options.gpus)
    import certkv
    import numpy
    import torch

    library = certkv.load(options.library)
    Pair.record = numpy.dtype(certkv._abi.certkv_certificate)
    all_pairs = pairs(options.cpu)
    while True:
        with numbers.get_lock():
            number, numbers.value = numbers.value, numbers.value + 1
        if number >= len(options.numbers):
            break
        number = options.numbers[number]
        start = time.time()
        tally = dict(executed=0, failed=0, infinite=0, control=0, exact=0, repaired=0, least=float("inf"), refused=0)
        name = "-".join(all_pairs[number][:2]) + all_pairs[number][2]
        try:
            pair = Pair(torch, certkv, library, options, number, all_pairs[number])
            made = time.time()
            with pair.cache:
                pair.begin()
                turn = 0
                while tally["executed"] < options.head_steps and turn < 6 * pair.steps:
                    try:
                        pair.step(turn, tally)
                    except certkv.Error as error:
                        # Nothing was written, and no token added: a refusal, and no answer.
                        if error.name != "CERTKV_UNCERTIFIABLE":
                            raise
                        tally["refused"] += 1
                    turn += 1
            tally.update(format=pair.format, geometry=[pair.dim, pair.kv, pair.group], made=made - start)
            del pair
        except Exception as error:  # noqa: BLE001: a pair that cannot be done is told, and the others go on.
            tally["error"] = f"{getattr(error, 'name', type(error).__name__)}: {error}"
        torch.cuda.empty_cache()
        queue.put((number, name, dict(tally, seconds=time.time() - start)))
    queue.put(None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--cpu", action="store_true", help="caches on the CPU; the GPU computes what they are compared with")
    parser.add_argument("--kernels", help="of caches on a GPU")
    parser.add_argument("--calibrations", required=True)
    parser.add_argument("--head-steps", type=int, default=1_000_000)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--pairs", type=int, default=10**6)
    parser.add_argument("--only", help="a file with the numbers of pairs to do")
    parser.add_argument("--gpus", type=int, default=1, help="processes take turns in them")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no pair after so long")
    parser.add_argument("--json")
    options = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        print(error, file=sys.stderr)
        return 3
    if not torch.cuda.is_available():
        print("torch has no GPU", file=sys.stderr)
        return 3
    print(torch.cuda.get_device_name(), flush=True)
    every = range(len(pairs(options.cpu)))
    options.numbers = list(every[options.first : options.first + options.pairs])
    if options.only:
        with open(options.only) as file:
            options.numbers = [int(word) for word in file.read().split()]
    context = multiprocessing.get_context("spawn")
    numbers, queue = context.Value("i", 0), context.Queue()
    workers = [context.Process(target=share, args=(options, i, numbers, queue)) for i in range(options.processes)]
    for worker in workers:
        worker.start()
    start, left, done = time.time(), len(workers), []
    while left:
        if time.time() - start > options.seconds:
            with numbers.get_lock():
                numbers.value = 10**9
        try:
            told = queue.get(timeout=5)
        except Exception:  # noqa: BLE001: nothing yet.
            if not any(worker.is_alive() for worker in workers):
                break
            continue
        if told is None:
            left -= 1
            continue
        done.append(told)
        number, name, tally = told
        print(number, name, json.dumps(tally), flush=True)
    ran = [(name, tally) for _, name, tally in done if "error" not in tally]
    refused = {}
    for _, name, tally in done:
        if "error" in tally:
            refused.setdefault(tally["error"][:160], []).append(name)
    for why, names in refused.items():
        print(f"not done ({len(names)}): {why}: {' '.join(names)}")
    coded = [tally for name, tally in ran if not name.split("-")[1].startswith("f16")]
    sums = {what: sum(tally[what] for _, tally in ran) for what in ("executed", "failed", "exact", "repaired", "infinite", "refused")}
    least = min((tally["least"] for _, tally in ran), default=float("inf"))
    fewest = min((tally["executed"] for _, tally in ran), default=0)
    caught = sum(tally["control"] > 0 for tally in coded)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"gpu": torch.cuda.get_device_name(), "pairs": {name: tally for _, name, tally in sorted(done)}}, file, indent=0)
    print(f"next: {max((number for number, _, _ in done), default=options.first) + 1} of {len(every)}")
    print(f"{len(ran)} pairs, at least {fewest} head-steps each, {sums}; least ratio {least:.3f}; {time.time() - start:.0f} s")
    print(f"GATE {'cpu' if options.cpu else 'gpu'}-soundness-pairs executed={sums['executed']} failed={sums['failed']} controls={caught}/{len(coded)} seed=0x0")
    return int(sums["failed"] > 0 or caught < len(coded) or not ran)


if __name__ == "__main__":
    sys.exit(main())
