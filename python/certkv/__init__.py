"""certkv by ctypes: compressed attention with a certificate for every output, from buffers that are taken by address.

`load(path)` gives a Library, `Library.cache(...)` a Cache, which makes sequences and steps. Rows, queries and outputs are numpy arrays,
torch tensors (on the host or on the GPU), whatever has `__cuda_array_interface__`, or a Pointer. Every call that fails raises an Error. The names
and their meaning are those of certkv.h, which `certkv._abi` declares whole.
"""
from .buffers import Pointer
from .cache import Cache, Calibration, Scales, Sequence, Step
from .errors import Error
from .library import Library, load

__all__ = ["Cache", "Calibration", "Error", "Library", "Pointer", "Scales", "Sequence", "Step", "load"]
