"""Lives of sequences through the package, each output against attention in float64, and calls that must be refused.

CERTKV_LIBRARY=path/to/libcertkv.so.0 python3 -m unittest discover -s python/tests, with numpy
"""
import gc
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "python"))

import certkv  # noqa: E402
from certkv import _abi  # noqa: E402

PATH = os.environ["CERTKV_LIBRARY"]
LIBRARY = certkv.load(PATH)
compared = 0


def attention(q, keys, values):
    """Of one query, (q_heads, d), over (tokens, kv_heads, d), in float64."""
    group = q.shape[0] // keys.shape[1]
    k, v = (numpy.repeat(rows.astype(numpy.float64), group, 1) for rows in (keys, values))
    logits = numpy.einsum("hd,thd->ht", q.astype(numpy.float64), k) / numpy.sqrt(q.shape[1])
    weights = numpy.exp(logits - logits.max(1, keepdims=True))
    return numpy.einsum("ht,thd->hd", weights / weights.sum(1, keepdims=True), v)


def beyond(out, exact, certificates, shrink=1.0):
    """How many heads are further from `exact` than their bound, times `shrink`, allows."""
    global compared
    errors = numpy.linalg.norm(out.astype(numpy.float64) - exact, axis=1)
    compared += len(errors)
    return sum(not (error <= c.bound * shrink) for error, c in zip(errors, certificates))


class Tensor:
    """What the package uses of a torch tensor."""

    @property
    def shape(self):
        return self.array.shape

    def stride(self):
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def __init__(self, array, dtype="torch.float32", contiguous=True, is_cuda=False):
        self.array, self.dtype, self.contiguous, self.is_cuda = array, dtype, contiguous, is_cuda

    def data_ptr(self):
        return self.array.ctypes.data

    def numel(self):
        return self.array.size

    def is_contiguous(self):
        return self.contiguous


def small(**fields):
    return LIBRARY.cache(**{**dict(layers=1, q_heads=2, kv_heads=1, head_dim=64, max_tokens=256, max_sequences=4), **fields})


def rows(*shape, kind=numpy.float32):
    return numpy.zeros(shape, kind)


def mixed(word):
    """One step of SplitMix64."""
    word = (word + 0x9E3779B97F4A7C15) % 2**64
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
    return word ^ (word >> 31)


def calibration(layers, q_heads, kv_heads, dim, model):
    """The bytes of a calibration of keys around 0.1, as `certkv calibrate` writes them."""
    pairs = dim // 2
    made = b"certkvGQ" + struct.pack("<7I8BQ", 1, layers, q_heads, kv_heads, dim, dim, 4 * pairs, 0, 0, 1, 8, 1, 1, 0, 0, 64)
    made += model + bytes(32)
    numbers = [("d", pairs, 1.0), ("d", pairs, 1.0), ("d", dim, 0.1), ("f", dim, -1.0), ("f", dim, 1.0), ("f", dim, 1.0), ("f", dim, 0.1)]
    head = b"".join(struct.pack("<" + kind, number) * n for kind, n, number in numbers) + bytes([4]) * pairs
    made += head * (layers * kv_heads)
    return sealed(made)


def sealed(made):
    """The same with its checksum."""
    checksum = len(made)
    for at in range(0, len(made), 8):
        checksum = mixed(checksum ^ int.from_bytes(made[at : at + 8], "little"))
    return made + struct.pack("<Q", checksum)


