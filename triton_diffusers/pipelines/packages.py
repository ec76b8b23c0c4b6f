# SPDX-License-Identifier: Apache-2.0
"""Packages that pipelines need and this Python lacks: which, and what to type to get them."""

import re
from typing import Any

PACKAGES = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "onnx": "onnxruntime",
    "opencv": "opencv-python-headless",
}
"""Packages whose name in pip is another one."""


def missing_package(error: BaseException) -> str | None:
    """Return how to install the package whose absence an error means, or None.

    diffusers imports some packages only where they are there: later they are unknown names.
    """
    if isinstance(error, ModuleNotFoundError) and error.name:
        return install(error.name.partition(".")[0])
    found = re.search(r"name '(ftfy|bs4|sentencepiece)' is not defined", str(error))
    return install(found[1]) if isinstance(error, NameError) and found else None


def install(*modules: str) -> str:
    """Say what to type to get packages."""
    packages = " ".join(PACKAGES.get(m, m.replace("_", "-")) for m in modules)
    return f"install it in the Python that tritonserver uses: pip install {packages}"


def dummy_backends(cls: Any) -> list[str]:
    """Return the packages that diffusers misses for a class of which it has only a stand-in."""
    from diffusers.utils import import_utils

    names = getattr(cls, "_backends", ())
    checks = getattr(import_utils, "BACKENDS_MAPPING", {})
    return [name for name in names if name not in checks or not checks[name][0]()]
