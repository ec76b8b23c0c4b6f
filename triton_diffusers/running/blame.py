# SPDX-License-Identifier: Apache-2.0
"""Why a call failed: by what its caller sent, or by itself; and what to send instead.

The caller's is what the pipeline raises over values that were sent, where a call without them is
known to work. What a model, a device or a package does wrong stays an error of the server.
"""

import re
import traceback
from pathlib import Path
from typing import Any

from triton_diffusers.calls.arguments import Call
from triton_diffusers.calls.sample import ADAPTER, NEEDED, first_that_works
from triton_diffusers.contract import BYTES_SUFFIX, MEDIA, SEED, STEPS, Kind
from triton_diffusers.errors import RequestError
from triton_diffusers.pipelines.denoisers import denoisers
from triton_diffusers.pipelines.failures import is_refusal
from triton_diffusers.pipelines.isolation import isolate, restored_on_failure
from triton_diffusers.pipelines.loaded import LoadedPipeline
from triton_diffusers.pipelines.packages import missing_package

LIBRARIES = {"diffusers", "transformers", "torch", "numpy", "PIL"}
OVER_VALUES = (
    *(ValueError, TypeError, IndexError, KeyError, ArithmeticError, AssertionError),
    *(UnboundLocalError, NotImplementedError),
)
"""What Python and libraries raise over values that they cannot work with."""
OF_THE_DEVICE = re.compile(
    r"CUDA|cuDNN|cuBLAS|CUBLAS|CUDNN|NCCL|HIP|device-side|launch|driver|scalar type|same dtype|"
    r"same device|worker|file|inductor|compile",
)
"""Words of torch's errors that no value of a caller causes."""


def explain(error: Exception, call: Call, loaded: LoadedPipeline, started: bool) -> Exception:
    """Turn the failure of a call into a RequestError where it is its caller's; else return it.

    started: whether the first step was done, after which no check of the inputs follows.
    """
    name = loaded.signature.pipeline_class
    text = " ".join(str(error).split()) or type(error).__name__
    if is_refusal(error, started):
        hint = _sizes_differ(call, loaded) if "size" in text else ""
        return RequestError(
            f"{name} refuses these inputs: {text}{hint or _left_out(error, call, loaded)}"
        )
    said = f"(it said: {type(error).__name__}: {text[:500]})"
    if package := missing_package(error):
        return RuntimeError(f"{type(error).__name__}: {text}; {package}")
    if "image_projection_layers" in text or "encoder_hid_proj" in text:
        return RequestError(f"{name} has no IP adapter loaded; leave 'ip_adapter_image' out {said}")
    if not _is_over_values(error, text):
        return error
    if not started:
        if hint := _sizes_differ(call, loaded):
            return RequestError(f"{name} cannot take these pictures together{hint} {said}")
        if (left := _no_step_left(call, loaded)) is not None:
            return RequestError(f"{name} cannot do {left} {said}")
        if hint := _counts_differ(call, loaded):
            return RequestError(f"{name} cannot take these counts together: {hint} {said}")
        if left_out := "NoneType" in text and _left_out(error, call, loaded):
            return RequestError(f"{name} cannot do without an input{left_out} {said}")
    own = _own_values(call, loaded)
    if not own or not _works_otherwise(loaded):
        return error
    nulls = [n for n, value in own.items() if value is None]
    if nulls and "NoneType" in text:
        listed = ", ".join(f"'{n}'" for n in nulls)
        return RequestError(f"{name} cannot work with null as {listed}; send a value {said}")
    listed = ", ".join(f"'{n}'{_told(value)}" for n, value in own.items())
    return RequestError(
        f"{name} cannot do this call, though others work: change or leave out one of {listed} "
        f"{said}"
    )


def _is_over_values(error: Exception, text: str) -> bool:
    """Tell whether an exception is of a kind that values of a call cause.

    Torch words wrong sizes as RuntimeError, and raises it where no line of Python says `raise`.
    """
    if isinstance(error, OVER_VALUES):
        return True
    if isinstance(error, AttributeError):
        return "'NoneType'" in text
    if not isinstance(error, RuntimeError) or OF_THE_DEVICE.search(text):
        return False
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    line = traceback.extract_tb(error.__traceback__)[-1].line or ""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package in LIBRARIES or not line.startswith("raise ")


