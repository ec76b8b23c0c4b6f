# SPDX-License-Identifier: Apache-2.0
"""Attention backends: one table of them, the names an entry may give, and the choice at load.

A backend is chosen only after it has run (attention_probe.py). `native`, the default, is what
plain diffusers does: nothing is probed, set or fetched.
"""

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from triton_diffusers.attention_probe import NATIVE, Probe, Tolerance, takes_backend
from triton_diffusers.config import ServeConfig
from triton_diffusers.denoisers import denoisers
from triton_diffusers.errors import ConfigError, near_miss
from triton_diffusers.signature import Signature

AUTO = "auto"
ENVIRONMENT = "DIFFUSERS_ATTN_BACKEND"
"""The variable with which diffusers itself takes another backend; `native` leaves it its say."""


EXACT = Tolerance(1e-3, 5e-2)
"""The same sums in another order: rounding, which the layers of a denoiser add up."""
INT8 = Tolerance(1e-1, 1e-1)
FP4 = Tolerance(2.5e-1, 2.5e-1)
"""Attention that rounds its own operands to 8 or 4 bits."""


@dataclass(frozen=True)
class Backend:
    """One attention backend of diffusers."""

    name: str
    about: str
    platforms: tuple[str, ...] = ()
    """cuda (NVIDIA), rocm, xpu, npu, xla, cpu; none: any."""
    package: str = ""
    """What has to be installed, as it is imported."""
    from_hub: bool = False
    """The kernel's code is fetched from the hub."""
    tolerance: Tolerance = EXACT

    def unavailable(self, platform: str) -> str | None:
        """Return why it cannot even be tried here, or None."""
        if self.platforms and platform not in self.platforms:
            return f"runs on {' and '.join(self.platforms)}, not on {platform}"
        if self.package and importlib.util.find_spec(self.package) is None:
            return f"package {self.package} is not installed"
        if self.from_hub and _is_offline():
            return "its kernel comes from the hub, and HF_HUB_OFFLINE is set"
        return None


def _hub(name: str, about: str, *platforms: str, tolerance: Tolerance = EXACT) -> Backend:
    return Backend(name, about, platforms, "kernels", True, tolerance)


def _sage(name: str, about: str) -> Backend:
    return Backend(name, about, ("cuda",), "sageattention", tolerance=INT8)


BACKENDS: Mapping[str, Backend] = {
    row.name: row
    for row in (
        Backend("native", "PyTorch's scaled_dot_product_attention, which chooses a kernel itself"),
        Backend("_native_flash", "PyTorch's flash kernel and no other; takes no mask"),
        Backend("_native_efficient", "PyTorch's memory-efficient kernel and no other"),
        Backend("_native_cudnn", "PyTorch's cuDNN kernel and no other", ("cuda",)),
        Backend("_native_math", "PyTorch's plain matrix products: slow, runs everywhere"),
        Backend("_native_npu", "Ascend's fused attention", ("npu",), "torch_npu"),
        Backend("_native_xla", "flash attention of torch_xla", ("xla",), "torch_xla"),
        Backend("flex", "PyTorch's flex_attention; slow unless compiled"),
        _hub("_flash_3_hub", "FlashAttention-3 from the hub; takes no mask", "cuda"),
        _hub("_flash_3_varlen_hub", "FlashAttention-3 from the hub, with masks", "cuda"),
        Backend("_flash_3", "FlashAttention-3; takes no mask", ("cuda",), "flash_attn_interface"),
        Backend(
            "_flash_varlen_3", "FlashAttention-3, with masks", ("cuda",), "flash_attn_interface"
        ),
        _hub("flash_4_hub", "FlashAttention-4 from the hub; takes no mask", "cuda"),
        _hub("flash_hub", "FlashAttention-2 from the hub; takes no mask", "cuda", "rocm", "xpu"),
        _hub("flash_varlen_hub", "FlashAttention-2 from the hub, with masks", "cuda", "xpu"),
        Backend("flash", "FlashAttention-2; takes no mask", ("cuda", "rocm"), "flash_attn"),
        Backend("flash_varlen", "FlashAttention-2, with masks", ("cuda", "rocm"), "flash_attn"),
        _hub("aiter_fa2_hub", "AMD's AITER from the hub; bfloat16, takes no mask", "rocm"),
        _hub("sage_hub", "SageAttention from the hub: 8 bits; no mask", "cuda", tolerance=INT8),
        _hub("sage_blackwell_hub", "SageAttention-3 from the hub: 4 bits", "cuda", tolerance=FP4),
        _sage("sage", "SageAttention: 8 bits; takes no mask"),
        _sage("sage_varlen", "SageAttention: 8 bits, with masks"),
        _sage("_sage_qk_int8_pv_fp8_cuda", "SageAttention's int8 and fp8 kernel"),
        _sage("_sage_qk_int8_pv_fp8_cuda_sm90", "SageAttention's int8 and fp8 kernel for Hopper"),
        _sage("_sage_qk_int8_pv_fp16_cuda", "SageAttention's int8 and fp16 kernel"),
        _sage("_sage_qk_int8_pv_fp16_triton", "SageAttention's int8 and fp16 kernel in Triton"),
        Backend("xformers", "xFormers' memory-efficient attention", ("cuda", "rocm"), "xformers"),
    )
}
"""By name; a test holds the names against diffusers' own list."""

