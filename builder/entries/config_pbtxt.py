# SPDX-License-Identifier: Apache-2.0
"""An entry of the model repository as text: config.pbtxt and 1/model.py, written and read back.

protobuf's own text writer drops comments and `max_batch_size: 0`, so the text is rendered here and
protobuf, with Triton's own schema, reads it back.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from triton_diffusers.config.options import ServeConfig, options
from triton_diffusers.config.pbtxt import way_out
from triton_diffusers.contract import Tensor
from triton_diffusers.errors import ConfigError

MODEL_PY = '''\
# SPDX-License-Identifier: Apache-2.0
"""A diffusers pipeline on Triton; ../config.pbtxt says which one and how to load it.

TritonPythonModel is what Triton's Python backend runs:
  initialize  loads the pipeline that the `parameters` of config.pbtxt describe;
  execute     checks the requests, runs the pipeline and answers each with tensors;
  finalize    frees the memory when the model is unloaded.
"""

try:
    from triton_diffusers.serving import TritonPythonModel
except ImportError as error:
    raise ImportError(
        f"{error}. This model needs triton-diffusers[runtime] in the Python that tritonserver "
        "uses: pip install 'FOLDER[runtime]', with the folder of its checkout"
    ) from error

__all__ = ["TritonPythonModel"]
'''

OWN_ABOUT = {option.name: option.metadata["about"] for option in options()}


@dataclass(frozen=True)
class Entry:
    """All that config.pbtxt says."""

    name: str
    pipeline_class: str
    config: ServeConfig
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    instances: int = 1
    gpus: tuple[int, ...] = ()
    decoupled: bool = False


def render_config(entry: Entry) -> str:
    """Return the text of config.pbtxt."""
    return "\n".join(_lines(entry)) + "\n"


def parse_config(text: str, where: str = "config.pbtxt") -> Any:
    """Return Triton's ModelConfig message. Raises ConfigError with the line that is wrong."""
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    message = model_config_pb2.ModelConfig()
    try:
        return text_format.Parse(text, message)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        hint = _quotes_hint(text, error) or way_out(error)
        raise ConfigError(
            f"{where} is not a valid Triton model configuration: {error}{hint}"
        ) from None


def _quotes_hint(text: str, error: Exception) -> str:
    """Say how to quote JSON where a quote inside of it ended the string."""
    line = getattr(error, "GetLine", int)() or 0
    # where a bracket is open at the end, the line is behind the last one
    written = "".join(text.splitlines()[line - 1 : line]) if line else ""
    found = re.search(r'string_value\s*:\s*"(\s*[\[{].*[\]}]\s*)"', written)
    if not found or "\\" in found[1]:
        return ""
    return f"; put the value in single quotes: string_value: '{found[1]}'"


def read_tensors(messages: Iterable[Any]) -> tuple[Tensor, ...]:
    """Return the inputs or outputs of a parsed config.pbtxt."""
    from tritonclient.grpc import model_config_pb2

    name_of = model_config_pb2.DataType.Name
    return tuple(
        Tensor(m.name, name_of(m.data_type), tuple(m.dims), getattr(m, "optional", True))
        for m in messages
    )


def read_parameters(message: Any) -> dict[str, str]:
    """Return the parameters of a parsed config.pbtxt as text, by name: protobuf shuffles them."""
    return {key: value.string_value for key, value in sorted(message.parameters.items())}


def quote(text: str) -> str:
    """Return text as a string of protobuf's text format; JSON stays readable in single quotes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{text!a} is not valid UTF-8, which config.pbtxt needs") from None
    mark = "'" if '"' in text and "'" not in text else '"'
    return mark + "".join(_escape(char, mark) for char in text) + mark


def _escape(char: str, mark: str) -> str:
    if char in ("\\", mark):
        return "\\" + char
    if char == "\n":
        return "\\n"
    # three octal digits: a shorter escape would swallow a digit that follows
    return f"\\{ord(char):03o}" if ord(char) < 32 or ord(char) == 127 else char


def _lines(entry: Entry) -> Iterator[str]:
    yield f"# {entry.pipeline_class} of diffusers on Triton, written by builder add-model."
    yield f"# After an edit: builder check {entry.name}"
    yield ""
    yield f"name: {quote(entry.name)}"
    yield 'backend: "python"'
    yield "max_batch_size: 0  # tensors have no batch dimension; several prompts are one request"
    yield ""
    yield "# What a request may send. Leave an input out and the pipeline's own default applies."
    yield from _tensor_lines("input", entry.inputs, is_input=True)
    yield ""
    yield "# What a response may hold; `media` stands in for the tensor if output_format says so."
    yield from _tensor_lines("output", entry.outputs, is_input=False)
    yield ""
    yield from _instance_lines(entry)
    if entry.decoupled:
        yield ""
        yield "# Several responses to a request: progress first, the result last (gRPC streams)."
        yield "model_transaction_policy { decoupled: true }"
    yield ""
    yield "# How the pipeline is loaded and called."
    for key, value in entry.config.to_parameters().items():
        yield f"# {OWN_ABOUT[key]}"
        yield f"parameters {{ key: {quote(key)} value {{ string_value: {quote(value)} }} }}"


def _tensor_lines(block: str, tensors: tuple[Tensor, ...], is_input: bool) -> Iterator[str]:
    yield f"{block} ["
    for index, tensor in enumerate(tensors):
        dims = ", ".join(map(str, tensor.dims))
        optional = " optional: true" if is_input and tensor.optional else ""
        comma = "," if index < len(tensors) - 1 else ""
        about = f"  # {_one_line(tensor.about)}" if tensor.about else ""
        yield (
            f"  {{ name: {quote(tensor.name)} data_type: {tensor.data_type} "
            f"dims: [ {dims} ]{optional} }}{comma}{about}"
        )
    yield "]"


def _instance_lines(entry: Entry) -> Iterator[str]:
    config = entry.config.lifted()
    device = config.device
    if entry.gpus:
        yield "# Copies of the pipeline on each of these GPUs."
        kind = f"KIND_GPU gpus: [ {', '.join(map(str, entry.gpus))} ]"
    elif config.device_map is not None:
        yield "# One copy: the `device_map` below places its components."
        kind = "KIND_CPU" if config.device_map == "cpu" else "KIND_MODEL"
    elif device is None:
        yield "# Copies of the pipeline: on each GPU that the server sees, else on the CPU."
        kind = "KIND_AUTO"
    else:
        yield "# The pipeline goes to the `device` below, wherever Triton would place it."
        kind = "KIND_CPU" if device.startswith("cpu") else "KIND_MODEL"
    yield f"instance_group [ {{ count: {entry.instances} kind: {kind} }} ]"


def _one_line(text: str) -> str:
    return " ".join(text.split())
