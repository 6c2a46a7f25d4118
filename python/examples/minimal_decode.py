"""Prefill of 96 tokens, then 8 decode steps of a one-layer model, with the certificate of every head: minimal_decode.c in Python.

python3 minimal_decode.py LIBRARY, with numpy and the folder `python` of this repository on PYTHONPATH
"""
import sys

import certkv
import numpy
from certkv import _abi

Q_HEADS, KV_HEADS, DIM, PROMPT, STEPS = 4, 2, 64, 96, 8
state = 1


def numbers(*shape):
    """Stands in for a model: numbers between -1 and 1."""
    global state
    made = numpy.empty(numpy.prod(shape), numpy.float32)
    for i in range(made.size):
        state = (state * 1664525 + 1013904223) % 2**32
        made[i] = (state >> 8) / 8388608 - 1
    return made.reshape(shape)


def step(cache, sequence, tokens):
    """Appends tokens in one step and attends over everything up to them."""
    k, v, q = numbers(tokens, KV_HEADS, DIM), numbers(tokens, KV_HEADS, DIM), numbers(tokens, Q_HEADS, DIM)
    with cache.step([(sequence, tokens)]) as now:
        now.append(0, k, v)
        return now.attend(0, q, numpy.empty_like(q))


library = certkv.load(sys.argv[1])
heads = within = 0
how_of = {_abi.CERTKV_EXACT: "exact", _abi.CERTKV_CERTIFIED: "certified"}
with library.cache(layers=1, q_heads=Q_HEADS, kv_heads=KV_HEADS, head_dim=DIM, max_tokens=PROMPT + STEPS) as cache:
    sequence = cache.sequence()
    step(cache, sequence, PROMPT)
    for i in range(STEPS):
        for c in step(cache, sequence, 1):
            how = how_of.get(c.status, "?")
            print(f"token {PROMPT + i} head {heads % Q_HEADS}: {how}, |error| <= {c.bound:.2e}, |out| = {c.out_norm:.3f}, rung {c.rung}")
            within += c.status in how_of
            heads += 1
print(f"certkv {library.version}: {within} of {heads} outputs within tolerance or exact")
sys.exit(0 if within == heads else 1)