_FLASH_3_HUB = ("_flash_3_hub", "_flash_3_varlen_hub")
_FLASH_HUB = ("flash_hub", "flash_varlen_hub")
_FLASH = {
    "cuda": (
        *_FLASH_3_HUB,
        *("_flash_3", "_flash_varlen_3"),
        *_FLASH_HUB,
        *("flash", "flash_varlen", "_native_flash"),
    ),
    "rocm": ("aiter_fa2_hub", "flash_hub", "flash", "flash_varlen", "_native_flash"),
    "xpu": (*_FLASH_HUB, "_native_flash"),
    "npu": ("_native_npu",),
    "": ("_native_flash",),
}
CHAINS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    AUTO: {**{p: (*c, NATIVE) for p, c in _FLASH.items()}, "": (NATIVE,)},
    "FLASH_ATTN": _FLASH,
    "FLASH_ATTN_3_HUB": {"": _FLASH_3_HUB},
    "FLASH_ATTN_HUB": {"": _FLASH_HUB},
    "SAGE_ATTN": {"": ("sage_hub", "sage", "sage_varlen", "_sage_qk_int8_pv_fp16_triton")},
    "TORCH_SDPA": {"": (NATIVE,)},
    "ASCEND": {"": ("_native_npu",)},
}
"""Name -> platform ("": every other) -> backends in the order of trying.

`auto` ends with native, so it always finds one; the others are vLLM-Omni's names. After each
kernel that takes no mask stands its variant that does, for the models that pass one.
"""

REFUSED: Mapping[str, str] = {
    "CUDNN_ATTN": "choose _native_cudnn",
    "FLASHINFER_ATTN": "diffusers has no such backend; choose FLASH_ATTN",
    "TRTLLM_ATTN": "diffusers has no such backend; choose FLASH_ATTN",
}
"""Names of vLLM-Omni's own engine that are none of its diffusers backend."""

ELSEWHERE: Mapping[str, str] = {
    "sdpa": NATIVE,
    "torch": NATIVE,
    "pytorch": NATIVE,
    "math": "_native_math",
    "cudnn": "_native_cudnn",
    "mem_efficient": "_native_efficient",
    "flash_attention": "FLASH_ATTN",
    "flash_attention_2": "FLASH_ATTN_HUB",
    "flash_attention_3": "FLASH_ATTN_3_HUB",
    "sage_attention": "SAGE_ATTN",
}
"""What others call attention that has another name here."""


@dataclass(frozen=True)
class Attempt:
    """A backend that was tried and not chosen, and why."""

    backend: str
    denoiser: str | None
    """None: of no use for any of them."""
    reason: str


@dataclass(frozen=True)
class AttentionChoice:
    """What was chosen."""

    active: str | dict[str, str] = NATIVE
    """The backend; by denoiser where they have different ones."""
    attempts: tuple[Attempt, ...] = ()
    warnings: tuple[str, ...] = field(default=())


def check_attention(config: ServeConfig) -> None:
    """Raise ConfigError for a name that is refused or unknown, and a fallback without effect."""
    chain(config.attention_backend, "cpu")
    if config.attention_fallback == "error" and _is_native(config):
        raise ConfigError(
            "parameter 'attention_fallback' error has no effect with attention_backend native, "
            "which has nothing to fall back from; remove it, or name a backend"
        )


def check_environment() -> None:
    """Raise ConfigError for a backend in the environment with which diffusers does not import."""
    given = os.environ.get(ENVIRONMENT, NATIVE)
    if given not in BACKENDS:
        close = given.lower() if given.lower() in BACKENDS else None
        hint = f" Did you mean '{close}'?" if close else near_miss(given.lower(), BACKENDS)
        raise ConfigError(
            f"environment variable {ENVIRONMENT} '{given}' is no attention backend of diffusers."
            f"{hint or ' Accepted: ' + ', '.join(BACKENDS) + '.'} Correct it, or unset it."
        )


def chain(given: str, platform: str) -> tuple[str, ...]:
    """Return the backends that an entry's `attention_backend` stands for, in their order.

    Upper and lower case are the same, as for diffusers. Raises ConfigError.
    """
    found: list[str] = []
    for name in (part.strip() for part in given.split(",")):
        if reason := REFUSED.get(name.upper()):
            raise ConfigError(
                f"attention_backend '{name}' is not for diffusers pipelines: {reason}"
            )
        if name.lower() in BACKENDS:
            found.append(name.lower())
            continue
        chains = next((c for n, c in CHAINS.items() if n.upper() == name.upper()), None)
        if chains is None:
            raise ConfigError(_unknown(name))
        found += chains.get(platform, chains[""])
    return tuple(dict.fromkeys(found))


