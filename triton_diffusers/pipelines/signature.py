# SPDX-License-Identifier: Apache-2.0
"""A pipeline class's `__call__` -> the typed inputs and outputs of its entry.

Nothing here knows a model: the annotation decides, then the default, then the name.
"""

import ast
import dataclasses
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from triton_diffusers import families
from triton_diffusers.contract import (
    AUDIO_FIELDS,
    AUDIOS,
    BYTES_SUFFIX,
    FPS,
    FRAMES,
    IMAGES,
    KNOWN_FIELDS,
    MEDIA,
    OWN_INPUTS,
    OWN_OUTPUTS,
    PICTURE_FIELDS,
    PREVIEW,
    PREVIEW_EVERY,
    PROGRESS,
    SAMPLING_RATE,
    SEED,
    VIDEO_FIELDS,
    WIRE,
    Kind,
    Tensor,
    is_reserved,
)
from triton_diffusers.errors import ConfigError
from triton_diffusers.pipelines import annotations
from triton_diffusers.pipelines.annotations import Shape

TENSOR_NAME = re.compile(r"(^|_)(latents|embeds|embeddings)(_|$)")
PROMPT_NAME = re.compile(r"(^|_)prompt(_\d)?$")
IMAGE_NAME = re.compile(r"(^|_)images?$|^image_reference$")
VIDEO_NAME = re.compile(r"(^|_)video(_|$)|^conditioning_frames$")
AUDIO_NAME = re.compile(r"(^|_)(audio|waveforms?)$")
PATH_NAME = re.compile(r"(^|_)(file|path|fonts|dir)$")

BOUND_SIZE = re.compile(
    r"calculate_dimensions\(|calculate_default_height_width\(|_resize_to_target_area|max_area"
)
OWN_SIZE = re.compile(
    r"\bheight\s*=\s*\(?\s*(height\s+or\s+)?(self\.(?!\w+\.get_|_default_height)|\d)"
)
SIZE_OF_PICTURE = re.compile(r"get_default_height_width\(|\bheight\s*=\s*\(?\s*h\b")
"""How pipelines choose the size that nobody asked for: near an area that they know, their own, or
that of the picture."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of `__call__`, as the wire sees it."""

    name: str
    kind: Kind
    required: bool = False
    default: Any = None
    always_list: bool = False
    """One element is passed as a list too: the annotation has no plain alternative."""
    as_tuple: bool = False
    as_tensor: bool = False
    """A media parameter annotated as a tensor only."""
    choices: tuple[str, ...] = ()
    enum: type | None = None
    nested_type: type | None = None
    """dict or list, where a JSON parameter can be nothing else."""
    file_mode: str = "RGB"
    """The mode that picture files are decoded to."""
    video_tensor: Callable[[str, list[Any]], Any] | None = None
    """How frames become a tensor, where the family differs from diffusers' usual [1,F,C,H,W]."""
    call_name: str = ""
    """The name in `__call__` where a family gives the parameter another name on the wire."""

    @property
    def argument(self) -> str:
        """The keyword of `__call__`."""
        return self.call_name or self.name


@dataclass(frozen=True)
class Signature:
    """What one pipeline class accepts and returns."""

    pipeline_class: str
    parameters: Mapping[str, Parameter]
    """By wire name, in the order of `__call__`; reserved ones are left out."""
    reserved: frozenset[str]
    output_fields: Mapping[str, Tensor]
    """By the field's name in the pipeline's output class."""
    output_type: str | None = None
    """What to ask for instead of the pipeline's default, where that is latents and no picture."""
    own_size: bool = False
    """Whether pictures are brought to a size that the pipeline chooses, where none is asked for."""
    upscale: int = 1
    """How many times higher and wider than its size, or its picture, an output is."""

    @property
    def on_wire(self) -> tuple[Parameter, ...]:
        """The parameters that have an input of their own."""
        return tuple(p for p in self.parameters.values() if p.kind in WIRE)

    @property
    def is_video(self) -> bool:
        """Whether the pipeline returns video."""
        return any(field in VIDEO_FIELDS for field in self.output_fields)

    @property
    def has_pictures(self) -> bool:
        """Whether the pipeline returns pictures or video, of which there can be previews."""
        return self.is_video or any(field in PICTURE_FIELDS for field in self.output_fields)

    @property
    def is_audio(self) -> bool:
        """Whether the pipeline returns sound."""
        return any(field in AUDIO_FIELDS for field in self.output_fields)

    @property
    def modality(self) -> str:
        """What goes in and comes out, such as text-to-image or image+text-to-video."""
        names = {Kind.IMAGE: "image", Kind.VIDEO: "video", Kind.AUDIO: "audio"}
        sources = [
            names[p.kind] for p in self.parameters.values() if p.kind in MEDIA and p.required
        ]
        optional = [p.name for p in self.parameters.values() if p.kind in MEDIA]
        sources += [n for n in ("image", "video") if n in optional and n not in sources]
        if any(PROMPT_NAME.search(n) for n in self.parameters):
            sources.append("text")
        target = "video" if self.is_video else "audio" if self.is_audio else "image"
        if not set(self.output_fields) & {"images", "image", *VIDEO_FIELDS, *AUDIO_FIELDS}:
            target = "+".join(self.output_fields)
        return f"{'+'.join(dict.fromkeys(sources)) or 'unconditional'}-to-{target}"


