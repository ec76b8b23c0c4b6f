# SPDX-License-Identifier: Apache-2.0
"""Try attention backends on a loaded pipeline's own denoisers, with the inputs it gives them.

diffusers accepts a backend that then fails at the first request ("no kernel image is available",
a mask that it does not take) or gives other pictures. So each is run here, and compared.
"""

import contextlib
import gc
import random
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from triton_diffusers.attention.backends import NATIVE, Tolerance
from triton_diffusers.attention.recorded import Inputs, capture_inputs, copied
from triton_diffusers.errors import one_line
from triton_diffusers.pipelines.notices import collected
from triton_diffusers.pipelines.signature import Signature

LONGEST_REASON = 300
MASK = "attn_mask"
"""What diffusers calls it, also where a backend says that it takes none."""


class Probe:
    """A pipeline's denoisers and their inputs, held for as long as backends are tried."""

    def __init__(
        self,
        pipeline: Any,
        denoisers: Mapping[str, Any],
        signature: Signature,
        call_kwargs: Mapping[str, Any],
        device: str,
    ) -> None:
        self._call = (pipeline, denoisers, signature, call_kwargs)
        self._denoisers = denoisers
        self._device = device
        self._inputs: dict[str, list[Inputs]] | None = None
        self._native: dict[str, list[tuple[Inputs, list[Any]]]] = {}
        self._why_not = ""
        self.with_masks_native: set[str] = set()
        """Denoisers whose backend takes no mask: attention with one is PyTorch's own there."""

    def __enter__(self) -> "Probe":
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of what was held, on the device too."""
        self._inputs, self._native = None, {}
        _free(self._device)

    def why_none(self, name: str) -> str | None:
        """Return why no backend can be tried on a denoiser, or None."""
        if not takes_backend(self._denoisers[name]):
            return _takes_none(self._denoisers[name])
        if self._captured().get(name):
            return None
        why = f" ({self._why_not})" if self._why_not else ""
        return (
            f"not tried: no made-up call reached {name}{why}; give what the model needs as "
            "diffusers_call_kwargs"
        )

    def try_backend(self, name: str, backend: str, tolerance: Tolerance) -> str | None:
        """Give a denoiser a backend if that runs and agrees with native attention.

        A backend that takes no mask serves the calls that pass none, where there are such.
        Returns None, or the reason why not; the denoiser then is as before.
        """
        with _registered(backend) as functions:
            functions.set(functions.own)
            reason = self._tried(name, backend, tolerance)
            if reason is None or MASK not in reason:
                return reason
            functions.set(functions.unmasked())
            if self._tried(name, backend, tolerance, unmasked=True) is not None:
                return reason
            functions.keep()
        self.with_masks_native.add(name)
        return None

    def _tried(
        self, name: str, backend: str, tolerance: Tolerance, unmasked: bool = False
    ) -> str | None:
        before = [(p, p._attention_backend) for p in _processors(self._denoisers[name])]
        try:
            with _no_trace(self._device), collected([]):
                reason = self._compare(name, backend, tolerance, unmasked)
        except Exception as error:
            reason = one_line(error)[:LONGEST_REASON].rstrip(".")
        if reason is not None:
            for processor, value in before:
                processor._attention_backend = value
        return reason

    def set_native(self, names: list[str]) -> None:
        """Give denoisers native attention, whatever the environment says."""
        for name in names:
            if takes_backend(self._denoisers[name]):
                with collected([]):
                    _set_backend(self._denoisers[name], NATIVE)

    def notes(self, name: str, backend: str) -> list[str]:
        """Say so where a backend serves only the smaller part of a denoiser's attention layers."""
        denoiser = self._denoisers[name]
        layers, taking = _attention_layers(denoiser), _processors(denoiser)
        if backend == NATIVE or 2 * len(taking) >= len(layers):
            return []
        return [
            f"attention backend '{backend}' serves {len(taking)} of the {len(layers)} attention "
            f"layers of {name}; the others take none"
        ]

    def _compare(self, name: str, backend: str, tolerance: Tolerance, unmasked: bool) -> str | None:
        """unmasked: it is enough that one of the calls has attention without a mask."""
        denoiser = self._denoisers[name]
        pairs = self._with_native(name)
        _set_backend(denoiser, backend)
        used = False
        for inputs, native in pairs:
            with _calls_seen(backend) as masked:
                outputs = _run(denoiser, inputs)
            if not masked:
                return "none of the attention layers used it"
            used = used or not unmasked or not all(masked)
            if reason := _difference(outputs, native, _allowed(denoiser, native, tolerance)):
                return reason
        return None if used else "all attention of this model has a mask"

    def _with_native(self, name: str) -> list[tuple[Inputs, list[Any]]]:
        """Return the inputs of a denoiser, each with what it gives for them with native attention.

        Where a pipeline cannot run its own two prompts, they count for nothing.
        """
        if name not in self._native:
            _set_backend(self._denoisers[name], NATIVE)
            first, *more = self._captured()[name]
            self._native[name] = [(first, _run(self._denoisers[name], first))]
            for inputs in more:
                with contextlib.suppress(Exception):
                    self._native[name].append((inputs, _run(self._denoisers[name], inputs)))
        return self._native[name]

    def _captured(self) -> dict[str, list[Inputs]]:
        if self._inputs is None:
            self._inputs = {}
            try:
                with _no_trace(self._device), collected([]), _default_is_native():
                    self._inputs = capture_inputs(*self._call)
            except Exception as error:
                self._why_not = one_line(error)[:LONGEST_REASON].rstrip(".")
        return self._inputs


