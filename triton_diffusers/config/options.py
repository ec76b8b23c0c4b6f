# SPDX-License-Identifier: Apache-2.0
"""`ServeConfig`: what an entry's config.pbtxt `parameters` say, read by declared type."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from triton_diffusers.config.text import check_value, read_option, write_option
from triton_diffusers.config.unsupported import refusal
from triton_diffusers.errors import ConfigError, unknown

DTYPES = ("auto", "bfloat16", "float16", "float32")
DTYPE_NAMES = {
    **{"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32"},
    **{"float": "float32", "torch.bfloat16": "bfloat16", "torch.float16": "float16"},
}
DEVICE = (r"(cpu|cuda|xpu|npu|mps)(:\d+)?", "cpu, cuda, cuda:N, xpu, npu or mps")
"""The form of a device's name, and that form in words."""
GROUPS = ("weights", "memory", "speed", "defaults of calls", "limits")
"""The headings under which options are listed."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What an option is to those who treat several alike. `limits` are the default group."""

    group: str = "limits"
    """Its heading; empty: nobody gives it, `builder` writes it."""
    argument: str = ""
    """"same": passed on to from_pretrained() under its own name; "ours": it is an argument of that
    name, too, which we translate."""
    of_file: bool = True
    """Whether a single file has a use for it."""
    tried: bool = False
    """Whether only a call can tell that it works."""
    moves_weights: bool = False
    """Whether it takes weights off the GPU, where some methods of quantization must stay."""
    inspected: bool = False
    """Whether it changes what `builder inspect` reads."""
    in_requests: bool = False
    """Whether comparable servers take it from a request; here it may only name what is loaded."""
    example: str = ""
    """Of one that takes JSON: what an error shows."""
    other_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What is typed elsewhere -> the choice that is meant."""
    paths: tuple[str, ...] | None = None
    """Where its value names files: the keys inside that do, none for the value itself."""


def _option(
    about: str,
    default: Any = None,
    choices: tuple[str, ...] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    form: tuple[str, str] | None = None,
    needs: str = "",
    fails: str = "",
    **traits: Any,
) -> Any:
    """Declare an option; `needs` and `fails` are for the docs: what it takes, how it shows.

    traits: those of `Traits` that it has.
    """
    return dataclasses.field(
        default=default,
        metadata={
            "about": about,
            "choices": choices,
            "minimum": minimum,
            "maximum": maximum,
            "form": form,
            "needs": needs,
            "fails": fails,
            "traits": Traits(**traits),
        },
    )


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """The load-time options of one entry. `None` means: not set, key left out of config.pbtxt."""

    model: str = _option(
        "Hub id or folder; a relative path is relative to the entry.",
        "",
        group="",
    )
    pipeline_class: str | None = _option(
        "The diffusers pipeline class; without it model_index.json names it.",
        group="weights",
        inspected=True,
    )
    diffusers_version: str | None = _option(
        "The diffusers that the entry was written for.",
        group="",
    )
    revision: str | None = _option(
        "Branch, tag or commit of a hub model.",
        group="weights",
        argument="same",
        of_file=False,
        inspected=True,
    )
    subfolder: str | None = _option(
        "Folder inside the model that holds the pipeline.",
        fails="not there: refused",
        group="weights",
        of_file=False,
        inspected=True,
    )
    variant: str | None = _option(
        "Weight file variant, such as fp16.",
        fails="no such files: refused, naming those there",
        group="weights",
        argument="same",
        of_file=False,
    )
    use_safetensors: bool | None = _option(
        "true: only safetensors files; false: only pickled ones; unset: safetensors where there.",
        fails="no such files: refused",
        group="weights",
        argument="same",
        of_file=False,
    )
    custom_pipeline: str | None = _option(
        "Folder or file with your own pipeline class, or a community pipeline of diffusers.",
        needs="trust_remote_code, unless it is a local path",
        fails="not trusted, no pipeline class in it, or several: refused",
        group="weights",
        argument="ours",
        of_file=False,
        paths=(),
    )
    trust_remote_code: bool = _option(
        "Let the model repository's own Python code run.",
        False,
        group="weights",
        argument="same",
        of_file=False,
    )
    dtype: str | dict[str, Any] = _option(
        "Type of the weights; auto: bfloat16 on a GPU, float32 on a CPU. Or one per component.",
        "auto",
        choices=DTYPES,
        fails="unknown component, or types that do not fit in a trial call: refused",
        group="weights",
        argument="ours",
        example='{"default": "bfloat16", "vae": "float32"}',
        other_names=DTYPE_NAMES,
    )
    device: str | None = _option(
        "Device such as cuda:1 or cpu; without it the instance's own.",
        form=DEVICE,
        group="memory",
    )
    generator_device: str = _option(
        "Where seeds are drawn; cpu gives the same picture on any hardware.",
        "cpu",
        form=DEVICE,
        group="defaults of calls",
        in_requests=True,
    )
    diffusers_load_kwargs: dict[str, Any] | None = _option(
        "JSON object: further arguments of from_pretrained().",
        group="weights",
        example='{"low_cpu_mem_usage": true}',
        paths=("config", "custom_pipeline"),
    )
    diffusers_call_kwargs: dict[str, Any] | None = _option(
        "JSON object: defaults for arguments of the pipeline's __call__; a request's inputs win.",
        group="defaults of calls",
        example='{"num_inference_steps": 20}',
    )
    boundary_ratio: float | None = _option(
        "Wan 2.2: where the second transformer takes over, 0 to 1.",
        minimum=0,
        maximum=1,
        fails="a model without transformer_2: refused",
        group="defaults of calls",
        argument="ours",
        tried=True,
        in_requests=True,
    )
    flow_shift: float | None = _option(
        "Wan: flow shift of the UniPC scheduler.",
        minimum=0.01,
        group="defaults of calls",
        tried=True,
        in_requests=True,
    )
    scheduler: str | dict[str, Any] | None = _option(
        'Scheduler class, or {"class": NAME, further config}: replaces the model\'s own.',
        fails="unknown class or config, a trial call fails: refused; not listed as fitting: warns",
        group="defaults of calls",
        tried=True,
        example='{"class": "UniPCMultistepScheduler", "flow_shift": 5.0}',
    )
    lora: str | list[Any] | dict[str, Any] | None = _option(
        "LoRA adapters: a path or hub id, or a list of {path, weight_name, scale, adapter_name}.",
        needs="the package peft",
        fails="not found, or changes no layer: refused",
        group="weights",
        tried=True,
        example='[{"path": "style.safetensors", "scale": 0.8}]',
        paths=("path",),
    )
    quantization_config: str | dict[str, Any] | None = _option(
        'Quantize while loading: a method such as int8, {"method": NAME}, or a diffusers config.',
        needs="the package torchao, and for some methods a GPU (below)",
        fails="unknown method, hardware that cannot, nothing quantized after loading: refused",
        group="weights",
        of_file=False,
        example='{"method": "int8"}',
    )
    attention_backend: str = _option(
        "Attention backend, or several separated by commas, tried in order; native: PyTorch's own.",
        "native",
        needs="what the backend needs (below)",
        fails="runs and agrees with native, or the next one is tried; none: attention_fallback",
        group="speed",
    )
    attention_fallback: str = _option(
        "What to do when no named backend works: use native, or refuse to load (error).",
        "native",
        choices=("native", "error"),
        fails="error with attention_backend native: refused",
        group="speed",
    )
    enable_cpu_offload: bool = _option(
        "Keep components in host memory, each on the GPU only while it runs.",
        False,
        needs="a GPU",
        fails="on a CPU, or with another placement: refused",
        group="memory",
        tried=True,
        moves_weights=True,
    )
    enable_layerwise_offload: bool = _option(
        "Keep layers in host memory, each on the GPU only while it runs; slow, least memory.",
        False,
        needs="a GPU",
        fails="on a CPU, with another placement, quantization or compilation: refused",
        group="memory",
        tried=True,
    )
    enable_group_offload: str | None = _option(
        "Keep groups of layers in host memory and fetch the next one while one runs.",
        choices=("block_level", "leaf_level"),
        needs="a GPU",
        fails="on a CPU, or with another placement: refused",
        group="memory",
        tried=True,
        moves_weights=True,
    )
    device_map: str | None = _option(
        "Spread components over the GPUs (balanced), or load straight onto one (cuda).",
        needs="a GPU",
        fails="on a CPU, with another placement, device or channels_last: refused",
        group="memory",
        argument="same",
        of_file=False,
        tried=True,
    )
    channels_last: bool = _option(
        "Memory format channels_last for unet and vae.",
        False,
        fails="no component of 2D convolutions: refused",
        group="speed",
        tried=True,
    )
    layerwise_casting: str | None = _option(
        "Store the denoiser's weights in 8 bits, and cast each layer while it runs.",
        choices=("float8_e4m3fn", "float8_e5m2"),
        fails="with quantization, or where no layer is cast: refused",
        group="memory",
        tried=True,
    )
    torch_compile: str = _option(
        "Compile the denoisers: their repeated blocks (regional), or whole (full).",
        "off",
        choices=("off", "regional", "full"),
        needs="a C++ compiler and Python's headers; Triton's kernels on a GPU",
        fails="no repeated blocks, or a call fails: refused",
        group="speed",
    )
    warmup: str | list[Any] | None = _option(
        "Calls before ready: default, none, 512x512,832x480x81 (x frames), or a list of arguments.",
        fails="a call fails: refused",
        group="speed",
        example='[{"width": 512, "height": 512}]',
    )
    vae_use_slicing: bool = _option(
        "Decode a batch one image at a time, to save memory.",
        False,
        fails="a vae that cannot: refused",
        group="memory",
    )
    vae_use_tiling: bool = _option(
        "Decode large images in tiles, to save memory.",
        False,
        fails="a vae that cannot: refused",
        group="memory",
    )
    cpu_threads: int | None = _option(
        "Torch threads of an instance; unset: torch's own number, shared by instances on a CPU.",
        minimum=1,
        group="speed",
    )
    request_batching: bool = _option(
        "Run requests that differ only in texts and seeds as one call; rounding may differ.",
        False,
        fails="with step_batching, or no prompt: refused; kinds that disagree run one by one",
        group="speed",
    )
    step_batching: bool = _option(
        "Run calls side by side and let their steps share forwards; rounding may differ.",
        False,
        fails="with offload, a call that changes the denoiser, or no denoiser: refused",
        group="speed",
    )
    max_in_flight: int = _option(
        "With step_batching: calls that run side by side.",
        8,
        minimum=1,
        fails="without step_batching: refused",
        group="speed",
    )
    max_batch: int = _option(
        "Most requests of one call (request_batching), or samples of a forward (step_batching).",
        16,
        minimum=1,
        fails="without either: refused",
        group="speed",
    )
    gpu_lock: str | None = _option(
        "Name of a lock: entries of the same name run one call at a time, in all processes.",
        form=(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "letters, digits, '.', '_' and '-'"),
        fails="with step_batching: refused; whoever waits can be cancelled, and its timeout holds",
        group="speed",
    )
    stuck_after_s: float = _option(
        "Seconds without a step after which a call counts as stuck and the model as not ready.",
        1800.0,
        minimum=1,
        fails="then requests get UNAVAILABLE until the model is loaded again",
        group="speed",
    )
    log_requests: bool = _option(
        "Write a line of JSON to the log for each request: outcome, seconds, sizes; no texts.",
        True,
        fails="not true or false: refused",
        group="defaults of calls",
    )
    max_queue: int = _option("Requests that may wait; further ones get UNAVAILABLE.", 64, minimum=1)
    max_steps: int = _option("Most num_inference_steps a request may ask for.", 1000, minimum=1)
    max_pixels: int = _option("Most width x height a request may ask for.", 4096 * 4096, minimum=1)
    max_frames: int = _option("Most frames a request may ask for.", 1024, minimum=1)
    max_outputs: int = _option("Most prompts x outputs per prompt of a request.", 64, minimum=1)
    max_work: int = _option(
        "Most steps x megapixels x frames x outputs of a request.", 20_000, minimum=1
    )
    max_prompt_chars: int = _option("Longest text of a request, in characters.", 20_000, minimum=1)
    max_input_pixels: int = _option("Most pixels of one input image.", 8192 * 8192, minimum=1)
    max_input_pixels_in_all: int = _option(
        "Most pixels of all images or frames of one input.", 2**29, minimum=1
    )
    max_audio_s: float = _option(
        "Longest sound a request may send or ask for, in seconds.", 600.0, minimum=0
    )
    max_input_bytes: int = _option("Largest input file, in bytes.", 256 * 2**20, minimum=1)

    def to_parameters(self) -> dict[str, str]:
        """Return the options that differ from their default as config.pbtxt text."""
        values = ((f, getattr(self, f.name)) for f in dataclasses.fields(self))
        return {f.name: write_option(value) for f, value in values if value != f.default}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> "ServeConfig":
        """Read config.pbtxt text. Raises ConfigError for an unknown key or a wrong value."""
        options = {f.name: f for f in dataclasses.fields(cls)}
        values = {}
        for key, text in parameters.items():
            if reason := refusal(key):
                raise ConfigError(f"parameter {reason}")
            if key not in options:
                raise ConfigError(unknown("parameter", key, "triton-diffusers", options))
            values[key] = read_option(options[key], text)
        config = cls(**values)
        if not config.model:
            raise ConfigError("parameter 'model' is missing: name a hub id or a folder")
        return config

    @property
    def is_quantized(self) -> bool:
        """Whether the entry asks for quantization: here, or as an argument of from_pretrained()."""
        native = (self.diffusers_load_kwargs or {}).get("quantization_config")
        return self.quantization_config is not None or native is not None

    def lifted(self) -> "ServeConfig":
        """Return the config with what `diffusers_load_kwargs` says of our own options moved there.

        So that both places mean the same, checks included. Raises ConfigError for a wrong value.
        """
        given = dict(self.diffusers_load_kwargs or {})
        if "dtype" in given and "torch_dtype" in given:
            raise ConfigError(
                "diffusers_load_kwargs: dtype and torch_dtype mean the same: give one"
            )
        if "torch_dtype" in given:
            given["dtype"] = given.pop("torch_dtype")
        fields = {f.name: f for f in dataclasses.fields(self)}
        moved = {}
        for name in [n for n in named("argument") if n in given]:
            value = given.pop(name)
            if name == "dtype" and isinstance(value, str):
                value = value.removeprefix("torch.")
            if value is None:
                value = fields[name].default
            else:
                try:
                    check_value(fields[name], value, repr(value))
                except ConfigError as error:
                    raise ConfigError(f"diffusers_load_kwargs: {error}") from None
            moved[name] = value
        return dataclasses.replace(self, diffusers_load_kwargs=given or None, **moved)

    def given_twice(self) -> list[str]:
        """Return a warning for each option that `diffusers_load_kwargs` sets to something else."""
        lifted = self.lifted()
        return [
            f"'{f.name}' is given twice: {getattr(lifted, f.name)!r} of diffusers_load_kwargs wins"
            for f in dataclasses.fields(self)
            if traits(f).argument
            if getattr(self, f.name) not in (f.default, getattr(lifted, f.name))
        ]


def options() -> tuple[dataclasses.Field[Any], ...]:
    """Return every load-time option; `metadata` is what `_option` took."""
    return dataclasses.fields(ServeConfig)


def traits(option: "dataclasses.Field[Any]") -> Traits:
    """Return what an option is to those who treat several alike."""
    found: Traits = option.metadata["traits"]
    return found


def named(trait: str, *values: Any) -> tuple[str, ...]:
    """Return the options that have a trait, or have one of these values of it, as declared."""
    found = ((f.name, getattr(traits(f), trait)) for f in options())
    return tuple(name for name, value in found if (value in values if values else bool(value)))
