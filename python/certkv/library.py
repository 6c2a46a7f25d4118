"""The shared library, and its calls."""
import ctypes
import gc

from . import _abi
from .cache import Cache, Calibration
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
        """A Cache. `fields` are those of certkv_config: layers, q_heads, kv_heads, head_dim and max_tokens at least; strings are str, and
        `calibration` a Calibration."""
        config = _abi.certkv_config()
        self.call("certkv_config_init", ctypes.byref(config), ctypes.sizeof(config))
        names = {name for name, _ in _abi.certkv_config._fields_} - {"struct_size", "reserved"}
        for name, value in fields.items():
            if name not in names:
                raise TypeError(f"certkv_config has no field {name}")
            if isinstance(value, Calibration):
                value = value.handle()
            setattr(config, name, value.encode() if isinstance(value, str) else value)
        return Cache(self, config)

    def calibration(self, source, model=None):
        """A Calibration from a file of `certkv calibrate`, by its path or its bytes; with `model`, 32 bytes, for the model with this digest alone."""
        return Calibration(self, source, model)


def load(path):
    """Opens the library at `path`, such as lib/libcertkv.so.0 of an installation."""
    return Library(path)