def _attention_layers(denoiser: Any) -> list[Any]:
    from diffusers.models.attention import AttentionModuleMixin
    from diffusers.models.attention_processor import Attention, MochiAttention

    classes = (Attention, MochiAttention, AttentionModuleMixin)
    return [m for m in denoiser.modules() if isinstance(m, classes)]


def _processors(denoiser: Any) -> list[Any]:
    """Return the attention processors that take a backend; UNets' for instance take none."""
    found = [layer.processor for layer in _attention_layers(denoiser)]
    can_set = hasattr(denoiser, "set_attention_backend")
    return [p for p in found if can_set and hasattr(p, "_attention_backend")]


def takes_backend(denoiser: Any) -> bool:
    """Tell whether any attention layer of a denoiser takes another backend than PyTorch's own."""
    return bool(_processors(denoiser))


def _takes_none(denoiser: Any) -> str:
    names = sorted({type(layer.processor).__name__ for layer in _attention_layers(denoiser)})
    return (
        f"the attention layers of {type(denoiser).__name__} take no backend"
        f"{' (' + ', '.join(names) + ')' if names else ''}; they always use PyTorch's own"
    )


def _set_backend(denoiser: Any, backend: str) -> None:
    """Set a denoiser's backend, and only its: diffusers would change the process's default too."""
    with _default_is_native():
        denoiser.set_attention_backend(backend)


@contextlib.contextmanager
def _default_is_native() -> Iterator[None]:
    """Make native attention the process's default, and put back what it was."""
    from diffusers.models.attention_dispatch import AttentionBackendName
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry as Registry

    active, _ = Registry.get_active_backend()
    Registry.set_active_backend(AttentionBackendName.NATIVE)
    try:
        yield
    finally:
        Registry.set_active_backend(active)


