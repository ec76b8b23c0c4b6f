# SPDX-License-Identifier: Apache-2.0
"""The load-time options, a field each, in the order of config.pbtxt; families declare their own."""

from dataclasses import dataclass
from typing import Any

from triton_diffusers.families.option import option

DTYPES = ("auto", "bfloat16", "float16", "float32")
DTYPE_NAMES = {
    **{"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32"},
    **{"float": "float32", "torch.bfloat16": "bfloat16", "torch.float16": "float16"},
}
DEVICE = (r"(cpu|cuda|xpu|npu|mps)(:\d+)?", "cpu, cuda, cuda:N, xpu, npu or mps")
"""The form of a device's name, and that form in words."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """What is loaded and where, and the arguments of diffusers. `None` means: not set."""

    model: str = option(
        "Hub id or folder; a relative path is relative to the entry.",
        "",
        group="",
    )
    pipeline_class: str | None = option(
        "The diffusers pipeline class; without it model_index.json names it.",
        group="weights",
        inspected=True,
    )
    diffusers_version: str | None = option(
        "The diffusers that the entry was written for.",
        group="",
    )
    revision: str | None = option(
        "Branch, tag or commit of a hub model.",
        group="weights",
        argument="same",
        of_file=False,
        inspected=True,
    )
    subfolder: str | None = option(
        "Folder inside the model that holds the pipeline.",
        fails="not there: refused",
        group="weights",
        of_file=False,
        inspected=True,
    )
    variant: str | None = option(
        "Weight file variant, such as fp16.",
        fails="no such files: refused, naming those there",
        group="weights",
        argument="same",
        of_file=False,
    )
    use_safetensors: bool | None = option(
        "true: only safetensors files; false: only pickled ones; unset: safetensors where there.",
        fails="no such files: refused",
        group="weights",
        argument="same",
        of_file=False,
    )
    custom_pipeline: str | None = option(
        "Folder or file with your own pipeline class, or a community pipeline of diffusers.",
        needs="trust_remote_code, unless it is a local path",
        fails="not trusted, no pipeline class in it, or several: refused",
        group="weights",
        argument="ours",
        of_file=False,
        paths=(),
    )
    trust_remote_code: bool = option(
        "Let the model repository's own Python code run.",
        False,
        group="weights",
        argument="same",
        of_file=False,
    )
    dtype: str | dict[str, Any] = option(
        "Type of the weights; auto: bfloat16 on a GPU, float32 on a CPU. Or one per component.",
        "auto",
        choices=DTYPES,
        fails="unknown component, or types that do not fit in a trial call: refused",
        group="weights",
        argument="ours",
        example='{"default": "bfloat16", "vae": "float32"}',
        other_names=DTYPE_NAMES,
    )
    device: str | None = option(
        "Device such as cuda:1 or cpu; without it the instance's own.",
        form=DEVICE,
        group="memory",
    )
    generator_device: str = option(
        "Where seeds are drawn; cpu gives the same picture on any hardware.",
        "cpu",
        form=DEVICE,
        group="defaults of calls",
        in_requests=True,
    )
    diffusers_load_kwargs: dict[str, Any] | None = option(
        "JSON object: further arguments of from_pretrained().",
        group="weights",
        example='{"low_cpu_mem_usage": true}',
        paths=("config", "custom_pipeline"),
    )
    diffusers_call_kwargs: dict[str, Any] | None = option(
        "JSON object: defaults for arguments of the pipeline's __call__; a request's inputs win.",
        group="defaults of calls",
        example='{"num_inference_steps": 20}',
    )


@dataclass(frozen=True, kw_only=True)
class ServingOptions:
    """What is changed about the pipeline, and how it is served. These follow the families'."""

    scheduler: str | dict[str, Any] | None = option(
        'Scheduler class, or {"class": NAME, further config}: replaces the model\'s own.',
        fails="unknown class or config, a trial call fails: refused; not listed as fitting: warns",
        group="defaults of calls",
        tried=True,
        example='{"class": "UniPCMultistepScheduler", "solver_order": 3}',
    )
    lora: str | list[Any] | dict[str, Any] | None = option(
        "LoRA adapters: a path or hub id, or a list of {path, weight_name, scale, adapter_name}.",
        needs="the package peft",
        fails="not found, or changes no layer: refused",
        group="weights",
        tried=True,
        example='[{"path": "style.safetensors", "scale": 0.8}]',
        paths=("path",),
    )
    quantization_config: str | dict[str, Any] | None = option(
        'Quantize while loading: a method such as int8, {"method": NAME}, or a diffusers config.',
        needs="the package torchao, and for some methods a GPU (below)",
        fails="unknown method, hardware that cannot, nothing quantized after loading: refused",
        group="weights",
        of_file=False,
        example='{"method": "int8"}',
    )
    attention_backend: str = option(
        "Attention backend, or several separated by commas, tried in order; native: PyTorch's own.",
        "native",
        needs="what the backend needs (below)",
        fails="runs and agrees with native, or the next one is tried; none: attention_fallback",
        group="speed",
    )
    attention_fallback: str = option(
        "What to do when no named backend works: use native, or refuse to load (error).",
        "native",
        choices=("native", "error"),
        fails="error with attention_backend native: refused",
        group="speed",
    )
    enable_cpu_offload: bool = option(
        "Keep components in host memory, each on the GPU only while it runs.",
        False,
        needs="a GPU",
        fails="on a CPU, or with another placement: refused",
        group="memory",
        tried=True,
        moves_weights=True,
    )
    enable_layerwise_offload: bool = option(
        "Keep layers in host memory, each on the GPU only while it runs; slow, least memory.",
        False,
        needs="a GPU",
        fails="on a CPU, with another placement, quantization or compilation: refused",
        group="memory",
        tried=True,
    )
    enable_group_offload: str | None = option(
        "Keep groups of layers in host memory and fetch the next one while one runs.",
        choices=("block_level", "leaf_level"),
        needs="a GPU",
        fails="on a CPU, or with another placement: refused",
        group="memory",
        tried=True,
        moves_weights=True,
    )
    device_map: str | None = option(
        "Spread components over the GPUs (balanced), or load straight onto one (cuda).",
        needs="a GPU",
        fails="on a CPU, with another placement, device or channels_last: refused",
        group="memory",
        argument="same",
        of_file=False,
        tried=True,
    )
    channels_last: bool = option(
        "Memory format channels_last for unet and vae.",
        False,
        fails="no component of 2D convolutions: refused",
        group="speed",
        tried=True,
    )
    layerwise_casting: str | None = option(
        "Store the denoiser's weights in 8 bits, and cast each layer while it runs.",
        choices=("float8_e4m3fn", "float8_e5m2"),
        fails="with quantization, or where no layer is cast: refused",
        group="memory",
        tried=True,
    )
    torch_compile: str = option(
        "Compile the denoisers: their repeated blocks (regional), or whole (full).",
        "off",
        choices=("off", "regional", "full"),
        needs="a C++ compiler and Python's headers; Triton's kernels on a GPU",
        fails="no repeated blocks, or a call fails: refused",
        group="speed",
    )
    warmup: str | list[Any] | None = option(
        "Calls before ready: default, none, 512x512,832x480x81 (x frames), or a list of arguments.",
        fails="a call fails: refused",
        group="speed",
        example='[{"width": 512, "height": 512}]',
    )
    vae_use_slicing: bool = option(
        "Decode a batch one image at a time, to save memory.",
        False,
        fails="a vae that cannot: refused",
        group="memory",
    )
    vae_use_tiling: bool = option(
        "Decode large images in tiles, to save memory.",
        False,
        fails="a vae that cannot: refused",
        group="memory",
    )
    cpu_threads: int | None = option(
        "Torch threads of an instance; unset: torch's own number, shared by instances on a CPU.",
        minimum=1,
        group="speed",
    )
    request_batching: bool = option(
        "Run requests that differ only in texts and seeds as one call; rounding may differ.",
        False,
        fails="with step_batching, or no prompt: refused; kinds that disagree run one by one",
        group="speed",
    )
    step_batching: bool = option(
        "Run calls side by side and let their steps share forwards; rounding may differ.",
        False,
        fails="with offload, a call that changes the denoiser, or no denoiser: refused",
        group="speed",
    )
    max_in_flight: int = option(
        "With step_batching: calls that run side by side.",
        8,
        minimum=1,
        fails="without step_batching: refused",
        group="speed",
    )
    max_batch: int = option(
        "Most requests of one call (request_batching), or samples of a forward (step_batching).",
        16,
        minimum=1,
        fails="without either: refused",
        group="speed",
    )
    stuck_after_s: float | None = option(
        "Seconds without a step after which a call is stuck, the model not ready; unset: learned.",
        minimum=1,
        fails="then requests get UNAVAILABLE until the model is loaded again",
        group="speed",
    )
    log_requests: bool = option(
        "Write a line of JSON to the log for each request: outcome, seconds, sizes; no texts.",
        True,
        fails="not true or false: refused",
        group="defaults of calls",
    )
    max_queue: int = option("Requests that may wait; further ones get UNAVAILABLE.", 64, minimum=1)
    max_steps: int = option("Most num_inference_steps a request may ask for.", 1000, minimum=1)
    max_pixels: int = option(
        "Most width x height of an output, asked for or a picture's.",
        4096 * 4096,
        minimum=1,
    )
    max_frames: int = option("Most frames a request may ask for.", 1024, minimum=1)
    max_outputs: int = option("Most prompts x outputs per prompt of a request.", 64, minimum=1)
    max_work: int = option(
        "Most steps x megapixels x frames x outputs of a request.", 20_000, minimum=1
    )
    max_prompt_chars: int = option("Longest text of a request, in characters.", 20_000, minimum=1)
    max_input_pixels: int = option("Most pixels of one input image.", 8192 * 8192, minimum=1)
    max_input_pixels_in_all: int = option(
        "Most pixels of all images or frames of one input.", 2**29, minimum=1
    )
    max_audio_s: float = option(
        "Longest sound a request may send or ask for, in seconds.", 600.0, minimum=0
    )
    max_input_bytes: int = option("Largest input file, in bytes.", 256 * 2**20, minimum=1)
