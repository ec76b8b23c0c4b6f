# SPDX-License-Identifier: Apache-2.0
"""Sound that was sent -> the rate and the channels that the pipeline states."""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from triton_diffusers.errors import RequestError
from triton_diffusers.media.pixels import Array
from triton_diffusers.pipelines.signature import Parameter, Signature
from triton_diffusers.pipelines.sound import audio_channels, sampling_rate

MOST_PER_SECOND = 384_000
"""The highest rate that is resampled from: the filter grows with it."""


def rate_name(parameter: Parameter, signature: Signature) -> str | None:
    """Return the parameter that tells the sampling rate of another one, if there is one."""
    name = re.sub(r"_?waveforms?$", "", parameter.name) + "_sampling_rate"
    return name if name in signature.parameters else None


def fit_sound(
    parameter: Parameter,
    samples: Array,
    file_rate: int | None,
    sent: Mapping[str, Any],
    signature: Signature,
    pipeline: Any,
) -> dict[str, Any]:
    """Return the arguments that carry a sound: itself, and its rate where the pipeline asks.

    samples: float32 [channels, samples]. file_rate: as its file states it; of a tensor the request
    tells the rate, where the pipeline has a parameter for it, or it is the pipeline's own.
    sent: what the request holds so far. Raises RequestError for channels that do not fit.
    """
    told_by = rate_name(parameter, signature)
    told = sent.get(told_by) if told_by else None
    if told is not None and file_rate not in (None, told):
        raise RequestError(
            f"input '{told_by}': {told}, but the file of '{parameter.name}' states {file_rate}; "
            f"leave '{told_by}' out"
        )
    rate, wanted = file_rate or told, sampling_rate(pipeline)
    if rate and wanted and rate != wanted:
        samples, rate = _resampled(samples, rate, wanted, parameter.name), wanted
    samples = _with_channels(
        samples, 1 if parameter.as_array else audio_channels(pipeline), parameter.name
    )
    return {parameter.name: _as_taken(parameter, samples)} | (
        {told_by: rate} if told_by and rate else {}
    )


def _resampled(samples: Array, rate: int, wanted: int, name: str) -> Array:
    from scipy.signal import resample_poly

    if not 0 < rate <= MOST_PER_SECOND:
        raise RequestError(
            f"input '{name}': {rate} samples per second; send at most {MOST_PER_SECOND}, the "
            f"pipeline's own are {wanted}"
        )
    shared = math.gcd(rate, wanted)
    found: Array = resample_poly(samples, wanted // shared, rate // shared, axis=-1)
    return found.astype(np.float32)


def _with_channels(samples: Array, wanted: int | None, name: str) -> Array:
    """Repeat mono and mix stereo, as diffusers' StableAudioPipeline does."""
    channels = len(samples)
    if wanted in (None, channels):
        return samples
    if channels == 1:
        return np.repeat(samples, wanted, axis=0)
    if wanted == 1 and channels == 2:
        mixed: Array = samples.mean(axis=0, keepdims=True, dtype=np.float32)
        return mixed
    fitting = "1 or 2" if wanted <= 2 else f"1 or {wanted}"
    raise RequestError(f"input '{name}': {channels} channels; send {fitting}")


def _as_taken(parameter: Parameter, samples: Array) -> Any:
    import torch

    if parameter.as_array:
        return samples[0]
    sound = torch.from_numpy(np.array(samples, np.float32))
    # a plural name (initial_audio_waveforms) and a bare one (audio) take a batch, others one sound
    is_batch = parameter.name.endswith("waveforms") or parameter.name == "audio"
    return sound[None] if is_batch else sound
