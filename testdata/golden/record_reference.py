"""A second opinion on what records hold: the formulas of docs/math.md in float64, numpy only.

Written from the text and not from the library or from testdata/oracle, so that an error has to be made twice. Every function
names its equation. Rows are (tokens, channels); a side is a dict of what is stored, what that decodes to, and the figures of
its summary as they truly are, by the names of the record's summary. Assertions are the lemmas of the text.
"""
import math
import numpy as np

FORMATS = {"f32": (24, -126, 2.0**128), "f16": (11, -14, 65504.0), "bf16": (8, -126, 2.0**128)}


def rounded(x, fmt, how):
    """(0.1); -0 is written as 0, and nothing here may overflow."""
    x = np.asarray(x, np.float64)
    p, emin, most = FORMATS[fmt]
    exponent = np.maximum(np.frexp(x)[1] - 1, emin)
    q = np.ldexp(1.0, exponent - p + 1)
    y = how(x / q) * q + 0.0
    assert np.all(np.abs(y) <= most)
    return y


def rn(x, fmt): return rounded(x, fmt, np.rint)
def ru(x, fmt): return rounded(x, fmt, np.ceil)
def rd(x, fmt): return rounded(x, fmt, np.floor)


def over(x, sigma):
    """x/sigma, 0 where sigma is 0: such channels are exact (section 2)."""
    return np.where(sigma > 0, x / np.where(sigma > 0, sigma, 1.0), 0.0)


def row_norm(x): return float(np.sqrt((x * x).sum(1)).max())
def op_norm(e): return float(np.linalg.norm(e, 2))


def op_bound(e):
    """(3.7), above the norm and at most n^(1/16) times it."""
    g = e @ e.T
    t = np.abs(g).max()
    if t == 0:
        return 0.0
    g = g / t
    g4 = np.linalg.matrix_power(g, 4)
    return math.sqrt(t * min(np.abs(g).sum(1).max(), (g4 * g4).sum() ** 0.125))


def channel(x, bits):
    """(2.1)-(2.3) with `bits` for 8, section 2.10, (2.9b); without bits (2.9c). Scales are f16."""
    lo, hi, h = x.min(0), x.max(0), 0
    if bits == 0:
        z = rn(np.array([math.fsum(c) for c in x.T]) / len(x), "f16")
        sigma = ru(2 * np.abs(x - z).max(0), "f16")
        codes, hat = None, z[None, :].copy()
    else:
        h = 2 ** (bits - 1)
        z = rn(lo + h * (hi - lo) / (2 * h - 1), "f16")
        sigma = ru(np.maximum((hi - z) / (h - 1), (z - lo) / h), "f16")
        codes = np.rint(over(x - z, sigma))
        assert codes.min() >= -h and codes.max() <= h - 1
        hat = codes * sigma + z
    assert np.all(np.abs(x - hat) <= sigma / 2)
    return dict(codes=codes, sigma=sigma, z=z, steps=sigma, hat=hat, half=h)


def affine(x, bits, group):
    """(2.4)-(2.6), f16 scales."""
    g = x.reshape(len(x), -1, group)
    z = rd(g.min(2), "f16")
    sigma = ru((g.max(2) - z) / (2**bits - 1), "f16")
    wide = lambda s: np.repeat(s, group, 1)
    codes = np.rint(over(x - wide(z), wide(sigma)))
    assert codes.min() >= 0 and codes.max() <= 2**bits - 1
    hat = codes * wide(sigma) + wide(z)
    assert np.all(np.abs(x - hat) <= wide(sigma) / 2)
    return dict(codes=codes, sigma=sigma, z=z, steps=wide(sigma), hat=hat, half=0)


def residual(x, side, bits):
    """(2.23): residual codes, and the refined rows."""
    s, m = side["steps"], 2.0**bits
    # By the rounded 1/sigma, as (2.23) has it: where the quotient is whole that may be the residual below, which leaves as much.
    r = np.clip(np.floor((x - side["hat"]) * over(1.0, s) * m), -m / 2, m / 2 - 1)
    ref = side["hat"] + (r + 0.5) * s / m
    # What is left is computed with two roundings of the row.
    assert np.all(np.abs(x - ref) <= s / (2 * m) + 2.0**-52 * np.abs(x))
    return r, ref


def spectral(name, e):
    """The norm, and what (3.7) makes of it."""
    return {f"true_{name}": op_norm(e), f"bound_{name}": op_bound(e)}


def key_figures(x, side):
    """(3.6) in steps of the channel, (3.5), (4.12) with 0 for codes that there are not, and the norm of the exact keys."""
    mag = side["half"] * side["sigma"] + np.abs(side["z"])
    return spectral("kappa", over(x - side["hat"], side["sigma"])) | {
        "true_eps": row_norm(x - side["hat"]), "true_key_mag": float(np.linalg.norm(mag)), "true_key_norm": row_norm(x)}


def value_figures(x, side, kind, centre, ref=None):
    """(3.4), (3.1), (3.3); the norm for (5.27): (2.9b) by channel, else that of any value, decoded ones included."""
    if kind == "c":
        norm = float(np.linalg.norm((side["half"] + 1.5) * side["sigma"] + np.abs(side["z"])))
        assert max(row_norm(v) for v in (x, side["hat"], x if ref is None else ref)) <= norm
    else:
        norm = max(row_norm(v) for v in (x, side["hat"], x if ref is None else ref))
    return spectral("sop", x - side["hat"]) | {
        "true_eta": row_norm(x - side["hat"]), "true_radius": row_norm(x - centre), "true_value_norm": norm}


def refined_figures(k, k_ref, k_sigma, v, v_ref):
    """Those of the refined block, (2.23a): kappa still in steps of the codes."""
    return spectral("refined_kappa", over(k - k_ref, k_sigma)) | spectral("refined_sop", v - v_ref) | {
        "true_refined_eps": row_norm(k - k_ref), "true_refined_eta": row_norm(v - v_ref)}


def splitmix64(h):
    """The usual step on uint64 arrays."""
    u = np.uint64
    with np.errstate(over="ignore"):
        h = np.asarray(h, u) + u(0x9E3779B97F4A7C15)
        h = (h ^ (h >> u(30))) * u(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> u(27))) * u(0x94D049BB133111EB)
    return h ^ (h >> u(31))


def hash64(*words):
    """(0.3); the last word may be an array."""
    h = np.uint64(0)
    for w in words:
        h = splitmix64(h ^ np.asarray(w, np.uint64))
    return h


assert int(splitmix64(np.uint64(0))) == 0xE220A8397B1DCDAF
