# SPDX-License-Identifier: Apache-2.0
"""The tensors on the wire and every reserved name, in one place. No torch, no Triton.

The inputs that a pipeline accepts are derived from its `__call__` by
pipelines/signature.py; how each kind of parameter looks on the wire, and what every entry has
besides, stands here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any


class Kind(Enum):
    """What a parameter of `__call__` is to the wire."""

    TEXT = "text or list of texts"
    STRING = "one string"
    INT = "integer"
    FLOAT = "number"
    BOOL = "true or false"
    INTS = "integers"
    FLOATS = "numbers"
    BOOLS = "several true or false"
    IMAGE = "image(s)"
    VIDEO = "video"
    AUDIO = "audio"
    JSON = "JSON"
    """Dicts and nested lists: inside the `extra` input."""
    TENSOR = "tensor"
    """Latents, embeddings, objects: not on the wire."""


MEDIA = (Kind.IMAGE, Kind.VIDEO, Kind.AUDIO)

WIRE: dict[Kind, tuple[str, tuple[int, ...]]] = {
    Kind.TEXT: ("TYPE_STRING", (-1,)),
    Kind.STRING: ("TYPE_STRING", (1,)),
    Kind.INT: ("TYPE_INT64", (1,)),
    Kind.FLOAT: ("TYPE_FP64", (1,)),
    Kind.BOOL: ("TYPE_BOOL", (1,)),
    Kind.INTS: ("TYPE_INT64", (-1,)),
    Kind.FLOATS: ("TYPE_FP64", (-1,)),
    Kind.BOOLS: ("TYPE_BOOL", (-1,)),
    Kind.IMAGE: ("TYPE_UINT8", (-1, -1, -1, -1)),
    Kind.VIDEO: ("TYPE_UINT8", (-1, -1, -1, -1)),
    Kind.AUDIO: ("TYPE_FP32", (-1, -1)),
}
"""Kind -> (data type, dims). IMAGE is (N,H,W,C), VIDEO (F,H,W,C), AUDIO (channels, samples)."""

BYTES_SUFFIX = "_bytes"
"""A media parameter `x` has a second input `x_bytes`: file content, base64 or a data: URL."""


@dataclass(frozen=True)
class Tensor:
    """One input or output as config.pbtxt lists it."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool = True
    about: str = ""


SEED = Tensor("seed", "TYPE_INT64", (-1,), about="one for the call, or one per output; none: drawn")
DRAWN_SEEDS = 2**32
"""A seed that nobody sent is drawn below it."""
EXTRA = Tensor(
    "extra", "TYPE_STRING", (1,), about="JSON object: parameters with no input of their own"
)
OUTPUT_FORMAT = Tensor(
    "output_format", "TYPE_STRING", (1,), about="tensor, png, jpeg, webp, mp4, gif, wav or flac"
)
OUTPUT_QUALITY = Tensor("output_quality", "TYPE_INT64", (1,), about="1-100, for jpeg and webp")
OUTPUT_BASE64 = Tensor(
    "output_base64", "TYPE_BOOL", (1,), about="media as base64 text, for /generate"
)
PREVIEW_EVERY = Tensor(
    "preview_every", "TYPE_INT64", (1,), about="a preview with every so many steps' progress"
)
FPS = Tensor("fps", "TYPE_FP64", (1,), about="how fast the encoded video plays")
DEFAULT_FPS = 24.0
"""How fast it plays where neither the request nor the pipeline nor its family says."""

STEPS = "num_inference_steps"
FRAME_COUNTS = ("num_frames", "frames", "video_length")
"""What pipelines call their steps, and the length of a video: the usual name first."""

OWN_INPUTS = (SEED, EXTRA, OUTPUT_FORMAT, OUTPUT_QUALITY, OUTPUT_BASE64)
"""On every entry; FPS joins them on video entries whose pipeline has no `fps` of its own, and
PREVIEW_EVERY on decoupled entries that make pictures or video."""

