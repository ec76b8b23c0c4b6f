# SPDX-License-Identifier: Apache-2.0
# Python 2 and old 3 must be able to parse this file, so texts are formatted with %:
# ruff: noqa: UP031
"""Tell whether the Python that runs this can set up the project; exit 1 with the reason if not.

probe_python.py 3.11-3.12

Old Pythons must be able to read this file, or they could not say that they are too old.
"""

import ctypes.util
import os
import platform
import sys
import sysconfig


def problem(first, last):
    """Return the reason why this Python does not fit, or None."""
    version = "%d.%d" % sys.version_info[:2]
    if not first <= sys.version_info[:2] <= last:
        return "is Python %s; 3.10 to 3.13 is needed, best 3.11 or 3.12" % version
    machine = "%s %s" % (platform.system(), platform.machine())
    if machine != "Linux x86_64":
        return (
            "tritonserver comes from PyPI for Linux x86_64 only, this is %s; use Docker" % machine
        )
    libc, number = platform.libc_ver()
    if libc != "glibc" or tuple(map(int, number.split(".")[:2])) < (2, 35):
        return "tritonserver needs glibc 2.35 or newer, found %s %s; use Docker" % (
            libc or "another C library",
            number,
        )
    try:
        import venv  # noqa: F401 - only whether it is there
    except ImportError:
        return "has no venv module: apt install python%s-venv" % version
    if not has_pip():
        return "has neither ensurepip nor pip: apt install python%s-venv" % version
    if not has_libpython(version):
        return "has no libpython%s.so, which tritonserver needs: apt install libpython%s" % (
            version,
            version,
        )
    if sys.version_info[:2] == (3, 13) and not can_compile():
        return (
            "is Python 3.13, for which numpy below 2 must be compiled, without a C compiler or "
            "Python.h: use Python 3.12 or 3.11, or apt install build-essential python3.13-dev"
        )
    return None


def can_compile():
    """Tell whether C extensions can be built."""
    compilers = ("cc", "gcc", "clang")
    folders = os.environ.get("PATH", "").split(os.pathsep)
    header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
    found = any(os.path.exists(os.path.join(f, c)) for f in folders for c in compilers)
    return found and os.path.exists(header)


def has_pip():
    """Tell whether a new environment can get its pip."""
    for module in ("ensurepip", "pip"):
        try:
            __import__(module)
            return True
        except ImportError:
            pass
    return False


def has_libpython(version):
    """Tell whether this Python's shared library can be found (installation.py uses it too)."""
    name = str(sysconfig.get_config_var("INSTSONAME") or "")
    folder = str(sysconfig.get_config_var("LIBDIR") or "")
    if ".so" in name and os.path.exists(os.path.join(folder, name)):
        return True
    return ctypes.util.find_library("python" + version) is not None


if __name__ == "__main__":
    low, high = (tuple(map(int, part.split("."))) for part in sys.argv[1].split("-"))
    reason = problem(low, high)
    if reason:
        sys.exit(reason)
