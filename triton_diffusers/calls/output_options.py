# SPDX-License-Identifier: Apache-2.0
"""How the caller wants the result: the inputs `output_format`, `output_quality` and the like."""

from collections.abc import Mapping
from typing import Any

from triton_diffusers import families
from triton_diffusers.calls import values
from triton_diffusers.calls.outputs import OutputOptions, formats_of
from triton_diffusers.contract import (
    DEFAULT_FPS,
    FPS,
    OUTPUT_BASE64,
    OUTPUT_FORMAT,
    OUTPUT_QUALITY,
    PREVIEW_EVERY,
    TENSOR_FORMAT,
)
from triton_diffusers.errors import RequestError, unknown
from triton_diffusers.media.pixels import Array
from triton_diffusers.pipelines.loaded import LoadedPipeline


def read_output_options(
    inputs: Mapping[str, Array], kwargs: Mapping[str, Any], loaded: LoadedPipeline
) -> OutputOptions:
    """Read the inputs that say how to return the result. Raises RequestError."""
    file_format = _read_format(inputs, loaded)
    return OutputOptions(
        file_format=file_format,
        quality=_read_quality(inputs, file_format),
        as_base64=_read_base64(inputs, file_format),
        fps=read_fps(inputs, kwargs, loaded),
        made_for_fps=_own_rate(kwargs, loaded),
        preview_every=_read_preview_every(inputs),
    )


def _read_format(inputs: Mapping[str, Array], loaded: LoadedPipeline) -> str:
    name = OUTPUT_FORMAT.name
    if name not in inputs:
        return TENSOR_FORMAT
    text = str(values.single(values.texts(inputs[name], name, loaded.config), name))
    accepted = formats_of(tuple(loaded.signature.output_fields))
    if text not in accepted:
        where = f"{loaded.signature.pipeline_class} as {name}"
        raise RequestError(unknown("format", text, where, accepted))
    return text


def _read_quality(inputs: Mapping[str, Array], file_format: str) -> int | None:
    name = OUTPUT_QUALITY.name
    if name not in inputs:
        return None
    quality = int(values.single(values.numbers(inputs[name], name), name))
    if not 1 <= quality <= 100:
        raise RequestError(f"input '{name}': {quality}; send a number from 1 to 100")
    if file_format not in ("jpeg", "webp"):
        raise RequestError(f"input '{name}' has no effect without output_format jpeg or webp")
    return quality


def _read_base64(inputs: Mapping[str, Array], file_format: str) -> bool:
    name = OUTPUT_BASE64.name
    if name not in inputs:
        return False
    wanted = bool(values.single(values.numbers(inputs[name], name), name))
    if wanted and file_format == TENSOR_FORMAT and PREVIEW_EVERY.name not in inputs:
        raise RequestError(f"input '{name}' has no effect without an output_format such as png")
    return wanted


def _read_preview_every(inputs: Mapping[str, Array]) -> int | None:
    name = PREVIEW_EVERY.name
    if name not in inputs:
        return None
    every = int(values.single(values.numbers(inputs[name], name), name))
    if every < 1:
        raise RequestError(
            f"input '{name}': {every}; send 1 for a preview with every step, 5 for one with every "
            "fifth, or leave it out for none"
        )
    return every


def read_fps(
    inputs: Mapping[str, Array], kwargs: Mapping[str, Any], loaded: LoadedPipeline
) -> float:
    """Return how fast an encoded video plays: as sent, else as the pipeline or family has it."""
    if FPS.name in inputs and FPS.name not in loaded.signature.parameters:
        fps = values.single(values.numbers(inputs[FPS.name], FPS.name), FPS.name)
        if not 0.1 <= fps <= 1000:
            raise RequestError(f"input 'fps': {fps}; send a number from 0.1 to 1000")
        return float(fps)
    own = _own_rate(kwargs, loaded)
    if own is not None:
        return own
    family = families.find(loaded.signature.pipeline_class)
    return family.fps if family and family.fps else DEFAULT_FPS


def _own_rate(kwargs: Mapping[str, Any], loaded: LoadedPipeline) -> float | None:
    """Return how many frames a second the pipeline itself is told, if it is."""
    parameters = loaded.signature.parameters
    for name in (FPS.name, "frame_rate"):
        own = kwargs.get(name, parameters[name].default if name in parameters else None)
        if isinstance(own, int | float) and own > 0:
            return float(own)
    return None
