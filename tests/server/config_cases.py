# SPDX-License-Identifier: Apache-2.0
"""Entries that must not load, and how each is spoiled."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

Spoil = Callable[[Path, Path], None]
"""(folder of the entry, folder of its model): make them wrong."""


@dataclass(frozen=True)
class ConfigCase:
    """An entry that does not load; `words` stand in its load error and in the server's log."""

    name: str
    spoil: Spoil
    words: tuple[str, ...]
    tiny: str = "stable-diffusion"
    options: tuple[str, ...] = ()
    """Of builder add-model."""
    served: bool = False
    """Also loaded by a real server; few that need the import of diffusers, which takes seconds."""


def _edit(change: Callable[[str], str]) -> Spoil:
    """Change the text of config.pbtxt."""

    def spoil(entry: Path, model: Path) -> None:
        file = entry / "config.pbtxt"
        text = file.read_text()
        changed = change(text)
        assert changed != text
        file.write_text(changed)

    return spoil


def _set(key: str, value: str) -> Spoil:
    """Add a parameter to config.pbtxt, or replace it."""
    line = f"parameters {{ key: {json.dumps(key)} value {{ string_value: {json.dumps(value)} }} }}"

    def change(text: str) -> str:
        kept = [part for part in text.splitlines() if f'key: "{key}"' not in part]
        return "\n".join([*kept, line, ""])

    return _edit(change)


def _without(*words: str) -> Spoil:
    """Remove the lines of config.pbtxt that hold a word."""
    return _edit(
        lambda text: "\n".join(
            line for line in text.splitlines() if not any(word in line for word in words)
        )
    )


def _index(**changes: object) -> Spoil:
    """Change model_index.json."""

    def spoil(entry: Path, model: Path) -> None:
        file = model / "model_index.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return spoil


def _write(name: str, content: bytes) -> Spoil:
    """Replace a file of the model."""
    return lambda entry, model: _replace(model / name, content)


def _replace(file: Path, content: bytes) -> None:
    assert file.exists()
    file.write_bytes(content)


