# SPDX-License-Identifier: Apache-2.0
"""Call a served pipeline from Python: numpy, Pillow and tritonclient only, no torch.

from triton_diffusers.client import DiffusersClient

with DiffusersClient("localhost:8001", model="demo") as client:
    result = client.generate(prompt="a handwritten seven", seed=7)
result.images[0].save("seven.png")
"""

from triton_diffusers.client.clients import AsyncDiffusersClient, DiffusersClient
from triton_diffusers.client.errors import (
    Cancelled,
    DiffusersClientError,
    InvalidRequest,
    ModelNotFound,
    PipelineError,
    ServerBusy,
    ServerUnavailable,
)
from triton_diffusers.client.result import Result

__all__ = [
    "AsyncDiffusersClient",
    "Cancelled",
    "DiffusersClient",
    "DiffusersClientError",
    "InvalidRequest",
    "ModelNotFound",
    "PipelineError",
    "Result",
    "ServerBusy",
    "ServerUnavailable",
]
