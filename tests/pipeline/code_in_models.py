# SPDX-License-Identifier: Apache-2.0
"""Models that bring code along: what test_no_code_from_models.py tries, a row each."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

UNET, ENCODER = "unet/diffusion_pytorch_model", "text_encoder/model"
VAE = "vae/diffusion_pytorch_model"
REFUSED = ("is a pickle", "was not run", "use a version with safetensors files")
PICKLE = ("holds more than weights", *REFUSED)
DISGUISED = ("under the name of a safetensors file", *REFUSED)
OWN_CODE = ("trust_remote_code",)
LOADS = ()
NO_LOADER = ("cannot be loaded",)
NO_CLASS = ("pipeline class", "is not known to diffusers", "pipeline_class")


@dataclass(frozen=True)
class Place:
    """Where one attack is made: a model's folder, and the mark that its code would leave."""

    model: Path
    mark: Path

    @property
    def statement(self) -> str:
        return f"open({str(self.mark)!r}, 'w').close()"

    def edit(self, name: str, **changes: Any) -> None:
        """Change a JSON file of the model."""
        path = self.model / name
        there = json.loads(path.read_text()) if path.exists() else {}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(there | changes))

    def code(self, name: str, *classes: str) -> None:
        """Write a Python file that leaves the mark when it is imported."""
        path = self.model / name
        path.parent.mkdir(parents=True, exist_ok=True)
        bodies = "".join(f"class {c}(diffusers.DiffusionPipeline): ...\n" for c in classes)
        path.write_text(f"{self.statement}\nimport diffusers\n{bodies}")

    def weights(self, name: str) -> dict[str, Any]:
        """Take a safetensors file away; return what it held, and an object that leaves the mark."""
        from safetensors.torch import load_file

        path = self.model / f"{name}.safetensors"
        held = load_file(path)
        path.unlink()
        return {**held, "zz": Marks(self.statement)}


class Marks:
    """An object whose pickle runs a statement when it is loaded."""

    def __init__(self, statement: str) -> None:
        self.statement = statement

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (self.statement,)


Make = Callable[[Place], None]


@dataclass(frozen=True)
class Attack:
    """A way to bring code along. `words` are of the refusal; without any, the model loads."""

    name: str
    make: Make
    words: tuple[str, ...]
    parameters: dict[str, str] = field(default_factory=dict)
    """Of the entry; {model} stands for the folder."""


def component(library: str, name: str, component: str = "unet") -> Make:
    return lambda place: place.edit("model_index.json", **{component: [library, name]})


def named(value: Any, *files: str) -> Make:
    def make(place: Place) -> None:
        for file in files:
            place.code(file, "Evil", "StableDiffusionPipeline")
        place.edit("model_index.json", _class_name=value)

    return make


def both(*makes: Make) -> Make:
    def make(place: Place) -> None:
        for each in makes:
            each(place)

    return make


def code(name: str, *classes: str) -> Make:
    return lambda place: place.code(name, *classes)


def edit(name: str, **changes: Any) -> Make:
    return lambda place: place.edit(name, **changes)


def torch_pickle(name: str, to: str, **how: Any) -> Make:
    def make(place: Place) -> None:
        import torch

        torch.save(place.weights(name), place.model / to, **how)

    return make


def plain_pickle(name: str, to: str, protocol: int) -> Make:
    def make(place: Place) -> None:
        held = {n: v for n, v in place.weights(name).items() if n == "zz"}
        (place.model / to).write_bytes(pickle.dumps(held, protocol))

    return make


def shards(name: str, to: str) -> Make:
    """Two files and their index; the second is the pickle that runs a statement."""

    def make(place: Place) -> None:
        import torch

        held = place.weights(name)
        names = list(held)
        halves = names[: len(names) // 2], names[len(names) // 2 :]
        files = [f"{Path(to).name}-0000{n}-of-00002.bin" for n in (1, 2)]
        for half, file in zip(halves, files, strict=True):
            torch.save({n: held[n] for n in half}, place.model / Path(to).parent / file)
        where = {n: file for half, file in zip(halves, files, strict=True) for n in half}
        del where["zz"]
        place.edit(f"{to}.bin.index.json", metadata={"total_size": 1}, weight_map=where)

    return make


def weights_as_bin(name: str, to: str) -> Make:
    def make(place: Place) -> None:
        import torch

        torch.save({n: v for n, v in place.weights(name).items() if n != "zz"}, place.model / to)

    return make


def lone_pickle(to: str) -> Make:
    def make(place: Place) -> None:
        import torch

        torch.save({"state_dict": Marks(place.statement)}, place.model / to)

    return make


def adapter(place: Place) -> None:
    """A PEFT adapter in a component's folder, which transformers loads without being asked."""
    import torch

    there = {"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"]}
    place.edit("text_encoder/adapter_config.json", base_model_name_or_path="evil/base", **there)
    torch.save({"x": Marks(place.statement)}, place.model / "text_encoder/adapter_model.bin")


