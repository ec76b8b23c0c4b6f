# SPDX-License-Identifier: Apache-2.0
"""An OpenAI-style HTTP service in front of entries on one or more tritonservers. No torch.

uvicorn --factory triton_diffusers.gateway:create_app

The life of a request: app -> a router (images, chat, videos, audio) -> fields -> models -> calls
-> AsyncDiffusersClient -> Triton; errors.py words what goes wrong, responses.py what went well.
"""

from triton_diffusers.gateway.app import create_app
from triton_diffusers.gateway.settings import Settings

__all__ = ["Settings", "create_app"]