def _unknown(name: str) -> str:
    """Word the refusal of a name: the one that is near, else all of them."""
    known = {n.lower(): n for n in (*CHAINS, *BACKENDS)}
    close = near_miss(name.lower(), (*known, *ELSEWHERE))
    meant = close.removeprefix(" Did you mean '").removesuffix("'?")
    if close:
        named = ELSEWHERE.get(meant) or known[meant]
        return f"attention_backend '{name}' is not an attention backend. Did you mean '{named}'?"
    return (
        f"attention_backend '{name}' is not an attention backend; names of diffusers: "
        f"{', '.join(BACKENDS)}; or {', '.join(CHAINS)}, which stand for several"
    )


def choose_attention(
    pipeline: Any,
    config: ServeConfig,
    signature: Signature,
    call_kwargs: Mapping[str, Any],
    device: str,
) -> AttentionChoice:
    """Give every denoiser the first backend that runs on it and agrees with native attention.

    `native` alone changes nothing. Where no backend works a denoiser keeps PyTorch's attention,
    with a warning; ConfigError instead where `attention_fallback` is error.
    """
    if _is_native(config):
        return _left_alone(pipeline)
    found = denoisers(pipeline)
    attempts: list[Attempt] = []
    notes: list[str] = []
    with Probe(pipeline, found, signature, call_kwargs, device) as probe:
        chosen = {n: _choose_one(n, config, probe, platform_of(device), attempts) for n in found}
        active = {name: backend for name, backend in chosen.items() if backend}
        lost = [name for name in found if name not in active]
        probe.set_native(lost)
    for name, backend in active.items():
        notes += probe.notes(name, backend)
    if lost or not found:
        notes.append(_fall_back(config, lost, attempts))
    return AttentionChoice(_told(found, active), tuple(attempts), tuple(notes))


def _choose_one(
    name: str, config: ServeConfig, probe: Probe, platform: str, attempts: list[Attempt]
) -> str | None:
    """Give one denoiser the first backend that works; note in `attempts` those that do not."""
    for backend in chain(config.attention_backend, platform):
        row = BACKENDS[backend]
        if backend == NATIVE:
            probe.set_native([name])
            return backend
        if reason := row.unavailable(platform):
            attempt = Attempt(backend, None, reason)
        elif reason := probe.why_none(name):
            attempt = Attempt(config.attention_backend, name, reason)
        elif reason := probe.try_backend(name, backend, row.tolerance):
            attempt = Attempt(backend, name, reason)
        else:
            return backend
        if attempt not in attempts:
            attempts.append(attempt)
    return None


def platform_of(device: str) -> str:
    """Return the platform of a device such as cuda:0: its type, or rocm for AMD's GPUs."""
    kind = device.partition(":")[0]
    if kind == "cuda":
        import torch

        return "rocm" if torch.version.hip else kind
    return kind


def _is_native(config: ServeConfig) -> bool:
    return config.attention_backend.strip().lower() == NATIVE


def _left_alone(pipeline: Any) -> AttentionChoice:
    """Change nothing; tell of the backend that diffusers takes from the environment, and where."""
    given = os.environ.get(ENVIRONMENT, NATIVE)
    if given == NATIVE:
        return AttentionChoice()
    found = denoisers(pipeline)
    active = {name: given for name, denoiser in found.items() if takes_backend(denoiser)}
    if not active:
        text = f"{ENVIRONMENT} '{given}' has no effect: no attention layers here take a backend"
        return AttentionChoice(warnings=(text,))
    text = (
        f"{ENVIRONMENT} is set, so diffusers uses '{given}' untried for {', '.join(active)}; set "
        f"attention_backend to '{given}' to have it tried, or to TORCH_SDPA for PyTorch's own"
    )
    return AttentionChoice(_told(found, active), warnings=(text,))


def _fall_back(config: ServeConfig, lost: list[str], attempts: list[Attempt]) -> str:
    """Word the warning that native attention is used; raise ConfigError where it must not be."""
    mine = [a for a in attempts if a.denoiser is None or a.denoiser in lost]
    given = config.attention_backend
    told = [a.reason if a.backend == given else f"{a.backend}: {a.reason}" for a in mine]
    where = f" for {', '.join(lost)}" if lost else ""
    why = "; ".join(dict.fromkeys(told)) or "the pipeline has no denoiser"
    text = f"attention_backend '{given}' is not usable here{where}: {why}."
    if config.attention_fallback == "error":
        raise ConfigError(
            f"{text} Choose another, or set attention_fallback to native to run with PyTorch's own"
        )
    return f"{text} Using 'native'."


def _told(found: Mapping[str, Any], active: Mapping[str, str]) -> str | dict[str, str]:
    by_name = {name: active.get(name, NATIVE) for name in found}
    backends = set(by_name.values())
    return backends.pop() if len(backends) == 1 else by_name or NATIVE


def _is_offline() -> bool:
    from huggingface_hub.constants import HF_HUB_OFFLINE

    return bool(HF_HUB_OFFLINE)
