"""A cache, its sequences and its steps."""
import ctypes
import os
import weakref

from . import _abi
from .buffers import alike, number, take, tensor
from .errors import Error

_u64 = ctypes.c_uint64


class _Owned:
    """A handle of the library that is ended once: by close(), by the end of a `with` block, or with the object."""

    def __init__(self, end):
        self._end = weakref.finalize(self, end)

    @property
    def closed(self):
        """Whether it was ended."""
        return not self._end.alive

    def close(self):
        """Ends it. A second call does nothing."""
        self._end()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close()


class _Sealed(_Owned):
    """What `certkv calibrate` wrote and nobody changes; `_kind` is what the library calls it."""

    def __init__(self, library, source, model):
        handle = ctypes.c_void_p()
        if model is not None:
            if len(model) != 32:
                raise ValueError(f"model has {len(model)} bytes, not 32")
            model = (ctypes.c_uint8 * 32)(*model)
        if isinstance(source, (bytes, bytearray)):
            kept = ctypes.create_string_buffer(bytes(source), len(source) + 1)
            library.call(f"certkv_{self._kind}_read", kept, len(source), model, ctypes.byref(handle))
        else:
            library.call(f"certkv_{self._kind}_open", os.fsencode(source), model, ctypes.byref(handle))
        self.library, self._handle, end = library, handle, f"certkv_{self._kind}_destroy"
        super().__init__(lambda: library.call(end, handle))

    def handle(self):
        """The pointer that the library gave."""
        if self.closed:
            raise ValueError(f"the {self._kind} is closed")
        return self._handle

    def describe(self):
        """certkv_calibration_info or certkv_scales_info: the heads that it is of, its model, and what it was made from."""
        kind = getattr(_abi, f"certkv_{self._kind}_info")
        info = kind(struct_size=ctypes.sizeof(kind))
        self.library.call(f"certkv_{self._kind}_describe", self.handle(), ctypes.byref(info))
        return info


class Calibration(_Sealed):
    """What a model's keys are coded by, for formats such as ctq4; made by Library.calibration. Caches keep what they need of it."""

    _kind = "calibration"


class Scales(_Sealed):
    """Fixed scales, for formats with one scale per block such as p8; made by Library.scales. Caches keep what they need of them."""

    _kind = "scales"


class Cache(_Owned):
    """A cache; made by Library.cache. Calls may come from any thread. Closing it ends what it holds: its sequences and steps are closed then."""

    def __init__(self, library, config):
        handle = ctypes.c_void_p()
        library.call("certkv_cache_create", ctypes.byref(config), ctypes.byref(handle))
        self.library, self._handle = library, handle
        self.layers, self.q_heads = config.layers, config.q_heads
        self.kv_heads, self.head_dim = config.kv_heads, config.head_dim
        self.levels_by_head = config.levels_by_head == 1
        super().__init__(lambda: library.call("certkv_cache_destroy", handle))

    def handle(self):
        """The certkv_cache pointer, for calls that have no method here."""
        if self.closed:
            raise ValueError("the cache is closed")
        return self._handle

    def sequence(self):
        """A new Sequence without tokens."""
        made = _u64()
        self.library.call("certkv_sequence_create", self.handle(), ctypes.byref(made))
        return Sequence(self, made.value)

    def restore(self, path, model):
        """The Sequence of a file that Sequence.save wrote for `model` (bytes or str that name the model)."""
        made, scope = _u64(), _scope(model)
        self.library.call("certkv_sequence_restore", self.handle(), ctypes.byref(scope[0]), os.fsencode(path), ctypes.byref(made))
        return Sequence(self, made.value)

    def step(self, chunks, policy=None, tolerance=0.0):
        """A Step of `chunks`, pairs of a Sequence and how many tokens it gets; of one Sequence alone, one token. With `policy`, a CERTKV_POLICY number,
        or `tolerance` it has a policy of its own: the certified one within so much of the output's norm, unless `policy` is another."""
        if isinstance(chunks, Sequence):
            chunks = [(chunks, 1)]
        return Step(self, list(chunks), policy, tolerance)

    def moves(self, start=0, most=256):
        """Blocks that have moved, from number `start` on or from the oldest that is left, `most` of them: an array of certkv_move_event, and the
        certkv_events_read that says how many are lost and where to go on. Any thread, also while a step is open."""
        told, read = (_abi.certkv_move_event * most)(), _abi.certkv_events_read(struct_size=ctypes.sizeof(_abi.certkv_events_read))
        self.library.call("certkv_cache_moves", self.handle(), start, told, most, ctypes.byref(read))
        return told[: read.read], read

    def scrub(self, pages, originals=False, most=16):
        """Compares at least so many pages with their seals, and mends those that are not what was sealed: a certkv_scrubbed, and up to `most` certkv_damage that
        could not be mended. With `originals` these are compared too. On the host."""
        damages, done = (_abi.certkv_damage * most)(), _abi.certkv_scrubbed(struct_size=ctypes.sizeof(_abi.certkv_scrubbed))
        self.library.call("certkv_cache_scrub", self.handle(), pages, int(originals), damages, most, ctypes.byref(done))
        return done, damages[: min(done.damaged, most)]

    def residue(self):
        """Bytes that are not zero in memory that nobody holds: 0 with `erase=1`, but for what is still read."""
        left = _u64()
        self.library.call("certkv_cache_residue", self.handle(), ctypes.byref(left))
        return left.value

    def memory(self):
        """certkv_memory: what is held and reserved, in bytes."""
        memory = _abi.certkv_memory(struct_size=ctypes.sizeof(_abi.certkv_memory))
        self.library.call("certkv_cache_memory", self.handle(), ctypes.byref(memory))
        return memory