class _Functions:
    """What diffusers calls for a backend. It chooses one for each layer, not for each call."""

    def __init__(self, backend: str) -> None:
        from diffusers.models.attention_dispatch import AttentionBackendName
        from diffusers.models.attention_dispatch import _AttentionBackendRegistry as Registry

        self._registry, self._name = Registry, AttentionBackendName(backend)
        self._native = AttentionBackendName(NATIVE)
        self.before = Registry._backends[self._name]
        self.own = getattr(self.before, "own", self.before)

    def set(self, function: Any) -> None:
        self._registry._backends[self._name] = function

    def keep(self) -> None:
        self.before = self._registry._backends[self._name]

    def unmasked(self) -> Any:
        """Return a function that leaves calls with a mask to native attention."""
        own, native = self.own, self._registry._backends[self._native]
        known = self._registry._supported_arg_names[self._native]

        def divided(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get(MASK) is None:
                return own(*args, **kwargs)
            return native(*args, **{n: value for n, value in kwargs.items() if n in known})

        divided.own = own  # type: ignore[attr-defined]
        return divided


@contextlib.contextmanager
def _registered(backend: str) -> Iterator[_Functions]:
    """Put back what a backend's function was, but for one that is kept."""
    functions = _Functions(backend)
    try:
        yield functions
    finally:
        functions.set(functions.before)


@contextlib.contextmanager
def _calls_seen(backend: str) -> Iterator[list[bool]]:
    """Collect, for every time that a backend's function is called, whether it got a mask."""
    from diffusers.models.attention_dispatch import AttentionBackendName
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry as Registry

    name = AttentionBackendName(backend)
    calls: list[bool] = []
    function = Registry._backends[name]

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(kwargs.get(MASK) is not None)
        return function(*args, **kwargs)

    Registry._backends[name] = counted
    try:
        yield calls
    finally:
        Registry._backends[name] = function


def _run(denoiser: Any, inputs: Inputs) -> list[Any]:
    """Return the tensors that a denoiser gives for a copy of the inputs."""
    import torch

    args, kwargs = copied(inputs)
    torch.manual_seed(0)
    with torch.no_grad():
        return _tensors(denoiser(*args, **kwargs))


def _tensors(tree: Any) -> list[Any]:
    import torch

    if isinstance(tree, torch.Tensor):
        return [tree]
    values = tree.values() if isinstance(tree, dict) else tree
    return [t for v in values for t in _tensors(v)] if isinstance(tree, dict | list | tuple) else []


def _allowed(denoiser: Any, native: list[Any], tolerance: Tolerance) -> float:
    """Return the tolerance for a denoiser; one that rounds its activations magnifies rounding."""
    import torch

    wide = all(t.dtype in (torch.float32, torch.float64) for t in native)
    is_quantized = getattr(denoiser, "hf_quantizer", None) is not None
    return tolerance.float32 if wide and not is_quantized else tolerance.half


def _difference(outputs: list[Any], native: list[Any], allowed: float) -> str | None:
    """Return how the outputs differ from those of native attention, or None where they agree."""
    import torch

    if not all(bool(torch.isfinite(t).all()) for t in native):
        return "not tried: native attention gives no finite values for a made-up call"
    if not all(bool(torch.isfinite(t).all()) for t in outputs):
        return "gives values that are not finite"
    pairs = [(a.cpu().double(), b.cpu().double()) for a, b in zip(outputs, native, strict=True)]
    size = sum(float(b.square().sum()) for _, b in pairs)
    error = sum(float((a - b).square().sum()) for a, b in pairs)
    relative = (error / size) ** 0.5 if size else float(error > 0)
    if relative <= allowed:
        return None
    return f"differs from native attention by {relative:.2g} (at most {allowed:g} is accepted)"


@contextlib.contextmanager
def _no_trace(device: str) -> Iterator[None]:
    """Put the random numbers back: torch's, numpy's and Python's; print no warnings."""
    import torch

    kind = device.partition(":")[0]
    devices = [] if kind in ("cpu", "mps") else [torch.device(device)]
    states = random.getstate(), np.random.get_state()
    try:
        with (
            torch.random.fork_rng(devices, device_type=kind if devices else "cuda"),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def _free(device: str) -> None:
    import torch

    gc.collect()
    backend: Any = getattr(torch, device.partition(":")[0], None)
    if hasattr(backend, "empty_cache"):
        backend.empty_cache()
