"""A CUDA device without one: tensors that say they are on "cuda:0", computed by the CPU, under the rules of a GPU.

Inside `SimulatedCuda()` torch has a CUDA device. What a real one refuses is refused: operands on different devices,
operands of different dtypes where its kernels want one, more memory than there is. What a real one leaves undefined is
refused too: a tensor that another stream may still be writing. Whatever makes the host wait is counted.

It shows that code is right about devices, dtypes, streams and memory. It shows nothing about speed or about kernels.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import re
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("cuda", 0)
GB = 1024**3

aten = torch.ops.aten

# Between devices a GPU copies; from the others of these a host learns values, for which it has to wait.
_COPIES = {"_to_copy", "copy_", "to", "clone", "_copy_from"}
_READS = {"_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "equal", "unique_dim", "_unique2"}
_NO_OPERATION = {"_has_compatible_shallow_copy_type"}
_HALF = (torch.float16, torch.bfloat16)
_PRODUCTS = {
    *("mm", "bmm", "addmm", "baddbmm", "matmul", "linear", "dot", "mv"),
    *("convolution", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    *("scaled_dot_product_attention", "_scaled_dot_product_attention_math"),
}
# Operations whose kernels for CUDA take floating-point operands of one dtype only.
_ONE_DTYPE = {
    *_PRODUCTS,
    *("native_layer_norm", "layer_norm", "native_group_norm", "group_norm", "native_batch_norm"),
    *("grid_sampler_2d", "lerp"),
}


class CudaTensor(Tensor):
    """A tensor on the simulated device. `inner` has its values, `stamp` the stream that wrote it and when."""

    inner: Tensor
    stamp: tuple[Stream, int]

    @staticmethod
    def __new__(cls, inner: Tensor) -> CudaTensor:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=DEVICE,
            requires_grad=False,
        )

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _current().dispatch(function, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl

    def record_stream(self, stream: Stream) -> None:
        """Only the allocator of a real device needs to know."""

    def tolist(self) -> Any:
        _current().note("tolist")
        return self.inner.tolist()

    def numpy(self, **options: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def __array__(self, dtype: Any = None) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def __repr__(self, **options: Any) -> str:
        return f"CudaTensor({self.inner!r})"


class Event:
    """A moment of a stream."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.moment: tuple[Stream, int] | None = None

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or _current().stream
        self.moment = (stream, _current().tick())

    def synchronize(self) -> None:
        _current().note("Event.synchronize")

    def wait(self, stream: Stream | None = None) -> None:
        (stream or _current().stream).wait_event(self)

    def query(self) -> bool:
        return True


class Stream:
    """A queue of work. `waited` tells up to when it has waited for others."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = DEVICE
        self.waited: dict[Stream, int] = {}

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        assert event.moment is not None, "an event that was never recorded"
        stream, moment = event.moment
        self.waited[stream] = max(self.waited.get(stream, 0), moment)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def synchronize(self) -> None:
        _current().note("Stream.synchronize")


class Generator(torch.Generator):
    """Random numbers; those of the device are the host's."""

    def __new__(cls, device: Any = "cpu") -> Generator:
        return super().__new__(cls, "cpu")

    def __init__(self, device: Any = "cpu") -> None:
        self.made_for = torch.device(device)

    @property
    def device(self) -> torch.device:
        return self.made_for