def _scope(model):
    """A certkv_save_scope without a key, and the bytes that it borrows."""
    name = model.encode() if isinstance(model, str) else bytes(model)
    kept = ctypes.create_string_buffer(name, len(name) + 1)
    scope = _abi.certkv_save_scope(struct_size=ctypes.sizeof(_abi.certkv_save_scope))
    scope.model, scope.model_bytes = ctypes.cast(kept, ctypes.c_void_p), len(name)
    return scope, kept


class Sequence(_Owned):
    """A sequence of a cache; made by Cache.sequence, Cache.restore and fork. It keeps its cache."""

    def __init__(self, cache, number):
        self.cache, self._number = cache, number

        def release():
            # Gone with its cache otherwise.
            if not cache.closed:
                cache.library.call("certkv_sequence_release", cache.handle(), number)

        super().__init__(release)

    def number(self):
        """Its certkv_sequence."""
        if self.closed:
            raise ValueError("the sequence is closed")
        return self._number

    def _call(self, name, *arguments):
        self.cache.library.call(name, self.cache.handle(), self.number(), *arguments)

    def _told(self, name, *arguments):
        told = _u64()
        self._call(name, *arguments, ctypes.byref(told))
        return told.value

    def __len__(self):
        return self._told("certkv_sequence_length")

    def fork(self):
        """A Sequence with the same tokens; full blocks are shared."""
        return Sequence(self.cache, self._told("certkv_sequence_fork"))

    def truncate(self, length):
        """Keeps the first `length` tokens."""
        self._call("certkv_sequence_truncate", length)

    def swap_out(self):
        """Moves its codes to host memory, for others to use their room; the bytes moved."""
        return self._told("certkv_sequence_swap_out")

    def swap_in(self):
        """Brings them back; the bytes moved."""
        return self._told("certkv_sequence_swap_in")

    def prefetch(self):
        """Brings originals that its next step is expected to read back from the cache's store: a certkv_prefetched."""
        done = _abi.certkv_prefetched(struct_size=ctypes.sizeof(_abi.certkv_prefetched))
        self._call("certkv_sequence_prefetch", ctypes.byref(done))
        return done

    def level(self, layer, block):
        """Which of the cache's levels a full block has in one layer."""
        told = ctypes.c_uint32()
        self._call("certkv_sequence_level", layer, block, ctypes.byref(told))
        return told.value

    def change_level(self, layer, block, level):
        """Codes a full block of one layer anew, at another of the cache's levels."""
        self._call("certkv_sequence_change_level", layer, block, level)

    def head_level(self, layer, kv_head, block):
        """Which of the cache's levels one KV head of a full block has, in a cache with `levels_by_head`."""
        told = ctypes.c_uint32()
        self._call("certkv_sequence_head_level", layer, kv_head, block, ctypes.byref(told))
        return told.value

    def change_head_level(self, layer, kv_head, block, level):
        """Codes one KV head of a full block of one layer anew, at another of the cache's levels, in a cache with `levels_by_head`."""
        self._call("certkv_sequence_change_head_level", layer, kv_head, block, level)

    def set_levels(self, levels):
        """Gives full blocks other levels, all at once, as `plan_levels` returns them: a list for each layer, or KV head of one with `levels_by_head`, all of the same
        length. certkv_controlled says how many changed, and how many could not."""
        lists = [list(of) for of in levels]
        if len({len(of) for of in lists}) > 1:
            raise ValueError("levels: lists of different lengths")
        flat = [level for of in lists for level in of]
        done = _abi.certkv_controlled(struct_size=ctypes.sizeof(_abi.certkv_controlled))
        self._call("certkv_sequence_set_levels", (ctypes.c_uint32 * len(flat))(*flat), len(flat), ctypes.byref(done))
        return done

    def plan_levels(self, epsilon, bytes=None):
        """The fewest bytes, at most `bytes` in all layers together, at which every bound of the last step would be at most `epsilon` of its output: a
        certkv_level_plan, and the level of each block by layer, or by layer and KV head with `levels_by_head`, in one list. Nothing moves."""
        plan = _abi.certkv_level_plan(struct_size=ctypes.sizeof(_abi.certkv_level_plan))
        least = 2**64 - 1 if bytes is None else bytes
        layers = self.cache.layers * (self.cache.kv_heads if self.cache.levels_by_head else 1)
        # No block has fewer than 16 tokens.
        levels = (ctypes.c_uint32 * (layers * (len(self) // 16) + 1))()
        self._call("certkv_sequence_plan_levels", epsilon, least, levels, len(levels), ctypes.byref(plan))
        return plan, [list(levels[layer * plan.blocks : (layer + 1) * plan.blocks]) for layer in range(layers)]

    def control(self, log=None):
        """Lets the cache's `control`, `retention` or `bound_budget` change levels, between steps: certkv_controlled says what it did. `log(entry)` is
        told of each layer: a certkv_control_entry, which is borrowed. What it raises, this does, when the levels are changed."""
        done = _abi.certkv_controlled(struct_size=ctypes.sizeof(_abi.certkv_controlled))
        if log is None:
            self._call("certkv_sequence_control", ctypes.byref(done))
            return done
        raised = []

        def told(_, entry):
            try:
                if not raised:
                    log(entry.contents)
            except BaseException as error:  # No exception passes through C.
                raised.append(error)

        self._call("certkv_sequence_control_logged", _abi.certkv_control_log_callback(told), None, ctypes.byref(done))
        if raised:
            raise raised[0]
        return done

    def save(self, path, model):
        """Writes it to a file that Cache.restore reads for the same `model`; the bytes written."""
        scope = _scope(model)
        return self._told("certkv_sequence_save", ctypes.byref(scope[0]), os.fsencode(path))


class Step(_Owned):
    """A step in progress; one thread at a time. The end of its `with` block finishes it, an exception in it drops it without a trace.

    Calls with host memory return when they are done. Those with device memory are enqueued on the cache's stream: after_stream(mine) before them
    makes it wait for the caller's, before_stream(mine) behind them the other way round, and buffers stay until then.
    """

    def __init__(self, cache, chunks, policy=None, tolerance=0.0):
        handle, self.cache = ctypes.c_void_p(), cache
        if any(sequence.cache is not cache for sequence, _ in chunks):
            raise ValueError("a sequence is another cache's")
        batch = (_abi.certkv_chunk * len(chunks))(*((sequence.number(), tokens) for sequence, tokens in chunks))
        if policy is None and tolerance == 0.0:
            cache.library.call("certkv_step_begin", cache.handle(), batch, len(chunks), ctypes.byref(handle))
        else:
            own = _abi.certkv_step_options(ctypes.sizeof(_abi.certkv_step_options), policy or _abi.CERTKV_POLICY_CERTIFIED, tolerance)
            cache.library.call("certkv_step_begin_with", cache.handle(), batch, len(chunks), ctypes.byref(own), ctypes.byref(handle))
        # Sequences stay at least as long as the step that they are busy with.
        self._handle, self._chunks, self._tokens = handle, chunks, sum(tokens for _, tokens in chunks)
        self._heads = self._tokens * cache.q_heads

        def abort():
            # A step keeps the memory of its cache, closed or not.
            try:
                cache.library.call("certkv_step_abort", handle)
            except Error as error:
                # Over already: some failures of finish() end it.
                if error.status != _abi.CERTKV_INVALID_HANDLE:
                    raise

        super().__init__(abort)

    def handle(self):
        """The certkv_step pointer, for calls that have no method here."""
        self.cache.handle()
        if self.closed:
            raise ValueError("the step is over")
        return self._handle

    def _call(self, name, *arguments):
        self.cache.library.call(name, self.handle(), *arguments)

    def __exit__(self, kind, error, trace):
        try:
            if kind is None and not self.closed:
                self.finish()
        finally:
            self.close()

    def append(self, layer, keys, values):
        """Keys (after RoPE) and values of the new tokens in one layer, (tokens, kv_heads, head_dim) of one type each."""
        k, v = take("keys", keys), take("values", values)
        alike(k, v, ("keys", "values"))
        self._call("certkv_step_append", layer, k.address, v.address, k.elements, number(k), k.space)

    def attend(self, layer, queries, out, certificates=True):
        """Attention of the new tokens over everything up to them: `queries` and `out` are (tokens, q_heads, head_dim), f32. Returns the certificates,
        an array of certkv_certificate by token and head, or None without them. With device memory they are waited for."""
        q, o = take("queries", queries), take("out", out, write=True)
        alike(q, o, ("queries", "out"))
        if q.dtype != "f32":
            raise TypeError(f"queries and out hold {q.dtype}, not f32")
        found = (_abi.certkv_certificate * self._heads)() if certificates else None
        f32 = ctypes.POINTER(ctypes.c_float)
        self._call("certkv_step_attend", layer, ctypes.cast(q.address, f32), ctypes.cast(o.address, f32), q.elements, found,
                   self._heads if certificates else 0, q.space)
        return found

    def append_tensors(self, layer, keys, values):
        """As append, from rows that need not follow each other: (tokens, kv_heads, head_dim) each, in any strides of tokens and heads, of types of
        their own. In device memory strides are multiples of 8 elements: slices of a fused projection, or heads outside tokens."""
        k, v = (self._tensor(*given, heads=self.cache.kv_heads) for given in (("keys", keys), ("values", values)))
        self._call("certkv_step_append_tensors", layer, ctypes.byref(k), ctypes.byref(v))

    def attend_tensors(self, layer, queries, out, certificates=True):
        """As attend, from and to rows that need not follow each other: (tokens, q_heads, head_dim) each, of any of the three types, in device memory as
        for append_tensors and apart. What rounding an output moves is in its bound."""
        q = self._tensor("queries", queries, heads=self.cache.q_heads)
        o = self._tensor("out", out, heads=self.cache.q_heads, write=True)
        found = (_abi.certkv_certificate * self._heads)() if certificates else None
        self._call("certkv_step_attend_tensors", layer, ctypes.byref(q), ctypes.byref(o), found, self._heads if certificates else 0)
        return found

    def _tensor(self, what, given, heads, write=False):
        return tensor(what, given, (self._tokens, heads, self.cache.head_dim), write)

    def set_tolerances(self, *tolerances):
        """Tolerances of the attend calls that follow: of all heads, or of each query head of a layer (on the host); none for the policy's again. Each
        is a share of the output's norm, or a pair of that and a distance."""
        pairs = [each if isinstance(each, tuple) else (each, 0.0) for each in tolerances]
        given = (_abi.certkv_tolerance * len(pairs))(*pairs)
        self._call("certkv_step_set_tolerances", given, len(pairs))

    def certificates(self, layer):
        """Those of a layer that was attended, later. Waits."""
        found = (_abi.certkv_certificate * self._heads)()
        self._call("certkv_step_certificates", layer, found, len(found))
        return found

    def plan(self, layer):
        """With `plan_apart`: chooses what the next step reads exactly in a layer that was attended, beside what is enqueued next. Else nothing."""
        self._call("certkv_step_plan", layer)

    def after_stream(self, stream):
        """The cache's stream waits for `stream` (an address, such as torch.cuda.current_stream().cuda_stream)."""
        self._call("certkv_step_after_stream", stream)

    def before_stream(self, stream):
        """`stream` waits for the cache's."""
        self._call("certkv_step_before_stream", stream)

    def publish(self, memory, size):
        """Certificates of the layers attended so far go to device memory, `size` bytes at the address `memory`: a certkv_published_memory, then a
        certkv_published_head for each layer, sequence and query head."""
        self._call("certkv_step_publish", ctypes.cast(memory, ctypes.POINTER(_abi.certkv_published_memory)), size)

    def finish(self):
        """Makes the new tokens part of their sequences. The step is over."""
        self._call("certkv_step_finish")
        self._end.detach()
