#!/usr/bin/env python3
"""Dense attention of a chunk of queries over a past, by torch: what certkv's extend kernel is compared with.

One layer, 32 query heads, 8 KV heads, d = 128, fp16. `BEFORExTOKENS` or `BEFORExTOKENSxCHUNKS`: queries of the last TOKENS tokens, each of which sees all
before it and itself. Median of 10 calls by events, cuDNN and FlashAttention-2 back ends; keys and values are repeated for the groups where a back end
cannot share them, outside the time.

  python3 prefill.py 32768x2048 0x8192
"""

import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

HEADS, KV_HEADS, DIM = 32, 8, 128


def measure(call):
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(10):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) * 1e3)
    return statistics.median(times)


def main():
    torch.manual_seed(1)
    for text in sys.argv[1:]:
        before, tokens, *rest = (int(x) for x in text.split("x"))
        chunks = rest[0] if rest else 1
        total = before + tokens
        new = lambda heads, n: torch.randn((chunks, heads, n, DIM), device="cuda", dtype=torch.float16)
        q, k, v = new(HEADS, tokens), new(KV_HEADS, total), new(KV_HEADS, total)
        flops = 4 * DIM * HEADS * chunks * (before * tokens + tokens * (tokens + 1) / 2)
        for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
            how = {"is_causal": True} if before == 0 else {"attn_mask": causal_lower_right(tokens, total)}
            note = "causal"
            with sdpa_kernel(backend):
                function = torch.nn.functional.scaled_dot_product_attention
                for attempt in (how, {}):
                    try:
                        us = measure(lambda: function(q, k, v, enable_gqa=True, **attempt))
                        break
                    except RuntimeError as error:
                        # Without a mask it is more work where tokens see each other, by half a chunk of each row.
                        note, us = f"all of it ({str(error).splitlines()[0][:60]})", None
                if us is not None:
                    print(f"{name:6} {text:16} {us:12.1f} us {flops / us * 1e-6:8.1f} TFLOP/s of causal work, {note}")


if __name__ == "__main__":
    main()