def scales(layers, kv_heads, dim, model, magnitude):
    """The bytes of fixed scales, as `certkv calibrate --scales` writes them."""
    made = b"certkvSC" + struct.pack("<4IdQ", 1, layers, kv_heads, dim, 99.5, 64) + model + bytes(32)
    return sealed(made + struct.pack("<f", magnitude) * (2 * layers * kv_heads * dim // 16))


class Lives(unittest.TestCase):
    def decode(self, seed, shape, lengths, kind):
        layers, q_heads, kv_heads, dim = shape
        random = numpy.random.default_rng(seed)

        def number(*shape):
            made = random.standard_normal(shape).astype(numpy.float32)
            return made.astype(kind)

        wrong = [0, 0]
        with LIBRARY.cache(layers=layers, q_heads=q_heads, kv_heads=kv_heads, head_dim=dim, max_tokens=4096, max_sequences=4) as cache:
            sequences = [cache.sequence() for _ in lengths]
            past = [[[number(n, kv_heads, dim), number(n, kv_heads, dim)] for n in lengths] for _ in range(layers)]
            with cache.step(list(zip(sequences, lengths))) as step:
                for layer in range(layers):
                    k, v = (numpy.concatenate([rows[side] for rows in past[layer]]) for side in range(2))
                    step.append(layer, k, v)
            # One more goes on from the first.
            sequences.append(sequences[0].fork())
            for layer in past:
                layer.append([rows.copy() for rows in layer[0]])
            for turn in range(4):
                with cache.step([(sequence, 1) for sequence in sequences]) as step:
                    for layer in range(layers):
                        k, v = number(len(sequences), kv_heads, dim), number(len(sequences), kv_heads, dim)
                        q = random.standard_normal((len(sequences), q_heads, dim)).astype(numpy.float32)
                        out = numpy.full_like(q, numpy.nan)
                        step.append(layer, k, v)
                        # As a torch tensor now and then.
                        found = step.attend(layer, Tensor(q), Tensor(out)) if turn % 2 else step.attend(layer, q, out)
                        for at, own in enumerate(past[layer]):
                            own[0], own[1] = numpy.concatenate([own[0], k[at : at + 1]]), numpy.concatenate([own[1], v[at : at + 1]])
                            # The cache holds what 16 bits hold.
                            exact = attention(q[at], *(side.astype(numpy.float16) for side in own))
                            mine = found[at * q_heads : (at + 1) * q_heads]
                            self.assertTrue(all(c.status in (_abi.CERTKV_CERTIFIED, _abi.CERTKV_EXACT) for c in mine))
                            wrong[0] += beyond(out[at], exact, mine)
                            wrong[1] += beyond(out[at], exact, mine, 1e-3)
            self.assertEqual([len(sequence) for sequence in sequences], [n + 4 for n in [*lengths, lengths[0]]])
            for sequence in sequences:
                sequence.close()
            self.assertEqual(cache.memory().live_pages, 0)
        return wrong

    def test_outputs_are_within_their_bounds(self):
        shapes = [(1, 2, 1, 64), (2, 4, 4, 64), (2, 8, 2, 128), (1, 8, 1, 96)]
        for seed, shape in enumerate(shapes * 2):
            for kind in (numpy.float32, numpy.float16):
                wrong = self.decode(seed, shape, [(1, 200), (64, 129), (300, 33)][seed % 3], kind)
                self.assertEqual(wrong[0], 0, (seed, shape, kind))
                # Planted: bounds a thousand times as small do not hold.
                self.assertGreater(wrong[1], 0, (seed, shape, kind))

    def test_tensors_lie_anyhow(self):
        random = numpy.random.default_rng(9)
        with small(q_heads=4, kv_heads=2) as cache:
            sequence = cache.sequence()
            # Keys and values side by side, heads outside; queries and outputs in the other order.
            fused = random.standard_normal((2, 70, 2, 2, 64)).astype("f2")
            k, v = fused[0, :, :, 0], fused[1, :, :, 1]
            with cache.step([(sequence, 70)]) as step:
                self.assertRaises(ValueError, step.append, 0, k, v)
                step.append_tensors(0, k.astype("f4"), Tensor(v, "torch.float16"))
            for kind in ("f4", "f2"):
                new = random.standard_normal((2, 2, 1, 64)).astype("f2")
                q, out = random.standard_normal((4, 1, 64)).astype(kind), numpy.full((4, 1, 64), numpy.nan, kind)
                with cache.step(sequence) as step:
                    step.append_tensors(0, new[0].swapaxes(0, 1), new[1].swapaxes(0, 1))
                    found = step.attend_tensors(0, q.swapaxes(0, 1), out.swapaxes(0, 1))
                    self.assertIsNone(step.attend_tensors(0, q.swapaxes(0, 1), out.swapaxes(0, 1), certificates=False))
                k, v = (numpy.concatenate([old, each.swapaxes(0, 1)]) for old, each in zip((k, v), new))
                exact = attention(q[:, 0], k, v)
                self.assertEqual(beyond(out[:, 0], exact, found), 0)
                # Planted: values for keys are beyond them.
                self.assertEqual(beyond(out[:, 0], attention(q[:, 0], v, k), found), 4)

    def test_calls_and_heads_have_their_own_tolerances(self):
        with small(tolerance=0.05) as cache:
            sequence, q, out = cache.sequence(), rows(1, 2, 64) + 0.5, rows(1, 2, 64)
            random = numpy.random.default_rng(3)
            with cache.step([(sequence, 200)]) as step:
                step.append(0, *random.standard_normal((2, 200, 1, 64)).astype("f4"))
            with cache.step(sequence, tolerance=0.3) as step:
                step.append(0, rows(1, 1, 64), rows(1, 1, 64))

                def shares():
                    return [round(c.tol / c.out_norm, 6) for c in step.attend(0, q, out)]

                self.assertEqual(shares(), [0.3, 0.3])
                step.set_tolerances(0.2)
                self.assertEqual(shares(), [0.2, 0.2])
                step.set_tolerances(0.1, (0.0, 0.25))
                one, two = step.attend(0, q, out)
                self.assertEqual((round(one.tol / one.out_norm, 6), two.tol), (0.1, 0.25))
                step.set_tolerances()
                self.assertEqual(shares(), [0.3, 0.3])
                # On the host attention itself has chosen.
                step.plan(0)
                with self.assertRaisesRegex(certkv.Error, "CERTKV_LAYER"):
                    step.plan(1)
                self.assertEqual(shares(), [0.3, 0.3])
            with cache.step(sequence, policy=_abi.CERTKV_POLICY_PACKED) as step:
                step.append(0, rows(1, 1, 64), rows(1, 1, 64))
                self.assertTrue(all(c.status == _abi.CERTKV_UNCERTIFIED for c in step.attend(0, q, out)))

    def test_rows_are_read_one_by_one(self):
        def bytes_read(row_share):
            """Of steps whose attention is that of few tokens, some in every block."""
            random, read = numpy.random.default_rng(12), 0
            with LIBRARY.cache(layers=1, q_heads=2, kv_heads=1, head_dim=128, max_tokens=4096, row_share=row_share) as cache:
                sequence = cache.sequence()
                k, v = random.standard_normal((2, 2048, 1, 128)).astype("f2").astype("f4")
                wanted = random.standard_normal(128).astype("f4")
                k[::61, 0] = (0.55 * wanted + 0.3 * k[::61, 0]).astype("f2")
                with cache.step([(sequence, 2048)]) as step:
                    step.append(0, k, v)
                    step.attend(0, rows(2048, 2, 128), rows(2048, 2, 128))
                for _ in range(4):
                    new = random.standard_normal((2, 1, 1, 128)).astype("f2").astype("f4")
                    k, v = (numpy.concatenate(pair) for pair in zip((k, v), new))
                    q, out = (2 * wanted + 0.1 * random.standard_normal((1, 2, 128))).astype("f4"), rows(1, 2, 128)
                    # A tolerance of the step's own leaves the share to the cache.
                    with cache.step(sequence, tolerance=0.02) as step:
                        step.append(0, *new)
                        found = step.attend(0, q, out)
                    self.assertEqual(beyond(out[0], attention(q[0], k, v), found), 0)
                    read += sum(c.packed_bytes + c.host_bytes for c in found)
            return read

        self.assertLess(bytes_read(0.125), 0.95 * bytes_read(0))
        with self.assertRaisesRegex(certkv.Error, "row_share = 0.5"):
            small(row_share=0.5)

    def test_first_and_newest_tokens_are_read_exactly(self):
        def promoted(**fields):
            """Blocks whose keys and values a step behind 200 tokens reads from originals."""
            with LIBRARY.cache(
                layers=1, q_heads=2, kv_heads=1, head_dim=64, max_tokens=512, format="k2-v2g32-b16", policy=_abi.CERTKV_POLICY_PACKED, **fields
            ) as cache:
                sequence, out = cache.sequence(), rows(1, 2, 64)
                with cache.step([(sequence, 200)]) as step:
                    step.append(0, rows(200, 1, 64), rows(200, 1, 64))
                with cache.step(sequence) as step:
                    step.append(0, rows(1, 1, 64), rows(1, 1, 64))
                    found = step.attend(0, rows(1, 2, 64), out)
                return {(c.promoted_keys, c.promoted_values) for c in found}

        self.assertEqual(promoted(), {(0, 0)})
        # Of 201 tokens the first 20 lie in two blocks, and the last 50 in three besides the open one.
        self.assertEqual(promoted(protect_sinks=20, protect_recent=50), {(5, 5)})
        self.assertEqual(promoted(protect_recent=500), {(12, 12)})
        with self.assertRaisesRegex(certkv.Error, "protect_recent: "):
            small(protect_recent=1 << 40)

    def test_heads_have_formats_of_their_own(self):
        formats = ["k8-v4g64-b64", "k4-v4g64-b32-r4.4", "tq4-tq3-b16"]

        def answers(format):
            random = numpy.random.default_rng(5)
            with LIBRARY.cache(layers=2, q_heads=6, kv_heads=3, head_dim=64, max_tokens=256, format=format) as cache:
                sequence, out = cache.sequence(), rows(1, 6, 64)
                with cache.step([(sequence, 150)]) as step:
                    for layer in range(2):
                        step.append(layer, *random.standard_normal((2, 150, 3, 64)).astype("f4"))
                with cache.step(sequence) as step:
                    for layer in range(2):
                        step.append(layer, *random.standard_normal((2, 1, 3, 64)).astype("f4"))
                        step.attend(layer, random.standard_normal((1, 6, 64)).astype("f4"), out)
                return out[0].copy()

        mixed = answers("+".join(formats * 2))
        for head, format in enumerate(formats):
            self.assertTrue((mixed[2 * head:2 * head + 2] == answers(format)[2 * head:2 * head + 2]).all(), format)
            self.assertFalse((mixed == answers(format)).all(), format)

    def test_pages_are_looked_after(self):
        for erase in (0, 1):
            with small(erase=erase, format="k8-v4g64-b16") as cache:
                sequence = cache.sequence()
                with cache.step([(sequence, 40)]) as step:
                    step.append(0, rows(40, 1, 64) + 0.5, rows(40, 1, 64) + 0.25)
                done, damages = cache.scrub(100, originals=True)
                self.assertEqual((done.pages, done.mended, done.damaged, done.busy, done.complete, list(damages)), (2, 0, 0, 0, 1, []))
                sequence.close()
                self.assertEqual(cache.residue() == 0, erase == 1)

    def test_moves_are_told(self):
        with small(swap_tokens=256, move_events=3, format="k8-v4g64-b16") as cache:
            sequence = cache.sequence()
            with cache.step([(sequence, 32)]) as step:
                step.append(0, rows(32, 1, 64), rows(32, 1, 64))
            moved = sequence.swap_out() + sequence.swap_in()
            told, read = cache.moves()
            self.assertEqual((read.lost, read.next, read.newest), (1, 4, 4))
            self.assertEqual([(e.number, e.kind, e.block) for e in told],
                             [(1, _abi.CERTKV_MOVE_SWAPPED_OUT, 1), (2, _abi.CERTKV_MOVE_SWAPPED_IN, 0), (3, _abi.CERTKV_MOVE_SWAPPED_IN, 1)])
            self.assertEqual((moved, told[0].sequence), (4 * told[0].bytes, sequence.number()))
            self.assertEqual([e.number for e in cache.moves(3, 5)[0]], [3])

    def test_blocks_have_levels(self):
        levels = [("t8-v8g64-b16", 256), ("t4-v4g64-b16", 256), ("t2-v2g64-b16", 256)]
        control = LIBRARY.control(100.0, protected_first=0, protected_last=0)
        random = numpy.random.default_rng(4)
        with small(levels=levels, control=control) as cache:
            sequence, stored = cache.sequence(), random.standard_normal((2, 96, 1, 64)).astype("f2")
            with cache.step([(sequence, 96)]) as step:
                step.append(0, *stored)
            sequence.change_level(0, 2, 2)
            self.assertEqual([sequence.level(0, block) for block in range(6)], [0, 0, 2, 0, 0, 0])
            done = sequence.set_levels([[1, 0, 2, 1]])
            self.assertEqual((done.changed, done.refused + done.failed), (2, 0))
            self.assertEqual([sequence.level(0, block) for block in range(6)], [1, 0, 2, 1, 0, 0])
            with self.assertRaisesRegex(certkv.Error, "not full"):
                sequence.set_levels([[0] * 7])
            with self.assertRaisesRegex(ValueError, "different lengths"):
                sequence.set_levels([[0], []])
            sequence.set_levels([[0, 0, 2, 0]])
            changed = 0
            for _ in range(3):
                new, q = random.standard_normal((2, 1, 1, 64)).astype("f2"), random.standard_normal((1, 2, 64)).astype("f4")
                stored, out = numpy.concatenate([stored, new], 1), numpy.empty_like(q)
                with cache.step(sequence) as step:
                    step.append(0, *new)
                    found = step.attend(0, q, out)
                self.assertEqual(beyond(out[0], attention(q[0], *stored), found), 0)
                told = []
                changed += sequence.control(lambda entry: told.append((entry.layer, entry.blocks, entry.n_levels, bool(entry.attention), bool(entry.loss)))).changed
                self.assertEqual(told, [(0, 6, 3, True, False)])
            self.assertGreater(changed, 0)
            with self.assertRaisesRegex(ValueError, "mine"):
                sequence.control(self.raises)
            self.assertGreater(sum(sequence.level(0, block) > 0 for block in range(6)), 0)

    def test_heads_have_levels(self):
        levels = [("t8-v8g64-b16", 256), ("t4-v4g64-b16", 256), ("t2-v2g64-b16", 256)]
        retention = LIBRARY.retention(2 * 100.0, interval=1, head_bytes_per_token=2 * 130.0)
        random = numpy.random.default_rng(6)
        with small(q_heads=4, kv_heads=2, levels=levels, levels_by_head=1, retention=retention) as cache:
            sequence, stored = cache.sequence(), random.standard_normal((2, 96, 2, 64)).astype("f2")
            with cache.step([(sequence, 96)]) as step:
                step.append(0, *stored)
            sequence.change_head_level(0, 1, 2, 2)
            self.assertEqual([sequence.head_level(0, head, 2) for head in range(2)], [0, 2])
            with self.assertRaisesRegex(certkv.Error, "level_of"):
                sequence.level(0, 2)
            new, q = random.standard_normal((2, 1, 2, 64)).astype("f2"), random.standard_normal((1, 4, 64)).astype("f4")
            stored, out = numpy.concatenate([stored, new], 1), numpy.empty_like(q)
            with cache.step(sequence) as step:
                step.append(0, *new)
                found = step.attend(0, q, out)
            self.assertEqual(beyond(out[0], attention(q[0], *stored), found), 0)
            plan, planned = sequence.plan_levels(0.5)
            self.assertEqual((plan.planned, [len(levels) for levels in planned]), (1, [6, 6]))
            told = []
            sequence.control(lambda entry: told.append((entry.layer, entry.kv_head, entry.heads, entry.blocks)))
            self.assertEqual(told, [(0, 0, 2, 6), (0, 1, 2, 6)])
            self.assertGreater(sum(sequence.head_level(0, head, block) > 0 for head in range(2) for block in range(6)), 0)

    @staticmethod
    def raises(_):
        raise ValueError("mine")

    def test_the_machine_is_described(self):
        seen = LIBRARY.capabilities()
        self.assertIn(seen.cpu, (_abi.CERTKV_CPU_GENERIC, _abi.CERTKV_CPU_AVX2, _abi.CERTKV_CPU_AVX512))
        self.assertEqual(seen.gpus > 0, seen.gpus > 0 and seen.cuda == _abi.CERTKV_OK)
        if seen.gpus:
            self.assertTrue(LIBRARY.gpu().name)
        with self.assertRaisesRegex(certkv.Error, "device"):
            LIBRARY.gpu(_abi.CERTKV_DEVICE_HOST)
        done = LIBRARY.prepare(layers=1, q_heads=2, kv_heads=1, head_dim=64, max_tokens=64)
        self.assertEqual((done.kernels, done.compiled), (0, 0))

    def test_levels_are_planned_and_retained(self):
        levels = [("t8-v8g64-b16", 256), ("t4-v4g64-b16", 256), ("t2-v2g64-b16", 256)]
        random = numpy.random.default_rng(5)
        stored, new = random.standard_normal((2, 96, 1, 64)).astype("f2"), random.standard_normal((2, 1, 1, 64)).astype("f2")
        q = random.standard_normal((1, 2, 64)).astype("f4")
        for decides in ({"retention": LIBRARY.retention(130.0, protected_first=0, protected_last=0)}, {"bound_budget": LIBRARY.bound_budget(130.0)}):
            with small(levels=levels, **decides) as cache:
                sequence, out = cache.sequence(), numpy.empty_like(q)
                with cache.step([(sequence, 96)]) as step:
                    step.append(0, *stored)
                self.assertEqual(sequence.plan_levels(0.05)[0].planned, 0)
                with cache.step(sequence) as step:
                    step.append(0, *new)
                    found = step.attend(0, q, out)
                self.assertEqual(beyond(out[0], attention(q[0], *numpy.concatenate([stored, new], 1)), found), 0)
                plan, chosen = sequence.plan_levels(1e9)
                self.assertEqual((plan.planned, plan.lacking, chosen), (1, _abi.CERTKV_LACKING_NOTHING, [[2] * 6]))
                plan, chosen = sequence.plan_levels(0.05, 0)
                self.assertEqual((plan.lacking, plan.blocks), (_abi.CERTKV_LACKING_FLOOR, 6))
                self.assertGreater(sequence.control().changed, 0)
                self.assertGreater(sum(sequence.level(0, block) > 0 for block in range(6)), 0)

    def test_scales_are_fixed(self):
        made = scales(1, 1, 64, bytes([7] * 32), 0.25)
        fixed = LIBRARY.scales(made, bytes([7] * 32))
        self.assertEqual((fixed.describe().head_dim, fixed.describe().percentile), (64, 99.5))
        random = numpy.random.default_rng(6)
        with small(scales=fixed, format="p8-p8-b16") as cache:
            fixed.close()
            sequence, stored = cache.sequence(), random.standard_normal((2, 64, 1, 64)).astype("f2")
            with cache.step([(sequence, 64)]) as step:
                step.append(0, *stored)
            new, q = random.standard_normal((2, 1, 1, 64)).astype("f2"), random.standard_normal((1, 2, 64)).astype("f4")
            out = numpy.empty_like(q)
            with cache.step(sequence) as step:
                step.append(0, *new)
                found = step.attend(0, q, out)
            self.assertEqual(beyond(out[0], attention(q[0], *numpy.concatenate([stored, new], 1)), found), 0)
            seen = _abi.certkv_snapshot(struct_size=_abi.ctypes.sizeof(_abi.certkv_snapshot))
            LIBRARY.call("certkv_cache_snapshot", cache.handle(), _abi.ctypes.byref(seen))
            # Of normal numbers four in five are beyond a quarter.
            self.assertGreater(seen.saturated, 64 * 64)

    def test_a_sequence_is_cut_swapped_saved_and_restored(self):
        with small(swap_tokens=256) as cache, tempfile.TemporaryDirectory() as folder:
            sequence, k = cache.sequence(), numpy.arange(100 * 64, dtype=numpy.float32).reshape(100, 1, 64) / 6400
            with cache.step([(sequence, 100)]) as step:
                step.append(0, k, -k)
            self.assertGreater(sequence.swap_out(), 0)
            self.assertGreater(sequence.swap_in(), 0)
            self.assertEqual(sequence.prefetch().wanted, 0)
            file = pathlib.Path(folder, "one")
            self.assertEqual(sequence.save(file, "model"), file.stat().st_size)
            # A path is whatever names a file: str, bytes or a path.
            self.assertEqual(sequence.save(os.fsencode(file), "model"), file.stat().st_size)
            cache.restore(os.fsencode(file), "model").close()
            again, q = cache.restore(str(file), b"model"), numpy.ones((2, 2, 64), numpy.float32)
            outs = numpy.zeros_like(q)
            with cache.step([(sequence, 1), (again, 1)]) as step:
                step.append(0, rows(2, 1, 64), rows(2, 1, 64))
                step.attend(0, q, outs)
            self.assertTrue(numpy.array_equal(outs[0], outs[1]) and numpy.any(outs[0]))
            sequence.truncate(7)
            self.assertEqual((len(sequence), len(again)), (7, 101))
            with self.assertRaises(certkv.Error) as refused:
                cache.restore(file, "another model")
            self.assertEqual(refused.exception.name, "CERTKV_FILE_REFUSED")

    def test_the_example_says_what_the_one_in_c_says(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "minimal_decode")
            library = pathlib.Path(folder, "libcertkv.so.0")
            library.symlink_to(pathlib.Path(PATH).resolve())
            source = ROOT / "cpp-examples/minimal_decode.c"
            subprocess.run(["gcc", "-std=c11", "-I", ROOT / "include", source, library, "-lm", f"-Wl,-rpath,{folder}", "-o", program], check=True)
            in_c = subprocess.run([program], check=True, capture_output=True, text=True).stdout
            run = [sys.executable, ROOT / "python/examples/minimal_decode.py", PATH]
            in_python = subprocess.run(run, check=True, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / "python")}).stdout
        self.assertEqual(in_python, in_c)


