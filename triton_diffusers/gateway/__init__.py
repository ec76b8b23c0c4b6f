# SPDX-License-Identifier: Apache-2.0
"""An OpenAI-style HTTP service in front of entries on one or more tritonservers. No torch.

uvicorn --factory triton_diffusers.gateway:create_app

The life of a request: app -> auth -> limits -> a router (images, chat, videos, audio) ->
fields -> models -> calls -> AsyncDiffusersClient -> Triton; errors.py words what goes wrong.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triton_diffusers.gateway.app import create_app
    from triton_diffusers.gateway.settings import Settings

__all__ = ["Settings", "create_app"]

_PLACES = {"create_app": "app", "Settings": "settings"}


def __getattr__(name: str) -> Any:
    """Import what is asked for: the settings are needed without the app, to show an option."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
