# SPDX-License-Identifier: Apache-2.0
"""What a pipeline's components tell of its sound."""

from typing import Any

COMPONENTS = ("vocoder", "vae", "audio_vae", "mel", "sound_tokenizer")
"""Those that know, the first that tells counts."""
RATES = ("output_sampling_rate", "sampling_rate", "sample_rate")


def sampling_rate(pipeline: Any) -> int | None:
    """Return the samples per second of a pipeline's sound; None where it does not tell."""
    if hasattr(type(pipeline), "sample_rate") or "sample_rate" in getattr(pipeline, "__dict__", ()):
        return int(pipeline.sample_rate)
    for name in COMPONENTS:
        component = getattr(pipeline, name, None)
        config = getattr(component, "config", None)
        for attribute in RATES:
            for holder in (config, component):
                rate = getattr(holder, attribute, None)
                if isinstance(rate, int | float) and rate > 0:
                    return int(rate)
    return None


def audio_channels(pipeline: Any) -> int | None:
    """Return how many channels the sound has that a pipeline takes; None where it does not tell."""
    for name in COMPONENTS:
        config = getattr(getattr(pipeline, name, None), "config", None)
        channels = getattr(config, "audio_channels", None)
        if isinstance(channels, int) and channels > 0:
            return channels
    return None