class Refused(unittest.TestCase):
    def refused(self, kind, words, call, *arguments, **named):
        with self.assertRaises(kind) as refused:
            call(*arguments, **named)
        self.assertIn(words, str(refused.exception))

    def test_buffers(self):
        with small() as cache:
            step, good = cache.step(cache.sequence()), rows(1, 1, 64)
            for bad, kind, words in [
                (rows(1, 1, 64, kind=numpy.float64), TypeError, "keys holds float64"),
                (rows(1, 1, 128)[:, :, ::2], ValueError, "keys is not contiguous"),
                (Tensor(good, contiguous=False), ValueError, "keys is not contiguous"),
                (Tensor(good, dtype="torch.int64"), TypeError, "keys holds torch.int64"),
                (rows(1, 1, 32), ValueError, "keys and values differ in elements"),
                (rows(1, 1, 64, kind=numpy.float16), ValueError, "keys and values differ in dtype"),
                (Tensor(good, is_cuda=True), ValueError, "keys and values differ in space"),
                ([0.0] * 64, TypeError, "keys is a list"),
            ]:
                self.refused(kind, words, step.append, 0, bad, good)
            self.refused(certkv.Error, "CERTKV_SHAPE", step.append, 0, rows(2, 1, 64), rows(2, 1, 64))
            self.refused(certkv.Error, "CERTKV_LAYER", step.append, 1, good, good)
            self.refused(certkv.Error, "CERTKV_NOT_FINITE", step.append, 0, good + numpy.nan, good)
            self.refused(certkv.Error, "CERTKV_UNSUPPORTED", step.append, 0, Tensor(good, is_cuda=True), Tensor(good, is_cuda=True))
            step.append(0, Tensor(good.astype(numpy.float16), "torch.float16"), certkv.Pointer(rows(64, kind=numpy.float16).ctypes.data, 64, "f16"))
            fixed = rows(1, 2, 64)
            fixed.flags.writeable = False
            self.refused(ValueError, "out is read-only", step.attend, 0, rows(1, 2, 64), fixed)
            self.refused(TypeError, "queries and out hold f16", step.attend, 0, *[rows(1, 2, 64, kind=numpy.float16)] * 2)
            self.refused(TypeError, "dtype is 'f8'", certkv.Pointer, 0, 1, "f8")
            self.refused(ValueError, "must not be negative", certkv.Pointer, -1, 1)
            step.close()

    def test_tensors_levels_and_scales(self):
        with small() as cache:
            step, good = cache.step(cache.sequence()), rows(1, 1, 64)
            for bad, kind, words in [
                (rows(1, 1, 64, kind=numpy.float64), TypeError, "keys holds float64"),
                (rows(1, 1, 128)[:, :, ::2], ValueError, "channels that do not follow each other"),
                (rows(1, 1, 128), ValueError, "keys has the shape (1, 1, 128), not (1, 1, 64)"),
                (Tensor(good, dtype="torch.int64"), TypeError, "keys holds torch.int64"),
                (Tensor(good, is_cuda=True), certkv.Error, "space"),
                (certkv.Pointer(0, 64), TypeError, "keys is a Pointer"),
            ]:
                self.refused(kind, words, step.append_tensors, 0, bad, good)
            step.append_tensors(0, good, good)
            fixed = rows(1, 2, 64)
            fixed.flags.writeable = False
            self.refused(ValueError, "out is read-only", step.attend_tensors, 0, rows(1, 2, 64), fixed)
            self.refused(certkv.Error, "tolerances[0]", step.set_tolerances, -1.0)
            self.refused(certkv.Error, "CERTKV_SHAPE", step.set_tolerances, 0.1, 0.1, 0.1)
            step.close()
            with cache.step([(cache.sequence(), 2)]) as step:
                self.refused(ValueError, "backwards", step.append_tensors, 0, rows(2, 1, 64)[::-1], rows(2, 1, 64))
                step.append_tensors(0, rows(2, 1, 64), rows(2, 1, 64))
            self.refused(certkv.Error, "move_events", cache.moves)
            self.refused(certkv.Error, "CERTKV_POLICY", cache.step, cache.sequence(), tolerance=-1.0)
            self.refused(certkv.Error, "CERTKV_LEVEL", cache.sequence().level, 0, 0)
            self.refused(certkv.Error, "CERTKV_LEVEL", cache.sequence().change_level, 0, 0, 1)
        self.refused(certkv.Error, "config->levels", small, levels=[("t8-v8g64-b16", 256)])
        self.refused(certkv.Error, "config->levels[1].format", small, levels=[("t8-v8g64-b16", 256), ("t4", 256)])
        self.refused(certkv.Error, "config->control", small, control=LIBRARY.control(200.0))
        self.refused(TypeError, "no field beta", LIBRARY.control, 200.0, beta=1)
        self.refused(TypeError, "no field reserved", LIBRARY.bound_budget, 200.0, reserved=1)
        self.refused(certkv.Error, "config->retention", small, retention=LIBRARY.retention(200.0))
        self.refused(TypeError, "no field n_levels", small, n_levels=2)
        made = scales(1, 1, 64, bytes([7] * 32), 0.25)
        self.refused(certkv.Error, "CERTKV_FILE_REFUSED", LIBRARY.scales, made, bytes(32))
        self.refused(certkv.Error, "CERTKV_FILE_DAMAGED", LIBRARY.scales, made[:-1])
        self.refused(certkv.Error, "config->scales", small, scales=LIBRARY.scales(made))

    def test_what_is_over(self):
        cache = small()
        sequence = cache.sequence()
        self.refused(certkv.Error, "CERTKV_ORDER", cache.step(sequence).finish)
        gc.collect()
        with self.assertRaises(KeyError), cache.step(sequence) as step:
            step.append(0, rows(1, 1, 64), rows(1, 1, 64))
            self.refused(certkv.Error, "CERTKV_BUSY_SEQUENCE", cache.step, sequence)
            raise KeyError
        self.assertEqual(len(sequence), 0)
        self.refused(ValueError, "the step is over", step.append, 0, rows(1, 1, 64), rows(1, 1, 64))
        with cache.step(sequence) as step:
            step.append(0, rows(1, 1, 64), rows(1, 1, 64))
        self.assertEqual(len(sequence), 1)
        other = sequence.fork()
        sequence.close()
        sequence.close()
        self.refused(ValueError, "the sequence is closed", len, sequence)
        self.assertEqual(len(other), 1)
        del other
        gc.collect()
        self.assertEqual(cache.memory().live_pages, 0)
        left = cache.sequence()
        cache.close()
        cache.close()
        self.refused(ValueError, "the cache is closed", cache.memory)
        # What belonged to a cache that is closed bothers none that may have its address now.
        again = small()
        kept = again.sequence()
        left.close()
        self.assertEqual(len(kept), 0)
        with small() as other:
            self.refused(ValueError, "another cache's", other.step, kept)
        # A step that is open when its cache is closed keeps the memory until it is closed, too.
        step = again.step(kept)
        handle = step.handle()
        again.close()
        step.close()
        self.refused(certkv.Error, "CERTKV_INVALID_HANDLE", LIBRARY.call, "certkv_step_abort", handle)

    def test_calibrations(self):
        made = calibration(1, 4, 2, 64, bytes([7] * 32))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "calibration")
            path.write_bytes(made)
            opened = LIBRARY.calibration(path, bytes([7] * 32))
        self.refused(certkv.Error, "CERTKV_FILE:", LIBRARY.calibration, path)
        self.refused(certkv.Error, "CERTKV_FILE_REFUSED", LIBRARY.calibration, made, bytes(32))
        self.refused(certkv.Error, "CERTKV_FILE_REFUSED", LIBRARY.calibration, b"?" * len(made))
        self.refused(certkv.Error, "CERTKV_FILE_DAMAGED", LIBRARY.calibration, made[:-9] + b"!" + made[-8:])
        self.refused(ValueError, "31 bytes", LIBRARY.calibration, made, bytes(31))
        read, info = LIBRARY.calibration(made), opened.describe()
        self.assertEqual((info.layers, info.q_heads, info.kv_heads, info.head_dim), (1, 4, 2, 64))
        self.assertEqual(bytes(info.digest), bytes(read.describe().digest))
        shape = dict(q_heads=4, kv_heads=2, format="ctq4-v4g64-b16")
        self.refused(certkv.Error, "config->calibration", small, **shape)
        self.refused(certkv.Error, "CERTKV_FILE_REFUSED", small, calibration=opened, **{**shape, "kv_heads": 4})
        self.refused(certkv.Error, "more than one", small, calibration=opened, calibrations=[read], **shape)
        leveled = [("ctq4-v4g64-b16", 256), ("tq2-v4g64-b16", 256)]
        with small(**{**shape, "format": None}, levels=leveled, calibrations=[read]) as cache:
            self.assertEqual(len(cache.sequence()), 0)
        cache = small(calibration=opened, **shape)
        opened.close()
        self.refused(ValueError, "the calibration is closed", small, calibration=opened, **shape)
        random, sequence, stored = numpy.random.default_rng(5), cache.sequence(), [rows(0, 2, 64)] * 2
        for tokens in [64, 1, 1, 1]:
            new = [random.normal(0.1, 1, (tokens, 2, 64)).astype("f2") for _ in range(2)]
            stored = [numpy.concatenate(pair) for pair in zip(stored, new)]
            q = random.normal(0, 1, (tokens, 4, 64)).astype("f4")
            out = numpy.empty_like(q)
            with cache.step([(sequence, tokens)]) as step:
                step.append(0, *new)
                certificates = step.attend(0, q, out)
            if tokens == 1:
                exact = attention(q[0], *stored)
                self.assertEqual(beyond(out[0], exact, certificates), 0)
                self.assertTrue(all(c.packed_bytes > 0 for c in certificates))

    def test_configurations_and_libraries(self):
        self.refused(certkv.Error, "CERTKV_INVALID_ARGUMENT", small, head_dim=63)
        self.refused(certkv.Error, "CERTKV_", small, format="k9")
        self.refused(TypeError, "no field depth", small, depth=3)
        self.refused(OSError, "nowhere", certkv.load, "/nowhere/libcertkv.so")
        with tempfile.TemporaryDirectory() as folder:
            other = pathlib.Path(folder, "other.so")
            subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", other], check=True)
            self.refused(ImportError, "is not certkv", certkv.load, other)


def tearDownModule():
    print(f"outputs compared: {compared}")


if __name__ == "__main__":
    unittest.main()
