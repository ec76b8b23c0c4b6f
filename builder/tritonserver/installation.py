# SPDX-License-Identifier: Apache-2.0
"""Where tritonserver is on this machine and how it must be started.

`tritonserver` on PATH (NVIDIA's image) is used as it is. Otherwise the one inside the PyPI package
nvidia-pytriton: it has the binary, the Python backend and a stub per Python version, but not in
the layout that the server expects, so that is made of links.
"""

import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from ctypes.util import find_library
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

INSTALL = "pip install 'triton-diffusers[server]'"
MINIMUM_SHM = 256 * 2**20


class ServerError(Exception):
    """tritonserver cannot be started, or refused what it was asked."""


@dataclass(frozen=True)
class Binary:
    """A tritonserver. `package` is the folder inside nvidia-pytriton, None for one on PATH."""

    path: Path
    package: Path | None = None


def how_to_install(error: ModuleNotFoundError, extra: str) -> str:
    """Say which extra brings the package that an error misses. Raises the error if it is ours."""
    package = str(error.name).partition(".")[0]
    if package in ("builder", "triton_diffusers"):
        raise error
    return (
        f"this needs triton-diffusers[{extra}] ('{package}' is not installed): in a checkout "
        f"pip install '.[{extra}]' -c constraints.txt"
    )


def find() -> Binary:
    """Return the server to start. Raises ServerError saying how to get one."""
    on_path = shutil.which("tritonserver")
    if on_path:
        return Binary(Path(on_path))
    # find_spec only: importing pytriton takes a second
    spec = importlib.util.find_spec("pytriton")
    package = Path(spec.origin).parent / "tritonserver" if spec and spec.origin else None
    if package is None or not (package / "bin" / "tritonserver").exists():
        raise ServerError(
            f"no tritonserver on PATH and nvidia-pytriton is not installed: {INSTALL}, "
            "or run inside NVIDIA's tritonserver image"
        )
    _check_package(package)
    return Binary(package / "bin" / "tritonserver", package)


def command(binary: Binary, layout: Path) -> list[str]:
    """Return the start of the command line; `layout` is a folder for the backend's links."""
    if binary.package is None:
        return [str(binary.path)]
    backend = layout / "python"
    backend.mkdir(exist_ok=True)
    for source in (*(binary.package / "backends" / "python").glob("*.*"), _stub(binary.package)):
        link = backend / source.name
        if not link.is_symlink() or link.readlink() != source:
            link.unlink(missing_ok=True)
            link.symlink_to(source)
    return [str(binary.path), f"--backend-directory={layout}"]


def environment(binary: Binary, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of the server, whose stubs use the running Python's packages."""
    result = dict(env)
    # the stub takes its packages from the first python on PATH
    result["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")])
    if binary.package is not None:
        libraries = [str(binary.package.parent.parent / "nvidia_pytriton.libs")]
        libraries += [sysconfig.get_config_var("LIBDIR") or "", env.get("LD_LIBRARY_PATH", "")]
        result["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
    return result


def shared_memory_warning(path: str = "/dev/shm") -> str | None:
    """Return a warning when shared memory is too small for image and video tensors."""
    try:
        status = os.statvfs(path)
    except OSError:
        return f"{path} is missing: Triton's Python backend needs shared memory"
    size = status.f_blocks * status.f_frsize
    if size >= MINIMUM_SHM:
        return None
    return (
        f"{path} has only {size / 2**20:.0f} MB: large images and videos will fail; "
        "give at least 256 MB, in Docker with --shm-size=1g"
    )


def _check_package(package: Path) -> None:
    numpy = metadata.version("numpy")
    if int(numpy.split(".")[0]) >= 2:
        raise ServerError(
            f"numpy {numpy} corrupts texts in nvidia-pytriton's tritonserver: pip install 'numpy<2'"
        )
    if not _stub(package).exists():
        raise ServerError(f"nvidia-pytriton has no stub for Python {_python()}; use 3.10 to 3.13")
    library = str(sysconfig.get_config_var("INSTSONAME") or "")
    folder = Path(sysconfig.get_config_var("LIBDIR") or "")
    shared = ".so" in library and (folder / library).exists()
    if not shared and not find_library(f"python{_python()}"):
        raise ServerError(
            f"this Python has no libpython{_python()}.so, which the server needs: install it "
            f"(Debian: libpython{_python()}) or use a Python built with --enable-shared"
        )


def _stub(package: Path) -> Path:
    return package / "python_backend_stubs" / _python() / "triton_python_backend_stub"


def _python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"
