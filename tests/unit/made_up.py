# SPDX-License-Identifier: Apache-2.0
"""Classes shaped like diffusers' pipelines, to read signatures from; nothing of them is called."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from triton_diffusers.config.options import ServeConfig
from triton_diffusers.pipelines.loaded import LoadedPipeline
from triton_diffusers.pipelines.signature import read_signature


class Image:
    """Stands for PIL's class: annotations are read by name."""


class Tensor:
    """Stands for torch's."""


class BaseOutput(dict):
    pass


@dataclass
class PictureOutput(BaseOutput):
    images: list[Any]
    nsfw_content_detected: list[bool] | None


@dataclass
class ClipOutput(BaseOutput):
    frames: Any


class Task(Enum):
    DRAW = "draw"
    PAINT = "paint"


class PicturePipeline:
    def __call__(
        self,
        prompt: str | list[str] | None = None,
        prompt_2: str | list[str] | None = None,
        negative_prompt: str | list[str] | None = None,
        image: Image | None = None,
        mask_image: Image | list[Image] | None = None,
        height: int | None = None,
        width: int | None = None,
        num_inference_steps: int = 50,
        timesteps: list[int] | None = None,
        guidance_scale: float = 7.5,
        control_scale: float | list[float] = 1.0,
        clip: bool = False,
        task: Task = Task.DRAW,
        mode: Literal["fast", "good"] = "good",
        original_size: tuple[int, int] | None = None,
        attention_kwargs: dict[str, Any] | None = None,
        latents: Tensor | None = None,
        num_images_per_prompt: int = 1,
        generator: Any = None,
        output_type: str = "pil",
        return_dict: bool = True,
        callback_on_step_end: Any = None,
    ) -> Any:
        return PictureOutput(images=[], nsfw_content_detected=None)


class ClipPipeline:
    def __call__(
        self,
        video: list[Image],
        prompt: str | list[str] = "",
        num_frames: int = 16,
        strength: float = 0.8,
        generator: Any = None,
    ) -> Any:
        return ClipOutput(frames=[])


def loaded(cls: type = PicturePipeline, **options: Any) -> LoadedPipeline:
    """What the runtime knows of a pipeline, without one."""
    call_kwargs = options.pop("call_kwargs", {})
    return LoadedPipeline(
        pipeline=None,
        signature=read_signature(cls),
        config=ServeConfig(model="m", **options),
        device="cpu",
        dtype="float32",
        versions={},
        call_kwargs=call_kwargs,
    )