def _own_values(call: Call, loaded: LoadedPipeline) -> dict[str, Any]:
    """Return what the caller sent besides texts, by name."""
    entry = loaded.call_kwargs
    return {
        p.name: call.kwargs[p.argument]
        for p in loaded.signature.parameters.values()
        if p.argument in call.kwargs and p.name != SEED.name
        if p.name not in entry or p.kind in MEDIA
        if p.kind is not Kind.TEXT or call.kwargs[p.argument] is None
    } | {
        name: call.kwargs[p.argument]
        for name, value in entry.items()
        if (p := loaded.signature.parameters[name]).kind in (Kind.INT, Kind.FLOAT, Kind.BOOL)
        if call.kwargs.get(p.argument) != value
    }


def _works_otherwise(loaded: LoadedPipeline) -> bool:
    """Tell whether a call of the pipeline is known to work; where none was made, make a small one.

    It is made once after a load, and what it leaves behind is put back.
    """
    import torch

    if not loaded.has_worked:
        fixed: dict[str, Any] = {}
        if loaded.signature.output_type is not None:
            fixed["output_type"] = loaded.signature.output_type

        def run(kwargs: dict[str, Any]) -> None:
            with restored_on_failure(loaded.processors):
                isolate(loaded.pipeline, lambda done, total: None)(**kwargs, **fixed)

        try:
            with torch.random.fork_rng(devices=[]):
                first_that_works(loaded.signature, loaded.call_kwargs, None, run)
            loaded.has_worked.append(True)
        except Exception:
            loaded.has_worked.append(False)
    return any(loaded.has_worked)


def _told(value: Any) -> str:
    is_number = isinstance(value, int | float) or value is None
    return f" ({'null' if value is None else value})" if is_number else ""


def _pictures(call: Call, loaded: LoadedPipeline) -> list[Any]:
    sent = (
        call.kwargs.get(p.argument) for p in loaded.signature.parameters.values() if p.kind in MEDIA
    )
    flat = [part for v in sent for part in (v if isinstance(v, list | tuple) else [v])]
    return [part for part in flat if isinstance(getattr(part, "size", None), tuple)]


def _sizes_differ(call: Call, loaded: LoadedPipeline) -> str:
    """Say what to send where pictures have several sizes and nothing says which one holds."""
    sizes = sorted({picture.size for picture in _pictures(call, loaded)})
    sides = [n for n in ("height", "width") if n in loaded.signature.parameters]
    missing = [n for n in sides if call.kwargs.get(n) is None]
    if len(sizes) < 2 or (sides and not missing):
        return ""
    told = " and ".join(f"{width}x{height}" for width, height in sizes[:4])
    instead = f"send {' and '.join(sides)}, or " if sides else "send "
    return f": they are {told} (width x height); {instead}pictures of one size"


def _counts_differ(call: Call, loaded: LoadedPipeline) -> str:
    """Say which inputs have a wrong number of elements, and which number is right."""
    prompts = call.counts.get("prompt", 1)
    nets = sum(name.startswith("controlnet.") for name in denoisers(loaded.pipeline))
    told = []
    for name, count in call.counts.items():
        is_media = loaded.signature.parameters[name].kind in MEDIA
        if name == "prompt" or count in ((nets,) if nets and is_media else (1, prompts)):
            continue
        right = f"one per controlnet ({nets})" if nets and is_media else "one, or one per prompt"
        told.append(f"'{name}' has {count}: send {right}")
    return f"'prompt' has {prompts}, {'; '.join(told)}" if told else ""


def _no_step_left(call: Call, loaded: LoadedPipeline) -> str | None:
    """Name the arguments where they leave no step to do: pipelines do strength x steps of them."""
    asked = {}
    for name in ("strength", STEPS):
        parameter = loaded.signature.parameters.get(name)
        if parameter is None:
            return None
        asked[name] = call.kwargs.get(parameter.argument, parameter.default)
    strength, steps = asked.values()
    if not isinstance(strength, int | float) or not isinstance(steps, int):
        return None
    if int(strength * steps) > 0:
        return None
    return f"'strength' {strength} of {steps} steps, which is less than one; send more of either"


def _left_out(error: Exception, call: Call, loaded: LoadedPipeline) -> str:
    """Name the media inputs that were not sent, where that may be why the pipeline failed.

    Those that calls mostly need come first; those of adapters, which are not loaded, never.
    """
    file = Path(traceback.extract_tb(error.__traceback__)[-1].filename).name
    media = [p for p in loaded.signature.parameters.values() if p.kind in MEDIA]
    names = [p.name for p in media if call.kwargs.get(p.argument) is None]
    names = [name for name in names if not ADAPTER.search(name)]
    names = [name for name in names if NEEDED.search(name)] or names
    if not names or (isinstance(error, ValueError) and not file.endswith("processor.py")):
        return ""
    return "; not sent: " + ", ".join(f"'{n}' (or '{n}{BYTES_SUFFIX}')" for n in names)
