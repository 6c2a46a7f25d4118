"""Buffers of others, by address: their type, length, order and place are checked before the library sees them."""
import ctypes
import math
from collections import namedtuple

from . import _abi

_SIZES = {"f32": (_abi.CERTKV_F32, 4), "f16": (_abi.CERTKV_F16, 2), "bf16": (_abi.CERTKV_BF16, 2)}
# numpy has no bf16: patterns of 16 bits stand for it.
_INTERFACE = {"<f4": "f32", "<f2": "f16", "<u2": "bf16"}
_TORCH = {"torch.float32": "f32", "torch.float16": "f16", "torch.bfloat16": "bf16"}


class Pointer:
    """`elements` numbers of type `dtype` ("f32", "f16" or "bf16") at `address`, on the host or, with `device`, on the GPU."""

    def __init__(self, address, elements, dtype="f32", device=False):
        if dtype not in _SIZES:
            raise TypeError(f"dtype is {dtype!r}, not one of {', '.join(_SIZES)}")
        if address < 0 or elements < 0:
            raise ValueError("address and elements must not be negative")
        self.address, self.elements, self.dtype, self.device = address, elements, dtype, device


Buffer = namedtuple("Buffer", "address elements dtype space")


def take(what, given, write=False):
    """The Buffer of `given`, which is called `what`. The caller keeps `given` alive."""
    if isinstance(given, Pointer):
        dtype, address, elements, device = given.dtype, given.address, given.elements, given.device
    elif hasattr(given, "data_ptr"):
        dtype = _TORCH.get(str(given.dtype))
        if not given.is_contiguous():
            raise ValueError(f"{what} is not contiguous")
        address, elements, device = given.data_ptr(), given.numel(), bool(given.is_cuda)
    else:
        interface, device = getattr(given, "__array_interface__", None), False
        if interface is None:
            interface, device = getattr(given, "__cuda_array_interface__", None), True
        if interface is None:
            raise TypeError(f"{what} is a {type(given).__name__}: not an array, a tensor or a Pointer")
        dtype = _INTERFACE.get(interface["typestr"])
        elements, item = 1, int(interface["typestr"][2:])
        steps = interface.get("strides")
        for length, step in reversed(list(zip(interface["shape"], steps or [None] * len(interface["shape"])))):
            if step is not None and length > 1 and step != elements * item:
                raise ValueError(f"{what} is not contiguous")
            elements *= length
        address, read_only = interface["data"]
        if write and read_only:
            raise ValueError(f"{what} is read-only")
    if dtype is None:
        raise TypeError(f"{what} holds {getattr(given, 'dtype', 'numbers of another type')}, not f32, f16 or bf16")
    space = _abi.CERTKV_SPACE_DEVICE if device else _abi.CERTKV_SPACE_HOST
    return Buffer(address, elements, dtype, space)


def tensor(what, given, shape, write=False):
    """The certkv_tensor of `given`, an array or a tensor of `shape`, which is (tokens, heads, channels), whatever its strides of tokens and heads. The
    caller keeps `given` alive."""
    if hasattr(given, "data_ptr"):
        dtype, address, device = _TORCH.get(str(given.dtype)), given.data_ptr(), bool(given.is_cuda)
        found, strides = tuple(given.shape), tuple(given.stride())
    else:
        interface, device = getattr(given, "__array_interface__", None), False
        if interface is None:
            interface, device = getattr(given, "__cuda_array_interface__", None), True
        if interface is None:
            raise TypeError(f"{what} is a {type(given).__name__}: not an array or a tensor")
        dtype, found, (address, read_only) = _INTERFACE.get(interface["typestr"]), tuple(interface["shape"]), interface["data"]
        if write and read_only:
            raise ValueError(f"{what} is read-only")
        item, steps = int(interface["typestr"][2:]), interface.get("strides")
        if steps is None:
            strides = tuple(math.prod(found[at + 1 :]) for at in range(len(found)))
        elif any(step % item for step in steps):
            raise ValueError(f"{what} has strides of parts of elements")
        else:
            strides = tuple(step // item for step in steps)
    if dtype is None:
        raise TypeError(f"{what} holds {getattr(given, 'dtype', 'numbers of another type')}, not f32, f16 or bf16")
    if found != tuple(shape):
        raise ValueError(f"{what} has the shape {found}, not {tuple(shape)}")
    if strides[2] != 1:
        raise ValueError(f"{what} has channels that do not follow each other")
    if strides[0] <= 0 or strides[1] <= 0:
        raise ValueError(f"{what} has tokens or heads backwards, or one for all")
    made = _abi.certkv_tensor(struct_size=ctypes.sizeof(_abi.certkv_tensor), dtype=_SIZES[dtype][0], data=address)
    made.space = _abi.CERTKV_SPACE_DEVICE if device else _abi.CERTKV_SPACE_HOST
    made.token_stride, made.head_stride = strides[:2]
    return made


def number(buffer):
    """The certkv_dtype of a Buffer."""
    return _SIZES[buffer.dtype][0]


def alike(first, second, names):
    """Two buffers that one call takes must agree in everything but their address."""
    for field in Buffer._fields[1:]:
        if getattr(first, field) != getattr(second, field):
            raise ValueError(f"{names[0]} and {names[1]} differ in {field}")
