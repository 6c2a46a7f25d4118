"""The shared library, and its calls."""
import ctypes
import gc

from . import _abi
from .cache import Cache, Calibration, Scales
from .errors import Error


class Library:
    """libcertkv, open. Any thread."""

    def __init__(self, path):
        self._dll = ctypes.CDLL(str(path))
        for name, (result, arguments) in _abi.PROTOTYPES.items():
            try:
                function = getattr(self._dll, name)
            except AttributeError:
                raise ImportError(f"{path} has no {name}: it is not certkv {_abi.CERTKV_VERSION_STRING} or later") from None
            function.restype, function.argtypes = result, arguments
        self.version = self._dll.certkv_version().decode()
        ours = [_abi.CERTKV_VERSION_MAJOR, _abi.CERTKV_VERSION_MINOR]
        if [int(part) for part in self.version.split(".")[:2]] != ours:
            raise ImportError(f"{path} is certkv {self.version}, and this package is for {_abi.CERTKV_VERSION_STRING}")

    def call(self, name, *arguments):
        """Calls a function that returns a status; raises Error for any but CERTKV_OK."""
        status = getattr(self._dll, name)(*arguments)
        if status == _abi.CERTKV_OK:
            return
        # The text is the thread's latest: what the garbage collector ends meanwhile must not replace it.
        collects = gc.isenabled()
        gc.disable()
        try:
            raise self._failure(status)
        finally:
            if collects:
                gc.enable()

    def _failure(self, status):
        info = _abi.certkv_error_info(struct_size=ctypes.sizeof(_abi.certkv_error_info))
        known = self._dll.certkv_last_error(ctypes.byref(info)) == _abi.CERTKV_OK and info.status == status
        message = info.message.decode() if known and info.message else ""
        return Error(status, self._dll.certkv_status_name(status).decode(), message, info.cuda_result if known else 0)

    def cache(self, **fields):
        """A Cache. `fields` are those of certkv_config: layers, q_heads, kv_heads, head_dim and max_tokens at least; strings are str, `calibration` a
        Calibration, `calibrations` several, `scales` Scales, `levels` pairs of a format and tokens, `control`, `retention` and
        `bound_budget` what Library.control, Library.retention and Library.bound_budget make."""
        return Cache(self, self._config(fields))

    def prepare(self, **fields):
        """Finds or compiles the kernels of a cache of these `fields` on a GPU, before it is made: certkv_prepared says how many. With `kernels`, a folder, they
        are kept there."""
        done = _abi.certkv_prepared(struct_size=ctypes.sizeof(_abi.certkv_prepared))
        config = self._config(fields)
        self.call("certkv_prepare", ctypes.byref(config), ctypes.byref(done))
        return done

    def capabilities(self):
        """certkv_capabilities: what the library can use of this machine."""
        seen = _abi.certkv_capabilities(struct_size=ctypes.sizeof(_abi.certkv_capabilities))
        self.call("certkv_capabilities_describe", ctypes.byref(seen))
        return seen

    def gpu(self, device=_abi.CERTKV_DEVICE_CUDA):
        """certkv_gpu_info of a `device` as in a configuration."""
        info = _abi.certkv_gpu_info(struct_size=ctypes.sizeof(_abi.certkv_gpu_info))
        self.call("certkv_gpu_describe", device, ctypes.byref(info))
        return info

    def _config(self, fields):
        config = _abi.certkv_config()
        self.call("certkv_config_init", ctypes.byref(config), ctypes.sizeof(config))
        names = {name for name, _ in _abi.certkv_config._fields_} - {"struct_size", "reserved", "n_levels", "n_calibrations"}
        for name, value in fields.items():
            if name not in names:
                raise TypeError(f"certkv_config has no field {name}")
            if isinstance(value, (Calibration, Scales)):
                value = value.handle()
            elif name in ("control", "retention", "bound_budget"):
                value = ctypes.pointer(value)
            elif name == "calibrations":
                config.n_calibrations = len(value)
                value = (ctypes.c_void_p * len(value))(*(one.handle() for one in value))
            elif name == "levels":
                config.n_levels = len(value)
                value = (_abi.certkv_level * len(value))(*((form.encode(), tokens) for form, tokens in value))
            setattr(config, name, value.encode() if isinstance(value, str) else value)
        return config

    def calibration(self, source, model=None):
        """A Calibration from a file of `certkv calibrate`, by its path or its bytes; with `model`, 32 bytes, for the model with this digest alone."""
        return Calibration(self, source, model)


    def scales(self, source, model=None):
        """Scales from a file of `certkv calibrate --scales`, by its path or its bytes; with `model`, 32 bytes, for the model with this digest alone."""
        return Scales(self, source, model)

    def control(self, bytes_per_token, **fields):
        """SmartKV: a certkv_control of the source's parameters, but for `fields`, within a budget of bytes that a token takes in one layer."""
        return self._decides("certkv_control", bytes_per_token, fields)

    def retention(self, bytes_per_token, **fields):
        """Retention: a certkv_retention of the default parameters, but for `fields`, within a budget of all layers."""
        return self._decides("certkv_retention", bytes_per_token, fields)

    def bound_budget(self, bytes_per_token, **fields):
        """The bound's budget: a certkv_bound_budget of the default parameters, but for `fields`, within a budget of all layers."""
        return self._decides("certkv_bound_budget", bytes_per_token, fields)

    def _decides(self, struct, bytes_per_token, fields):
        made = getattr(_abi, struct)()
        self.call(struct + "_init", ctypes.byref(made), ctypes.sizeof(made))
        for name, value in {**fields, "bytes_per_token": bytes_per_token}.items():
            if name not in {name for name, _ in made._fields_} - {"struct_size", "reserved"}:
                raise TypeError(f"{struct} has no field {name}")
            setattr(made, name, value)
        return made


def load(path):
    """Opens the library at `path`, such as lib/libcertkv.so.0 of an installation."""
    return Library(path)