IMAGES = Tensor(
    "images", "TYPE_UINT8", (-1, -1, -1, -1), about="(N, height, width, channels), 0-255"
)
FRAMES = Tensor(
    "frames",
    "TYPE_UINT8",
    (-1, -1, -1, -1, -1),
    about="(N, frames, height, width, channels), 0-255",
)
AUDIOS = Tensor("audios", "TYPE_FP32", (-1, -1, -1), about="(N, channels, samples)")
AUDIO = replace(
    AUDIOS, name="audio", about="(N, channels, samples), made with a video, whose MP4 holds it too"
)
SAMPLING_RATE = Tensor("sampling_rate", "TYPE_INT64", (1,), about="samples per second of the audio")
MEDIA_FILES = Tensor(
    "media", "TYPE_STRING", (-1,), about="encoded files, instead of the big tensor"
)
SEED_USED = Tensor(
    "seed", "TYPE_INT64", (-1,), about="the seed(s) used; send them again for the same result"
)
NSFW = Tensor(
    "nsfw_content_detected", "TYPE_BOOL", (-1,), about="the safety checker's flag per image"
)
INFO = Tensor(
    "info", "TYPE_STRING", (1,), about="JSON: model, versions, seconds per stage, warnings"
)
PROGRESS = Tensor(
    "progress", "TYPE_INT64", (2,), about="(step, total), in responses before the last"
)
PREVIEW = Tensor(
    "preview", "TYPE_STRING", (-1,), about="a JPEG per output (video: a frame), beside progress"
)

OWN_OUTPUTS = (MEDIA_FILES, SEED_USED, INFO)
"""On every entry; PROGRESS joins them on decoupled entries, and PREVIEW if they make pictures."""

KNOWN_FIELDS = {t.name: t for t in (IMAGES, FRAMES, AUDIOS, AUDIO, SAMPLING_RATE, NSFW)}
"""Fields of pipeline outputs that have a type of their own; every other field is FP32."""

PICTURE_FIELDS = ("images", "image", "rgb")
VIDEO_FIELDS = ("frames", "video", "videos")
AUDIO_FIELDS = ("audios", "audio", "sound")
"""What pipelines call the fields of their outputs that hold pictures, video and sound."""

IMAGE_FORMATS = ("png", "jpeg", "webp")
VIDEO_FORMATS = ("mp4", "gif")
AUDIO_FORMATS = ("wav", "flac")
TENSOR_FORMAT = "tensor"
OUTPUT_FORMATS = (TENSOR_FORMAT, *IMAGE_FORMATS, *VIDEO_FORMATS, *AUDIO_FORMATS)

QUEUE_PRIORITY = "queue_priority"
"""Request parameter: which waiting request runs first. Triton keeps `priority` to itself."""
PROBE = "probe"
"""Request parameter: true asks only how the model is; answered at once, as `info`."""

ADMIN_HEADER = "triton-diffusers-admin-key"
"""Header with the key that tritonserver's administrative calls need under `builder serve`."""


def is_decoupled(model_config: Mapping[str, Any]) -> bool:
    """Tell whether an entry's configuration, as JSON of Triton's, makes it answer streams only."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


RESERVED = {
    "generator": "send 'seed' instead",
    "output_type": "send 'output_format' instead",
    "return_dict": "every output is a tensor of its own",
}
"""Parameters of `__call__` that are ours to set, and what to do instead of sending them."""


def is_reserved(parameter: str) -> bool:
    """Tell whether a parameter of `__call__` is ours to set, or a callback."""
    return parameter in RESERVED or "callback" in parameter


def reserved_hint(parameter: str) -> str:
    """Say what to do instead of sending a reserved parameter."""
    return RESERVED.get(parameter, "callbacks cannot travel; progress and cancelling need none")


IMAGE_COUNTS = (
    "num_images_per_prompt",
    "num_videos_per_prompt",
    "num_waveforms_per_prompt",
)
"""The pipelines' own names for `n`."""