def _cut(name: str) -> Spoil:
    """Leave the first half of a file of the model."""
    return lambda entry, model: _replace(
        model / name, (model / name).read_bytes()[: (model / name).stat().st_size // 2]
    )


def _delete(name: str) -> Spoil:
    def spoil(entry: Path, model: Path) -> None:
        path = model / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return spoil


def _case(name: str, spoil: Spoil, *words: str, **more: Any) -> ConfigCase:
    return ConfigCase(name, spoil, words, **more)


_served = partial(_case, served=True)
LOAD, CALL = "diffusers_load_kwargs", "diffusers_call_kwargs"
UNET = "unet/diffusion_pytorch_model.safetensors"
INPUT = "  { name: %s data_type: %s dims: [ 1 ] optional: true },\n"

CASES = (
    _served("no-model", _without('key: "model"'), "'model' is missing", "hub id or a folder"),
    _served("unknown-parameter", _set("dtipe", "float32"), "dtipe", "Did you mean 'dtype'"),
    _served("strange-parameter", _set("colour", "red"), "colour", "Accepted", "dtype"),
    _served("unknown-dtype", _set("dtype", "fp16"), "dtype", "fp16", "float16"),
    _served("empty-dtype", _set("dtype", ""), "dtype"),
    _served("number-as-text", _set("max_steps", "many"), "max_steps", "many", "integer"),
    _served("number-as-float", _set("max_queue", "1.5"), "max_queue", "integer"),
    _served("number-too-small", _set("max_queue", "0"), "max_queue", "below 1"),
    _served("number-nan", _set("max_audio_s", "nan"), "max_audio_s", "finite"),
    _served("bool-as-number", _set("vae_use_tiling", "1"), "vae_use_tiling", "'true'"),
    _served("call-kwargs-malformed", _set(CALL, "{height: 1}"), CALL, "malformed JSON"),
    _served("call-kwargs-list", _set(CALL, "[1]"), CALL, "JSON object"),
    _served("load-kwargs-malformed", _set(LOAD, '{"a": '), LOAD, "malformed JSON"),
    _served("load-kwargs-nan", _set(LOAD, '{"a": NaN}'), LOAD, "NaN"),
    _served("load-kwargs-twice", _set(LOAD, '{"a": 1, "a": 2}'), LOAD, "twice"),
    _served(
        "load-kwarg-unknown",
        _set(LOAD, '{"use_safetensor": true}'),
        LOAD,
        "use_safetensor",
        "Did you mean 'use_safetensors'",
    ),
    _case("load-kwarg-null", _set(LOAD, '{"unet": null}'), LOAD, "unet", "remove the null"),
    _case("load-kwarg-dtype", _set(LOAD, '{"dtype": "float17"}'), "float17", "float16"),
    _case(
        "load-kwarg-component",
        _set(LOAD, '{"scheduler": "ddim"}'),
        LOAD,
        "'scheduler' is a component",
        "save_pretrained",
    ),
    _case("variant-missing", _set("variant", "fp16"), "variant", "fp16"),
    _served("call-kwarg-reserved", _set(CALL, '{"generator": 7}'), CALL, "reserved", "seed"),
    _served("call-kwarg-callback", _set(CALL, '{"callback_on_step_end": 1}'), "reserved"),
    _case("call-kwarg-tensor", _set(CALL, '{"latents": [1]}'), CALL, "latents", "JSON"),
    _case("call-kwarg-type", _set(CALL, '{"height": "tall"}'), CALL, "height", "integer"),
    _case("call-kwarg-steps", _set(CALL, '{"num_inference_steps": 0}'), CALL, "at least 1"),
    _served("folder-missing", _set("model", "/no/such/folder"), "/no/such/folder", "folder"),
    _served("folder-relative-missing", _set("model", "./weights"), "./weights", "folder"),
    _served("hub-offline", _set("model", "nobody/nothing"), "nobody/nothing", "offline"),
    _case("device-unknown", _set("device", "gpu"), "device", "gpu", "cuda"),
    _case("device-missing", _set("device", "cuda:7"), "device", "cuda:7"),
    _case("generator-device", _set("generator_device", "gpu"), "generator_device", "gpu"),
    _served("no-index", _delete("model_index.json"), "no model_index.json"),
    _served("index-corrupt", _write("model_index.json", b"{"), "model_index.json", "read"),
    _served("index-list", _write("model_index.json", b"[]"), "model_index.json", "_class"),
    _served("index-without-class", _index(_class_name=None), "_class_name"),
    _case("class-of-index-unknown", _index(_class_name="OddPipeline"), "OddPipeline"),
    _case("component-class-unknown", _index(unet=["diffusers", "OddModel"]), "OddModel"),
    _case("component-library-missing", _index(unet=["no_such_package", "Odd"]), "no_such_package"),
    _case(
        "class-near-miss",
        _set("pipeline_class", "StableDifusionPipeline"),
        "StableDifusionPipeline",
        "Did you mean 'StableDiffusionPipeline'",
    ),
    _case("class-no-pipeline", _set("pipeline_class", "UNet2DModel"), "UNet2DModel", "no pipeline"),
    _case("class-of-other-components", _set("pipeline_class", "DDPMPipeline"), "DDPMPipeline"),
    _case("class-abstract", _set("pipeline_class", "DiffusionPipeline"), "cannot be called"),
    _case(
        "class-needs-package",
        _set("pipeline_class", "OnnxStableDiffusionPipeline"),
        "not installed: onnx",
        "pip install onnxruntime",
    ),
    _case("weights-missing", _delete(UNET), "does not load", "unet"),
    _served("weights-cut", _cut(UNET), "does not load", "unet"),
    _case("weights-no-safetensors", _write(UNET, b"PK" + bytes(99)), "load", "unet"),
    _case("config-missing", _delete("unet/config.json"), "does not load", "unet"),
    _case("component-missing", _delete("vae"), "does not load", "vae"),
    _case("tokenizer-cut", _cut("tokenizer/tokenizer.json"), "load", "tokenizer"),
    _case("boundary-ratio", _set("boundary_ratio", "0.9"), "boundary_ratio", "no effect", "wan"),
    _case("flow-shift", _set("flow_shift", "3"), "flow_shift", "no effect", "wan"),
    _case(
        "tiling-without-vae",
        _set("vae_use_tiling", "true"),
        "vae_use_tiling",
        "no effect",
        tiny="ddpm",
    ),
    _case(
        "slicing-without-vae",
        _set("vae_use_slicing", "true"),
        "vae_use_slicing",
        "no effect",
        tiny="ddpm",
    ),
    _served(
        "input-removed",
        _without('name: "eta"'),
        "does not fit",
        "lacks eta",
        "add-model",
        "--force",
    ),
    _case(
        "input-added",
        _edit(lambda text: text.replace("input [\n", "input [\n" + INPUT % ('"odd"', "TYPE_BOOL"))),
        "does not fit",
        "has odd",
        "add-model",
    ),
    _case(
        "input-of-another-type",
        _edit(lambda t: t.replace('"eta" data_type: TYPE_FP64', '"eta" data_type: TYPE_FP32')),
        "does not fit",
        "eta",
        "TYPE_FP32",
        "TYPE_FP64",
        "add-model",
    ),
    _case(
        "output-removed",
        _without('name: "nsfw_content_detected"'),
        "does not fit",
        "nsfw_content_detected",
        "add-model",
    ),
    _case(
        "written-for-another-version",
        lambda entry, model: (
            [
                s(entry, model)
                for s in (_set("diffusers_version", "0.31.0"), _without('name: "eta"'))
            ]
            and None
        ),
        "does not fit",
        "0.31.0",
        "installed",
        "add-model",
    ),
)
