# SPDX-License-Identifier: Apache-2.0
"""Triton requests <-> jobs of the engine: all that names `triton_python_backend_utils`.

An entry's `1/model.py` takes `TritonPythonModel` from here.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triton_diffusers.serving.model import TritonPythonModel

__all__ = ["TritonPythonModel"]


def __getattr__(name: str) -> Any:
    """Import the model when it is asked for: only Triton's stubs have its Python module."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from triton_diffusers.serving.model import TritonPythonModel

    return TritonPythonModel
