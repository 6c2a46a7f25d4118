"""A second opinion on keys whose codes need a calibration: spherical (2.20)-(2.22d) and Block-GTQ (2.18), (2.19c), (2.19d).

As record_reference.py: from docs/math.md alone. Codes that a rounding of float64 could turn are kept out of the vectors by
assertions on the closest case.
"""
import os
from itertools import combinations_with_replacement
import numpy as np
import record_reference as R

SAFE = 1e-9
TIERS = {"s1": (16, 6), "s2": (16, 4), "s3": (32, 3)}
# The rotation of records: the text says one fixed seed and leaves its value to the format.
SEED = 0x63657274_6B760001


def spherical(k, books):
    """(2.20), (2.21) with projections as radii and f16 scales; the figures of (2.22c), (2.22d)."""
    groups, words, g = books.shape
    products = np.einsum("tgc,gwc->tgw", k.reshape(len(k), groups, g), books)
    idx = products.argmax(2)
    top = np.sort(products, 2)
    assert np.all((top[..., -1] - top[..., -2] > SAFE * np.abs(top[..., -1])) | (top[..., -1] == top[..., 0]))
    r = np.maximum(products.max(2), 0)
    scale = R.ru(r.max(0) / 255, "f16")
    steps = R.over(r, scale)
    assert np.all(np.abs(steps % 1 - 0.5) > SAFE)
    u = np.clip(np.rint(steps), 0, 255)
    hat = ((scale * u)[..., None] * books[np.arange(groups), idx]).reshape(k.shape)
    figures = R.spectral("kappa", k - hat) | {
        "true_eps": R.row_norm(k - hat), "true_key_norm": R.row_norm(k),
        "true_key_mag": 255 * float(np.linalg.norm(scale)) * (1 + 2.0**-20)}
    return [("k_idx", "u8", idx), ("k_radii", "u8", u), ("k_sigma", "f16", scale), ("k_hat", "f64", hat)], figures


def hadamard(m):
    h = np.ones((1, 1))
    while len(h) < m:
        h = np.block([[h, h], [h, -h]])
    return h / np.sqrt(m)


def rotation(n, seed):
    """The matrix of (2.10), or of (2.11) where n is no power of two."""
    i = np.arange(n, dtype=np.uint64)
    signs = lambda r: np.where(R.hash64(seed, r, i) >> np.uint64(63), -1.0, 1.0)
    parts, blocks = [1 << b for b in range(8, -1, -1) if n >> b & 1], np.zeros((n, n))
    for at, m in zip(np.cumsum([0] + parts), parts):
        blocks[at:at + m, at:at + m] = hadamard(m)
    first = blocks * signs(0)
    if len(parts) == 1:
        return first
    order = np.lexsort((i, R.hash64(seed, 101, i)))
    return (blocks * signs(1)) @ first[order]


def levels(n, bits):
    """G of (2.17b), and the thresholds of its codes, from the table of (2.12)."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "codebook_table.cgv"), "rb") as f:
        raw = f.read()
    end = raw.index(b"\nEND\n") + 5
    line = next(x.split() for x in raw[:end].decode().splitlines() if x.startswith("levels "))
    table = np.frombuffer(raw, "<f4", int(line[3]), -(-end // 16) * 16 + int(line[-2])).astype(float)
    c = table[(n // 2 - 1) * 510 + 2**bits - 2:][:2**bits]
    most = 63 if bits <= 4 else 127
    g = np.rint(most * c / c.max())
    return g, (g[1:] + g[:-1]) / 2 * c.max() / most, most


def groups(bits, rotary, style):
    """(2.18): widths ascending, pairs ascending, channels of a pair adjacent."""
    half = lambda i: (i, i + rotary // 2) if i < rotary // 2 else (2 * i, 2 * i + 1)
    pair = half if style == "half" else lambda i: (2 * i, 2 * i + 1)
    return [(b, [c for i in np.flatnonzero(bits == b) for c in pair(int(i))]) for b in sorted(set(bits))]


def room(widths):
    """Radii of a token in a record: as many as tiles of the same mean can have widths."""
    every = combinations_with_replacement(range(1, 7), len(widths))
    return max(len(set(w)) for w in every if sum(w) == sum(widths))


def gtq(k, bits, rotary, style, centre, metric, slots):
    """(2.19c) in the metric S' of (2.19d). Codes are a sign and a magnitude, in the order of (2.18)."""
    x = (k - centre) * metric
    hat, codes, radii, mag = np.zeros_like(x), [], np.zeros((len(k), slots)), 0.0
    for slot, (b, at) in enumerate(groups(bits, rotary, style)):
        turn, (g, edges, most), h = rotation(len(at), int(R.hash64(SEED, b))), levels(len(at), b), 2 ** (b - 1)
        y = x[:, at] @ turn.T
        r = np.linalg.norm(y, axis=1, keepdims=True)
        unit = y / np.where(r > 0, r, 1)
        assert np.abs(unit[r[:, 0] > 0][..., None] - edges).min() > SAFE
        index = (unit[..., None] > edges).sum(2)
        level = g[index]
        radius = np.maximum((y * level).sum(1), 0) / (level * level).sum(1)
        radii[:, slot] = R.rn(radius, "f16")
        assert np.all(R.rn(radius * (1 + SAFE), "f16") == R.rn(radius * (1 - SAFE), "f16"))
        hat[:, at] = radii[:, slot, None] * level @ turn
        codes.append(np.where(index >= h, index, h - 1 - index))
        mag += len(at) * (most * radii[:, slot].max()) ** 2
    figures = R.spectral("kappa", x - hat) | {
        "true_eps": R.row_norm(x - hat), "true_key_norm": R.row_norm(k), "true_key_mag": float(np.sqrt(mag))}
    return [("k_codes", "u8", np.concatenate(codes, 1)), ("k_sigma", "f16", radii), ("k_hat", "f64", hat)], figures


def keys(draw, text, k, store, scheme):
    """Calibration and codes of the keys `k` of format `text`."""
    d = k.shape[1]
    if text in TIERS:
        g, b = TIERS[text]
        books = draw.normal(d // g, 2**b, g)
        books = R.rn(books / np.sqrt((books * books).sum(2, keepdims=True)), "f32")
        k[1, :g] = 0
        items, figures = spherical(k, books)
        return [("books", "f32", books)] + items, figures
    widths, rotary, style = scheme
    # Pairs of a width are scattered over the head.
    bits = np.repeat(widths, d // 2 // len(widths))[np.argsort(draw.uniform(d // 2))]
    centre = R.rn(k.mean(0), store)
    balance = R.rn(2.0 ** draw.normal(d) / np.maximum(k.std(0), 2.0**-6), "f32")
    weight = np.ones(d)
    for b, at in groups(bits, rotary, style):
        weight[at] = 2 ** (b / 2)
    metric = R.rn(balance * weight, "f32")
    k[3] = centre                                          # a zero vector: radius 0
    items, figures = gtq(k, bits, rotary, style, centre, metric, room(widths))
    given = [("bits", "u8", bits), ("rotary", "u8", rotary), ("pairing", "str", style), ("key_centre", "f32", centre), ("balance", "f32", balance)]
    return given + [("metric", "f32", metric)] + items, figures
