# SPDX-License-Identifier: Apache-2.0
"""A pipeline of one's own whose prompts make it fail: `custom_pipeline` of entries that fail.

Everything else is Stable Diffusion's. The fault happens in the denoiser, at the first step.
"""

import os
import signal
import threading
import time
from typing import Any

import torch
from diffusers import StableDiffusionPipeline


class FaultyPipeline(StableDiffusionPipeline):
    """Fails as the prompt says."""

    def encode_prompt(self, prompt: Any, *args: Any, **kwargs: Any) -> Any:
        texts = prompt if isinstance(prompt, list) else [prompt]
        _fault.said = " ".join(texts)
        if not getattr(self.unet, "is_faulty", False):
            self.unet.register_forward_hook(_fail)
            self.vae.decoder.register_forward_hook(_linger)
            self.unet.is_faulty = True
        return super().encode_prompt(prompt, *args, **kwargs)


_fault = threading.local()


def _linger(module: Any, arguments: Any, output: Any) -> None:
    """Take long after the last step."""
    if "linger" in getattr(_fault, "said", ""):
        time.sleep(4)


def _fail(module: Any, arguments: Any, output: Any) -> Any:
    said = getattr(_fault, "said", "")
    if "memory" in said:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
    if "error" in said:
        raise RuntimeError("the denoiser fails")
    if "stuck" in said:
        time.sleep(6)
    if "die" in said:
        os.kill(os.getpid(), signal.SIGKILL)
    if "nan" in said:
        return tuple(part * float("nan") for part in output)
    return output
