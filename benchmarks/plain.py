# SPDX-License-Identifier: Apache-2.0
"""The demo model in diffusers alone: what the servers are compared with, and what they are made of.

Run as a module it is a child of worker.py.
"""

import io
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

from benchmarks.work import DEFAULTS, DEMO, Request, Work


class Plain:
    """A pipeline as its user would load and call it."""

    def __init__(self) -> None:
        from diffusers import FluxPipeline

        self.pipeline = FluxPipeline.from_pretrained(DEMO)
        self.pipeline.set_progress_bar_config(disable=True)

    def pictures(self, requests: Sequence[Request]) -> list[Any]:
        """Make the pictures of requests with equal steps and sizes in one call, each as alone."""
        import torch

        generators = [torch.Generator().manual_seed(request.number) for request in requests]
        first = requests[0]
        return list(
            self.pipeline(
                [request.prompt for request in requests],
                negative_prompt=[""] * len(requests),
                generator=generators,
                num_inference_steps=first.steps,
                height=first.size,
                width=first.size,
                **DEFAULTS,
            ).images
        )

    def loop(self, count: int, batch: int, fields: dict[str, Any]) -> float:
        """Return the pictures a second of calls with `batch` prompts, one after the other."""
        requests = list(islice(Work.read(fields).requests(), count))
        started = time.perf_counter()
        for first in range(0, count, batch):
            self.pictures(requests[first : first + batch])
        return count / (time.perf_counter() - started)


def png(picture: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


if __name__ == "__main__":
    from benchmarks.worker import work

    work({"loop": Plain().loop})
