# SPDX-License-Identifier: Apache-2.0
"""Why a pipeline did not load or run, in one line: which component, which package, what to do."""

import re
from types import TracebackType
from typing import Any

from triton_diffusers.config import ServeConfig
from triton_diffusers.errors import one_line

PACKAGES = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "onnx": "onnxruntime",
    "opencv": "opencv-python-headless",
}
"""Packages whose name in pip is another one."""


def explain_load(error: Exception, config: ServeConfig) -> str:
    """Word the failure of from_pretrained()."""
    component = _component(error.__traceback__)
    of = f"component '{component}' of " if component else ""
    text = one_line(error).rstrip(".")
    return f"{of}model '{config.model}' does not load: {text}{_advice(error, config)}"


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


def _component(trace: TracebackType | None) -> str | None:
    """Return the component that from_pretrained() was loading."""
    component = None
    while trace is not None:
        code, names = trace.tb_frame.f_code, trace.tb_frame.f_locals
        if code.co_name == "from_pretrained" and "init_dict" in names:
            component = names.get("name")
        trace = trace.tb_next
    return component if isinstance(component, str) else None


def _advice(error: Exception, config: ServeConfig) -> str:
    if package := missing_package(error):
        return f"; {package}"
    if config.variant and config.variant in str(error):
        return "; set parameter 'variant' to one that the model has, or remove it"
    damaged = isinstance(error, OSError) or type(error).__name__ in ("JSONDecodeError", "KeyError")
    return "; the model is incomplete or damaged: copy or download it again" if damaged else ""