@functools.cache
def read_signature(cls: type) -> Signature:
    """Read a pipeline class. Raises ConfigError where the wire cannot carry what it requires."""
    call = inspect.unwrap(cls.__call__)
    raw = [p for p in inspect.signature(call).parameters.values() if p.name != "self"]
    raw = [p for p in raw if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    names = {p.name for p in raw}
    family = families.find(cls.__name__)
    parameters = {}
    for parameter in raw:
        if not is_reserved(parameter.name):
            read = _read_parameter(parameter, call, names)
            if family:
                read = dataclasses.replace(
                    read, file_mode=family.file_mode, video_tensor=family.video_tensor
                )
            parameters[parameter.name] = read
    for alias, target in (family.aliases if family else {}).items():
        if alias not in parameters and target in parameters:
            parameters[alias] = dataclasses.replace(
                parameters[target], name=alias, call_name=target, required=False
            )
    lost = [p.name for p in parameters.values() if p.required and p.kind is Kind.TENSOR]
    if lost:
        raise ConfigError(
            f"{cls.__name__} cannot be served: it requires {', '.join(map(repr, lost))}, tensors "
            "or objects that requests do not carry; choose a pipeline that computes them itself"
        )
    return Signature(
        pipeline_class=cls.__name__,
        parameters=parameters,
        reserved=frozenset(n for n in names if is_reserved(n)),
        output_fields=_output_fields(call),
        output_type=next(
            ("pil" for p in raw if p.name == "output_type" and p.default == "latent"), None
        ),
        own_size=_has_own_size(call),
        upscale=family.upscale if family else 1,
    )


def entry_inputs(signature: Signature, decoupled: bool = False) -> tuple[Tensor, ...]:
    """Return the inputs of an entry, as config.pbtxt lists them."""
    tensors = []
    for p in signature.on_wire:
        if p.name == SEED.name:
            continue  # ours stands for the pipeline's own
        data_type, dims = WIRE[p.kind]
        has_bytes = p.kind in MEDIA
        tensors.append(Tensor(p.name, data_type, dims, not p.required or has_bytes, _about(p)))
        if has_bytes:
            about = f"{p.name} as file content, base64 or data: URL"
            tensors.append(Tensor(p.name + BYTES_SUFFIX, "TYPE_STRING", (-1,), True, about))
    taken = {t.name for t in tensors}
    own = [*OWN_INPUTS]
    if signature.is_video:
        own.append(FPS)
    if decoupled and signature.has_pictures:
        own.append(PREVIEW_EVERY)
    return (*tensors, *(t for t in own if t.name not in taken))


def entry_outputs(signature: Signature, decoupled: bool = False) -> tuple[Tensor, ...]:
    """Return the outputs of an entry, as config.pbtxt lists them."""
    fields = list(signature.output_fields.values())
    if signature.is_audio and SAMPLING_RATE.name not in signature.output_fields:
        fields.append(SAMPLING_RATE)
    streamed = (PROGRESS, PREVIEW) if signature.has_pictures else (PROGRESS,)
    return (*fields, *OWN_OUTPUTS, *(streamed if decoupled else ()))


def _about(parameter: Parameter) -> str:
    if parameter.required:
        return "required"
    if parameter.call_name:
        return f"the pipeline's '{parameter.call_name}'"
    if parameter.choices:
        return "one of " + ", ".join(parameter.choices)
    text = repr(parameter.default)
    return f"default {text}" if parameter.default is not None and len(text) <= 60 else ""


def _read_parameter(raw: inspect.Parameter, call: Any, names: set[str]) -> Parameter:
    shape = annotations.read(raw.annotation, call.__globals__)
    required = raw.default is raw.empty
    default = None if required else raw.default
    kind = _kind(raw.name, shape, default, names)
    scalar_default = default is not None and not isinstance(default, list | tuple)
    return Parameter(
        name=raw.name,
        kind=kind,
        required=required,
        default=default,
        always_list=shape.only_list and not scalar_default,
        as_tuple=shape.is_tuple or isinstance(default, tuple),
        as_tensor=kind in MEDIA and not shape.has_image and shape.has_tensor,
        choices=shape.choices,
        enum=shape.enum,
        nested_type=shape.nested_type,
    )


def _kind(name: str, shape: Shape, default: Any, names: set[str]) -> Kind:
    if TENSOR_NAME.search(name) and not shape.scalars - {"str"}:
        return Kind.TENSOR
    if (
        PROMPT_NAME.search(name)
        and (shape.scalars == {"str"} or shape.is_empty)
        and not shape.nested
    ):
        return Kind.TEXT
    if name.endswith("_sampling_rate"):
        return Kind.INT
    if shape.has_image or (not shape.scalars and not shape.has_dict):
        media = _media_kind(name, shape, names)
        if media is not None:
            return media
    if PATH_NAME.search(name) and shape.scalars == {"str"}:
        return Kind.TENSOR  # a path on the server's disk is never taken from a request
    if shape.has_dict or shape.nested:
        return Kind.JSON
    if shape.scalars:
        return _scalar_kind(shape.scalars, shape.has_list, default)
    return Kind.TENSOR if shape.has_tensor or shape.has_object else _kind_of_default(default)


def _media_kind(name: str, shape: Shape, names: set[str]) -> Kind | None:
    of_video = name == "mask" and shape.only_list and "video" in names
    media_name = shape.has_tensor or shape.is_empty or shape.has_any
    if (shape.has_image or media_name) and (VIDEO_NAME.search(name) or of_video):
        return Kind.VIDEO
    if shape.has_image or (media_name and IMAGE_NAME.search(name)):
        return Kind.IMAGE
    return Kind.AUDIO if media_name and AUDIO_NAME.search(name) else None


def _scalar_kind(scalars: frozenset[str], has_list: bool, default: Any) -> Kind:
    if "str" in scalars:
        if scalars != {"str"}:
            return Kind.JSON
        return Kind.TEXT if has_list else Kind.STRING
    if "float" in scalars or isinstance(default, float):
        return Kind.FLOATS if has_list else Kind.FLOAT
    if "int" in scalars:
        return Kind.INTS if has_list else Kind.INT
    return Kind.BOOLS if has_list else Kind.BOOL


def _kind_of_default(default: Any) -> Kind:
    """Choose by the default of a parameter whose annotation says nothing."""
    values = default if isinstance(default, list | tuple) else (default,)
    names = frozenset(type(v).__name__ for v in values)
    if not names or not names <= annotations.SCALARS:
        return Kind.JSON
    return _scalar_kind(names, isinstance(default, list | tuple), default)


def _output_fields(call: Any) -> dict[str, Tensor]:
    """Return the fields of the output class that `__call__` returns, read from its source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(call)))
    except (OSError, TypeError, SyntaxError):
        return {IMAGES.name: IMAGES}
    fields: dict[str, Tensor] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            cls = _resolve(node.func, call.__globals__)
            if isinstance(cls, type) and _is_output_class(cls):
                fields |= {f.name: _output_tensor(f) for f in dataclasses.fields(cls)}
    if fields:
        return fields
    # combined pipelines return what their last part returned
    name = call.__qualname__.lower()
    tensor = AUDIOS if "audio" in name else FRAMES if "video" in name else IMAGES
    return {tensor.name: tensor}


def _has_own_size(call: Any) -> bool:
    """Tell from the source of `__call__` whether it falls back on a size of its own."""
    try:
        source = re.sub(r"#.*", "", inspect.getsource(call))
    except (OSError, TypeError):
        return False
    is_own = OWN_SIZE.search(source) and not SIZE_OF_PICTURE.search(source)
    return bool(is_own or BOUND_SIZE.search(source))


def _output_tensor(field: dataclasses.Field[Any]) -> Tensor:
    """Return the output of one field of an output class; numbers of any other field are FP32."""
    data_type = "TYPE_STRING" if "str" in str(field.type) else "TYPE_FP32"
    other = Tensor(field.name, data_type, (-1,), about="as the pipeline returns it")
    return KNOWN_FIELDS.get(field.name, other)


def _resolve(node: ast.expr, scope: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Attribute):
        return getattr(_resolve(node.value, scope), node.attr, None)
    return scope.get(node.id) if isinstance(node, ast.Name) else None


def _is_output_class(cls: type) -> bool:
    named = any(base.__name__ == "BaseOutput" for base in cls.__mro__)
    return named and dataclasses.is_dataclass(cls) and cls.__name__.endswith("Output")
