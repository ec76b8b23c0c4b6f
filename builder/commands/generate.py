# SPDX-License-Identifier: Apache-2.0
"""`builder generate`: one request to a served model, its inputs taken from the command line."""

import argparse
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from builder.arguments import Parser, add_server
from builder.console import say, warn
from builder.tritonserver.installation import ServerError
from triton_diffusers.contract import (
    AUDIO_FORMATS,
    BYTES_SUFFIX,
    OUTPUT_FORMAT,
    OUTPUT_FORMATS,
    OUTPUT_QUALITY,
    PREVIEW_EVERY,
    TENSOR_FORMAT,
    VIDEO_FORMATS,
    Tensor,
)
from triton_diffusers.errors import ConfigError, unknown

SERVER_ENCODES = ("mp4", "flac")
"""Files that the helper cannot always write itself: the server is asked for them."""

OTHER_THAN_PICTURES = (*VIDEO_FORMATS, *AUDIO_FORMATS, "npy", "npz")


def add_to(parser: Parser) -> None:
    """Ask a served model for an image, video or sound and save it.

    builder generate demo --prompt "a handwritten seven" --seed 7 --output seven.png
    """
    parser.add_argument("name", metavar="NAME", help="a served model")
    parser.add_argument("--output", required=True, metavar="FILE", help="its suffix is the format")
    add_server(parser)
    parser.add_argument(
        "--timeout-s", type=float, default=None, metavar="S", help="give up after S"
    )
    parser.usage = (
        "builder generate NAME --prompt TEXT [--INPUT VALUE ...] --output FILE [options]\n\n"
        "Any other --INPUT VALUE is an input of the model: --num-inference-steps 20\n"
        "--image cat.png (a file). An option given several times sends several values.\n"
        "--preview-every 5 keeps a preview in FILE's name with -preview.jpg, where the entry was\n"
        "written with --decoupled."
    )


def run(args: argparse.Namespace) -> int:
    """Send one request, save what comes back, print the paths and the seed."""
    from triton_diffusers.client import (
        DiffusersClient,
        DiffusersClientError,
        ModelNotFound,
        ServerUnavailable,
    )

    output = check_output(Path(args.output))
    url = args.url or "localhost"  # the client knows the port of each protocol
    try:
        with DiffusersClient(url, model=args.name, protocol=args.protocol) as client:
            inputs = read_inputs(args.inputs, client.inputs(), args.name)
            check_suffix(output, list(client.outputs()), args.name)
            choose_format(inputs, output)
            on_preview = _preview_writer(output) if PREVIEW_EVERY.name in inputs else None
            result = client.generate(
                timeout_s=args.timeout_s, progress=True, on_preview=on_preview, **inputs
            )
            paths = result.save(output)
    except (ServerUnavailable, ModelNotFound) as error:
        text = str(error)
        hint = f"; serve it with: builder serve {args.name}"
        if any(words in text for words in ("could not load it", "seems to speak")):
            hint = ""
        elif "not healthy" in text:
            hint = "; builder serve loads a model again whose process has died: try again soon"
        raise ServerError(text.rstrip(".") + hint) from None
    except DiffusersClientError as error:
        raise ServerError(str(error)) from None
    for warning in result.info.get("warnings", []):
        warn(str(warning))
    say(f"seed {' '.join(map(str, result.seeds))}")
    for path in paths:
        say(str(path))
    return 0


def check_output(path: Path) -> Path:
    """Refuse a file that could not be written before the model has worked for it."""
    from PIL import Image

    accepted = {s.removeprefix(".") for s in Image.registered_extensions()}
    accepted |= {"gif", "mp4", "wav", "flac", "npy", "npz"}
    if path.suffix.lower().removeprefix(".") not in accepted:
        raise ConfigError(
            f"--output '{path}': give it a suffix such as .png, .jpg, .webp, .mp4, .gif, .wav, "
            ".flac or .npz"
        )
    if not path.parent.is_dir():
        raise ConfigError(f"--output '{path}': the folder '{path.parent}' does not exist")
    if path.is_dir():
        raise ConfigError(f"--output '{path}' is a folder: name a file")
    target = path if path.exists() else path.parent
    if not os.access(target, os.W_OK):
        raise ConfigError(f"--output '{path}': '{target}' cannot be written to")
    return path