class SimulatedCuda(TorchDispatchMode):
    """The device, for the block and the thread in which it is entered.

    capacity: bytes of memory.
    reads: names of the operations for which the host waited, in order.
    """

    def __init__(self, capacity: int = 24 * GB) -> None:
        super().__init__()
        self.capacity = capacity
        self.used = 0
        self.peak = 0
        self.reads: list[str] = []
        self.stream = _default_stream
        self._blocks: dict[int, list[int]] = {}  # storage -> [bytes, tensors]
        self._patches = contextlib.ExitStack()

    # --- the block

    def __enter__(self) -> SimulatedCuda:
        global _simulation
        assert _simulation is None, "there is only one device"
        _simulation = self
        _install_device_guard()
        # `torch.tensor` makes its tensor on the host and moves it where a mode sees it; a module that is moved gets new
        # parameters, as another kind of tensor cannot be put into old ones.
        self._lifts = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        self._overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        for name, value in self._torch_cuda().items():
            self._patches.enter_context(mock.patch.object(torch.cuda, name, value))
        self._patches.enter_context(mock.patch.object(torch.version, "cuda", "simulated"))
        self._patches.enter_context(mock.patch.object(torch, "Generator", Generator))
        self._patches.enter_context(mock.patch.object(Tensor, "pin_memory", _pin_memory))
        self._patches.enter_context(mock.patch.object(Tensor, "is_pinned", _is_pinned))
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        global _simulation
        super().__exit__(*exception)
        self._patches.close()
        torch._C._set_only_lift_cpu_tensors(self._lifts)
        torch.__future__.set_overwrite_module_params_on_conversion(self._overwrites)
        _simulation = None

    def _torch_cuda(self) -> dict[str, Any]:
        """What there is in `torch.cuda`, for those who ask about the device."""

        @contextlib.contextmanager
        def stream_context(stream: Stream) -> Iterator[None]:
            before, self.stream = self.stream, stream
            try:
                yield
            finally:
                self.stream = before

        return {
            "_lazy_init": lambda: None,
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "set_device": lambda device: None,
            "get_device_capability": lambda device=None: (9, 0),
            "get_device_name": lambda device=None: "Simulated",
            "is_bf16_supported": lambda including_emulation=True: True,
            "mem_get_info": lambda device=None: (self.capacity - self.used, self.capacity),
            "memory_stats": lambda device=None: {
                "reserved_bytes.all.current": self.used,
                "active_bytes.all.current": self.used,
            },
            "memory_allocated": lambda device=None: self.used,
            "memory_reserved": lambda device=None: self.used,
            "max_memory_allocated": lambda device=None: self.peak,
            "reset_peak_memory_stats": self.reset_peak,
            "synchronize": lambda device=None: self.note("synchronize"),
            "empty_cache": lambda: None,
            "ipc_collect": lambda: None,
            "current_stream": lambda device=None: self.stream,
            "stream": stream_context,
            "Stream": Stream,
            "Event": Event,
        }

    def reset_peak(self, device: Any = None) -> None:
        """Measure the peak anew."""
        self.peak = self.used

    def note(self, name: str) -> None:
        """The host waits for the device."""
        self.reads.append(name)

    def tick(self) -> int:
        """The next moment."""
        return next(_clock)

    # --- operations

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.dispatch(function, args, kwargs or {})

    def dispatch(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Do one operation."""
        name = function.overloadpacket.__name__
        tensors = [t for t in _leaves((args, kwargs)) if isinstance(t, Tensor)]
        there = [t for t in tensors if isinstance(t, CudaTensor)]
        asked = kwargs.get("device")
        to_device = asked is not None and torch.device(asked).type == "cuda"
        if not there and not to_device and not (name in _COPIES and _names_cuda(args)):
            return function(*args, **kwargs)
        if name == "_fused_sdp_choice":
            return 0  # the plain one; the others have kernels of their own
        self._check(name, tensors, there, args)
        onto_host = name in _COPIES and self._leaves_device(name, args, kwargs)
        if name in _READS or onto_host or (name.startswith("index") and _has_mask(args)):
            self.note(name)
        try:
            result = _compute(name, function, _mapped(_inner, args), _mapped(_inner, kwargs))
        except RuntimeError as error:
            if "allocate memory" not in str(error):
                raise
            raise self._out_of_memory(int(re.search(r"allocate (\d+) bytes", str(error))[1])) from None
        if name in _COPIES and name != "copy_" and (onto_host or not there) and result is _inner(args[0]):
            result = result.clone()  # with one device there was nothing to copy
        return self._result(name, result, args, onto_host)

    def _leaves_device(self, name: str, args: Any, kwargs: dict[str, Any]) -> bool:
        if name == "copy_":
            return not isinstance(args[0], CudaTensor) and isinstance(args[1], CudaTensor)
        target = kwargs.get("device") or next((a for a in args[1:] if isinstance(a, torch.device)), None)
        return target is not None and torch.device(target).type == "cpu"

    def _check(self, name: str, tensors: list[Tensor], there: list[CudaTensor], args: Any) -> None:
        for tensor in there:
            stream, moment = tensor.stamp
            if stream is not self.stream and self.stream.waited.get(stream, 0) < moment:
                raise AssertionError(f"{name}: a tensor that another stream may still be writing")
        if name in _COPIES or name in _NO_OPERATION or not there:
            return
        loose = [t for t in tensors if not isinstance(t, CudaTensor) and t.ndim]
        if name.startswith("index"):
            loose = [t for t in loose if t is args[0] or t.dtype not in (torch.int64, torch.int32, torch.bool)]
        if loose:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and "
                f"{loose[0].device}! ({name})"
            )
        if name in _ONE_DTYPE:
            dtypes = {t.dtype for t in tensors if t.is_floating_point()}
            if len(dtypes) > 1:
                raise RuntimeError(f"expected operands of one dtype, found {sorted(map(str, dtypes))} ({name})")

    def _result(self, name: str, result: Any, args: Any, onto_host: bool) -> Any:
        if onto_host:
            return args[0] if name == "copy_" else result
        known = {id(_inner(t)): t for t in _leaves(args) if isinstance(t, CudaTensor)}

        def outer(value: Any) -> Any:
            if not isinstance(value, Tensor) or isinstance(value, CudaTensor):
                return value
            found = known.get(id(value))  # written in place
            return self._stamped(self.wrap(value) if found is None else found)

        if isinstance(result, Tensor) and result.device.type == "meta":
            return result
        return _mapped(outer, result)

    def _stamped(self, tensor: CudaTensor) -> CudaTensor:
        tensor.stamp = (self.stream, self.tick())
        return tensor

    def wrap(self, inner: Tensor) -> CudaTensor:
        """A tensor of the device with these values; takes memory unless it is a view."""
        storage = inner.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        block = self._blocks.get(key)
        if block is None:
            if self.used + size > self.capacity:
                raise self._out_of_memory(size)
            block = self._blocks[key] = [size, 0]
            self.used += size
            self.peak = max(self.peak, self.used)
        block[1] += 1
        with torch.inference_mode(inner.is_inference()):  # as it is with the values, so with the tensor
            tensor = CudaTensor(inner)
        weakref.finalize(tensor, self._gone, key, block, storage)
        return self._stamped(tensor)

    def _out_of_memory(self, size: int) -> torch.OutOfMemoryError:
        free = self.capacity - self.used
        return torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {size / 2**20:.2f} MiB. GPU 0 has a total capacity of "
            f"{self.capacity / 2**20:.2f} MiB of which {free / 2**20:.2f} MiB is free."
        )

    def _gone(self, key: int, block: list[int], storage: Any) -> None:
        block[1] -= 1
        if block[1] == 0 and self._blocks.get(key) is block:
            del self._blocks[key]
            self.used -= block[0]


_LIBRARY = Path(torch.__file__).parent / "lib" / "libc10.so"
_CUDA, _META = 1, 14  # of c10::DeviceType
_simulation: SimulatedCuda | None = None
# Of all simulations: what others keep of one, such as a table of frequencies, is there in the next.
_default_stream = Stream()
_clock = itertools.count(1)


def _current() -> SimulatedCuda:
    assert _simulation is not None, "a tensor of the simulated device has outlived it"
    return _simulation


def _leaves(tree: Any) -> list[Any]:
    found: list[Any] = []
    stack = [tree]
    while stack:
        value = stack.pop()
        if isinstance(value, list | tuple):
            stack.extend(value)
        elif isinstance(value, dict):
            stack.extend(value.values())
        else:
            found.append(value)
    return found


def _mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """A nest of lists, tuples and dicts with each leaf changed."""
    if isinstance(tree, list | tuple):
        return type(tree)([_mapped(change, item) for item in tree])
    if isinstance(tree, dict):
        return {key: _mapped(change, item) for key, item in tree.items()}
    return change(tree)


def _inner(value: Any) -> Any:
    """What the CPU is given instead."""
    if isinstance(value, CudaTensor):
        return value.inner
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == "cuda" else value


def _compute(name: str, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The operation on the CPU. Products of half precision are summed in float32 and rounded once, as a GPU's matrix
    units do; processors without units for a format take hundreds of times as long for the same."""
    half = next((t.dtype for t in _leaves(args) if isinstance(t, Tensor) and t.dtype in _HALF), None)
    if half is None or name not in _PRODUCTS or "out" in kwargs:
        return function(*args, **kwargs)

    def changed(from_: torch.dtype, to: torch.dtype) -> Callable[[Any], Any]:
        return lambda value: value.to(to) if isinstance(value, Tensor) and value.dtype == from_ else value

    wide = changed(half, torch.float32)
    return _mapped(changed(torch.float32, half), function(*_mapped(wide, args), **_mapped(wide, kwargs)))


def is_possible() -> bool:
    """Whether torch is a build that can be given a device: one for Linux."""
    return _LIBRARY.exists()


def _install_device_guard() -> None:
    """Let torch switch to a CUDA device, which builds without CUDA cannot: it does what is done for "meta", nothing."""
    guards = (ctypes.c_void_p * 32).in_dll(ctypes.CDLL(str(_LIBRARY)), "_ZN3c104impl26device_guard_impl_registryE")
    if guards[_CUDA] is None:
        guards[_CUDA] = guards[_META]


def _names_cuda(args: Any) -> bool:
    return any(isinstance(a, torch.device) and a.type == "cuda" for a in _leaves(args))


def _has_mask(args: Any) -> bool:
    return any(isinstance(t, Tensor) and t.dtype in (torch.bool, torch.uint8) for t in _leaves(args[1:2]))


def _pin_memory(tensor: Tensor, device: Any = None) -> Tensor:
    assert not isinstance(tensor, CudaTensor), "only memory of the host can be page-locked"
    pinned = tensor.clone()
    pinned.__dict__["pinned_by_simulation"] = True
    return pinned


def _is_pinned(tensor: Tensor, device: Any = None) -> bool:
    return "pinned_by_simulation" in tensor.__dict__
