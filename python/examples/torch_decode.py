"""Certified decode from torch tensors in device memory, on torch's stream, beside float64 attention of torch: every error within its bound.

python3 torch_decode.py LIBRARY [FOLDER FOR COMPILED KERNELS], with torch and the folder `python` of this repository on PYTHONPATH
Exit code 0: all within their bounds; 1: not; 3: no torch or no GPU, with the reason.
"""
import sys

import certkv
from certkv import _abi

try:
    import torch
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(3)
if not torch.cuda.is_available():
    print("torch has no GPU", file=sys.stderr)
    sys.exit(3)

LAYERS, Q_HEADS, KV_HEADS, DIM, PROMPT, STEPS = 2, 8, 2, 128, 1000, 20
torch.manual_seed(3)
library = certkv.load(sys.argv[1])
fields = dict(layers=LAYERS, q_heads=Q_HEADS, kv_heads=KV_HEADS, head_dim=DIM, max_tokens=2048, device=_abi.CERTKV_DEVICE_CUDA)
if len(sys.argv) > 2:
    fields["kernels"] = sys.argv[2]
stream = torch.cuda.current_stream()
outputs = beyond = 0
with library.cache(**fields) as cache:
    sequence = cache.sequence()
    # Keys and values of each layer, as the cache has them: rounded to 16 bits.
    past = [[torch.randn(PROMPT, KV_HEADS, DIM).half() for _ in range(2)] for _ in range(LAYERS)]
    with cache.step([(sequence, PROMPT)]) as step:
        for layer, (k, v) in enumerate(past):
            step.append(layer, k, v)
    past = [[rows.cuda() for rows in layer] for layer in past]
    for _ in range(STEPS):
        with cache.step(sequence) as step:
            for layer in range(LAYERS):
                k, v = (torch.randn(1, KV_HEADS, DIM, device="cuda").half() for _ in range(2))
                q = torch.randn(1, Q_HEADS, DIM, device="cuda")
                out = torch.full_like(q, float("nan"))
                past[layer] = [torch.cat([old, new]) for old, new in zip(past[layer], (k, v))]
                step.after_stream(stream.cuda_stream)
                step.append(layer, k, v)
                step.attend(layer, q, out, certificates=False)
                step.before_stream(stream.cuda_stream)
                keys, values = (rows.double().repeat_interleave(Q_HEADS // KV_HEADS, 1) for rows in past[layer])
                weights = torch.softmax(torch.einsum("hd,thd->ht", q[0].double(), keys) / DIM**0.5, 1)
                exact = torch.einsum("ht,thd->hd", weights, values)
                error = (out[0].double() - exact).norm(dim=1).tolist()
                for found, certificate in zip(error, step.certificates(layer)):
                    outputs += 1
                    # NaN is beyond every bound.
                    beyond += not found <= certificate.bound
print(f"certkv {library.version}: {outputs} outputs from torch tensors, {beyond} beyond their bound")
sys.exit(0 if beyond == 0 else 1)