def check_suffix(path: Path, outputs: Iterable[str], model: str) -> None:
    """Refuse a suffix that does not fit what the model makes. outputs: the names of its outputs."""
    from triton_diffusers.calls.outputs import formats_of

    formats = [*formats_of(tuple(outputs))[1:], "npy", "npz"]
    suffix = path.suffix.lower()[1:]
    # Pillow writes pictures in more formats than the server
    wanted = suffix if suffix in OTHER_THAN_PICTURES else "png"
    if wanted not in formats:
        raise ConfigError(
            f"--output '{path}': model '{model}' makes no .{suffix}; accepted: "
            + ", ".join(f".{name}" for name in formats)
        )


def choose_format(inputs: dict[str, Any], output: Path) -> None:
    """Ask the server for the format of the output's suffix where the server has to encode.

    Raises ConfigError where another format was asked for: it would be decoded and encoded anew.
    """
    suffix = output.suffix.lower()[1:]
    wanted = "jpeg" if suffix == "jpg" else suffix
    asked = inputs.get(OUTPUT_FORMAT.name, wanted)
    if asked not in (wanted, TENSOR_FORMAT) and wanted in OUTPUT_FORMATS:
        raise ConfigError(
            f"--output-format {asked} does not fit --output '{output}': leave it out, the suffix "
            f"is the format, or name the file .{asked}"
        )
    if wanted in SERVER_ENCODES or OUTPUT_QUALITY.name in inputs:
        inputs.setdefault(OUTPUT_FORMAT.name, wanted)


def read_inputs(words: list[str], accepted: Mapping[str, Tensor], model: str) -> dict[str, Any]:
    """Turn `--NAME=VALUE` words into inputs by the types that the model declares.

    Raises ConfigError for a name that the model has not, or a value of another type.
    """
    given: dict[str, list[Any]] = {}
    for word in words:
        name, _, text = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if name == PREVIEW_EVERY.name and name not in accepted:
            raise ConfigError(
                f"--preview-every: model '{model}' sends no previews; entries that make pictures "
                "or video do when they are written with: builder add-model MODEL --decoupled"
            )
        if name not in accepted:
            options = (n for n in accepted if not n.endswith(BYTES_SUFFIX))
            raise ConfigError(unknown("input", name, f"model '{model}'", options))
        is_media = name + BYTES_SUFFIX in accepted or name.endswith(BYTES_SUFFIX)
        value = _read_file(name, text) if is_media else _read_value(accepted[name], text)
        given.setdefault(name, []).append(value)
    return {name: values if len(values) > 1 else values[0] for name, values in given.items()}


def _read_file(name: str, text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_file():
        raise ConfigError(f"--{name}: file '{text}' does not exist")
    return path


def _read_value(tensor: Tensor, text: str) -> Any:
    try:
        return _READ.get(tensor.data_type, str)(text)
    except ValueError:
        raise ConfigError(
            f"--{tensor.name}: '{text}' is not {_WORDS.get(tensor.data_type, 'a value')}"
        ) from None


def _read_flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


_READ: dict[str, Callable[[str], Any]] = {
    "TYPE_INT64": int,
    "TYPE_FP64": float,
    "TYPE_BOOL": _read_flag,
}
_WORDS = {"TYPE_INT64": "a whole number", "TYPE_FP64": "a number", "TYPE_BOOL": "true or false"}


def _preview_writer(output: Path) -> Callable[[int, int, list[Any]], None]:
    """Return what writes the previews beside `output`: `name-preview.jpg`, over the one before."""

    def write(step: int, total: int, pictures: list[Any]) -> None:
        for number, picture in enumerate(pictures):
            index = f"-{number}" if len(pictures) > 1 else ""
            picture.save(output.with_name(f"{output.stem}-preview{index}.jpg"), quality=95)

    return write
