# SPDX-License-Identifier: Apache-2.0
"""The attention backends, a row each, and the names that stand for several of them."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass

from triton_diffusers.errors import ConfigError, near_miss

NATIVE, AUTO = "native", "auto"


@dataclass(frozen=True)
class Tolerance:
    """How far outputs of a denoiser may be from those with native attention: relative L2 error."""

    float32: float
    half: float
    """For bfloat16 and float16, and for quantized denoisers."""


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


def _is_offline() -> bool:
    from huggingface_hub.constants import HF_HUB_OFFLINE

    return bool(HF_HUB_OFFLINE)
