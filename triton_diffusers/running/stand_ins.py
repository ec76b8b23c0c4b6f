# SPDX-License-Identifier: Apache-2.0
"""What stands for the modules of a lane's pipeline, so that their calls are shared with others'."""

from typing import Any

SMALL_LATENTS = 2**16
"""Numbers in the latents of a picture of 512 pixels a side (16 channels)."""


class Shared:
    """Stands for a module in a lane's pipeline: everything is the module's but its call."""

    def __init__(self, module: Any, lane: Any) -> None:
        self.__dict__.update(_module=module, _lane=lane)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module with the calls of other lanes."""
        return self._lane.call(self._module, args, kwargs)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # isinstance() sees the module's class
        return type(self.__dict__["_module"])

    def modules(self) -> Any:
        """Return the module and those inside; pipelines search them for hooks in every call."""
        return iter(self.__dict__["_lane"].modules(self.__dict__["_module"]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_module"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_module"], name, value)


class SharedDecoder(Shared):
    """Stands for a vae in a lane's pipeline, whose small decodes are joined.

    Large ones gain nothing by that and need the memory of several at once.
    """

    def decode(self, *args: Any, **kwargs: Any) -> Any:
        """Decode latents, the first argument, with those of other lanes."""
        module, lane = self.__dict__["_module"], self.__dict__["_lane"]
        latents: Any = args[0] if args else None
        if not hasattr(latents, "numel") or latents.numel() > SMALL_LATENTS * len(latents):
            return module.decode(*args, **kwargs)
        return lane.call(lane.method(module, "decode"), args, kwargs)


def is_cast_to_decode(vae: Any) -> bool:
    """Tell whether pipelines change the type of a vae around its decode: no other may run then."""
    upcast = getattr(getattr(vae, "config", None), "force_upcast", False)
    return bool(upcast) and str(vae.dtype) != "torch.float32"