def processor(place: Place) -> None:
    """A processor, whose tokenizer transformers chooses by itself, and would ask whether to run."""
    folder = "feature_extractor"
    shutil.copytree(place.model / "tokenizer", place.model / folder)
    place.edit(f"{folder}/tokenizer_config.json", tokenizer_class="EvilTokenizer", **TOKENIZER)
    place.edit(f"{folder}/preprocessor_config.json", image_processor_type="CLIPImageProcessor")
    place.edit("model_index.json", **{folder: ["transformers", "CLIPProcessor"]})
    place.code(f"{folder}/evil.py", "Evil")


AUTO = {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"}
TOKENIZER = {"auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
SINGLE = {
    "model": "{model}/weights.ckpt",
    "pipeline_class": "StableDiffusionPipeline",
    "diffusers_load_kwargs": '{{"config": "{model}"}}',
}
OF_CLASS = {"pipeline_class": "StableDiffusionPipeline"}
ATTACKS = (
    Attack("os-system", component("os", "system"), ("'unet'",)),
    Attack("popen", component("subprocess", "Popen"), ("'unet'",)),
    Attack("exec", component("builtins", "exec"), ("'unet'",)),
    Attack("component-more", component("os", "system", "more"), LOADS),
    Attack("class-path", named("../evil", "../evil.py"), NO_CLASS),
    Attack("class-file", named("evil.py", "evil.py"), NO_CLASS),
    Attack("class-dotted", named("os.system"), NO_CLASS),
    Attack("class-dotted-file", named("evil.Evil", "evil.py"), NO_CLASS),
    Attack("class-own", named(["pipeline", "Evil"], "pipeline.py"), OWN_CODE),
    Attack("class-own-outside", named(["../evil", "Evil"], "../evil.py"), OWN_CODE),
    Attack(
        "class-own-named",
        named(["pipeline", "StableDiffusionPipeline"], "pipeline.py"),
        OWN_CODE,
        OF_CLASS,
    ),
    Attack("pipeline-beside", code("pipeline.py", "StableDiffusionPipeline"), LOADS),
    Attack("library-file", both(component("evil", "Evil"), code("evil.py", "Evil")), ("'unet'",)),
    Attack(
        "library-package",
        both(component("evil", "Evil"), code("evil/__init__.py", "Evil")),
        ("'unet'",),
    ),
    Attack(
        "library-of-component",
        both(component("evil", "Evil"), code("unet/evil.py", "Evil")),
        ("'unet'", *OWN_CODE),
    ),
    Attack(
        "pipeline-as-component",
        both(
            component("diffusers", "DiffusionPipeline"),
            edit("unet/model_index.json", _class_name=["evil", "Evil"]),
            code("unet/evil.py", "Evil"),
        ),
        ("'unet'", *OWN_CODE),
    ),
    Attack(
        "auto-map",
        both(edit("text_encoder/config.json", auto_map=AUTO), code("text_encoder/evil.py", "Evil")),
        LOADS,
    ),
    Attack(
        "auto-map-of-auto-model",
        both(
            component("transformers", "AutoModel", "text_encoder"),
            edit("text_encoder/config.json", auto_map=AUTO, model_type="evil"),
            code("text_encoder/evil.py", "Evil"),
        ),
        ("'text_encoder'", *NO_LOADER),
    ),
    Attack(
        "auto-map-of-diffusers",
        both(
            component("diffusers", "AutoModel"),
            edit("unet/config.json", auto_map=AUTO),
            code("unet/evil.py", "Evil"),
        ),
        ("'unet'", *NO_LOADER),
    ),
    Attack(
        "tokenizer-auto-map",
        both(edit("tokenizer/tokenizer_config.json", **TOKENIZER), code("tokenizer/evil.py")),
        LOADS,
    ),
    Attack(
        "tokenizer-auto-map-of-auto-tokenizer",
        both(
            component("transformers", "AutoTokenizer", "tokenizer"),
            edit("tokenizer/tokenizer_config.json", tokenizer_class="EvilTokenizer", **TOKENIZER),
            code("tokenizer/evil.py", "Evil"),
        ),
        ("'tokenizer'", *NO_LOADER),
    ),
    Attack(
        "processor-auto-map",
        processor,
        ("'feature_extractor'", "does not load"),
    ),
    Attack(
        "scheduler-class",
        both(
            edit("scheduler/scheduler_config.json", _class_name="evil.Evil"),
            code("scheduler/evil.py", "Evil"),
        ),
        LOADS,
    ),
    Attack(
        "scheduler-compatibles",
        both(
            edit("scheduler/scheduler_config.json", _class_name=["os", "system"]),
            component("diffusers", "SchedulerMixin", "scheduler"),
        ),
        ("'scheduler'",),
    ),
    Attack(
        "attention-kernel",
        edit("text_encoder/config.json", attn_implementation="evil/kernel"),
        ("'text_encoder'",),
    ),
    Attack("adapter-in-component", adapter, ("'text_encoder'", "adapter_model.safetensors")),
    *(
        Attack(f"pipeline-class-{n}", code("evil.py", "Evil"), words, {"pipeline_class": text})
        for n, (text, words) in enumerate(
            (
                ("{model}/evil.py", NO_CLASS),
                ("../evil", NO_CLASS),
                ("{model}/evil.Evil", NO_CLASS),
                ("os.system", NO_CLASS),
                ("builtins.exec", NO_CLASS),
                ("__builtins__", NO_CLASS),
                ("logging", ("'logging' of diffusers is no pipeline class",)),
            )
        )
    ),
    Attack("unet-pickle", torch_pickle(UNET, f"{UNET}.bin"), ("'unet'", "(exec)", *PICKLE)),
    Attack(
        "unet-old-pickle",
        torch_pickle(UNET, f"{UNET}.bin", _use_new_zipfile_serialization=False),
        ("'unet'", "(exec)", *PICKLE),
    ),
    *(
        Attack(f"unet-plain-{n}", plain_pickle(UNET, f"{UNET}.bin", n), ("'unet'", *PICKLE))
        for n in (0, 2, 4)
    ),
    Attack(
        "encoder-pickle",
        torch_pickle(ENCODER, "text_encoder/pytorch_model.bin"),
        ("'text_encoder'", "(exec)", *PICKLE),
    ),
    Attack(
        "encoder-plain-4",
        plain_pickle(ENCODER, "text_encoder/pytorch_model.bin", 4),
        ("'text_encoder'", *PICKLE),
    ),
    Attack(
        "unet-shards",
        both(
            shards(UNET, UNET),
            weights_as_bin(VAE, f"{VAE}.bin"),
            weights_as_bin(ENCODER, "text_encoder/pytorch_model.bin"),
        ),
        ("'unet'", "(exec)", "00002-of", *PICKLE),
        {"use_safetensors": "false"},
    ),
    Attack("unet-shards-unasked", shards(UNET, UNET), ("'unet'", "no file named")),
    Attack(
        "encoder-shards",
        shards(ENCODER, "text_encoder/pytorch_model"),
        ("'text_encoder'", "(exec)", "00002-of", *PICKLE),
    ),
    Attack("unet-disguised", torch_pickle(UNET, f"{UNET}.safetensors"), ("'unet'", *DISGUISED)),
    Attack(
        "encoder-disguised",
        plain_pickle(ENCODER, f"{ENCODER}.safetensors", 4),
        ("'text_encoder'", *DISGUISED),
    ),
    Attack("checkpoint", lone_pickle("weights.ckpt"), ("(exec)", *PICKLE), SINGLE),
    Attack(
        "lora",
        lone_pickle("lora.bin"),
        ("'lora'", "does not load", "(exec)", *PICKLE),
        {"lora": "{model}/lora.bin"},
    ),
)
