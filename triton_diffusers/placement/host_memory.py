# SPDX-License-Identifier: Apache-2.0
"""Whether a model fits the host's memory, before it is loaded.

The kernel ends a process that needs more than there is, and Triton then waits for its stub for
ever. What counts is what must be copied: weights whose dtype changes while they are loaded.
Weights that keep theirs are mapped from their file; the kernel may drop them and read them again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_diffusers.errors import ConfigError
from triton_diffusers.pipelines.weight_files import Weights, read_component

GIB = 2**30
MARGIN = 1.1
"""Refused is only what needs more than the memory there is times this: some weights keep their
dtype after all (norms in float32), and what is free is an estimate."""
FLOATS = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}
"""How safetensors spells the dtypes that a load at another dtype converts."""
BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
STORED_BYTES = {stored: BYTES.get(name, 1) for stored, name in FLOATS.items()}
NOT_KNOWN = ("device_map", "quantization_config", "use_flashpack")
"""Arguments of from_pretrained() with which weights need less of the host than their size."""
UNLIMITED = 2**60


def check_host_memory(
    folder: Path,
    index: Mapping[str, Any],
    kwargs: Mapping[str, Any],
    *,
    stays_on_cpu: bool,
    available: int | None = None,
) -> list[str]:
    """Return warnings for a model whose mapped weights do not fit.

    index: model_index.json. kwargs: of from_pretrained(). stays_on_cpu: the weights are used from
    the host's memory.
    Raises ConfigError for a model whose converted weights exceed what is available.
    """
    if any(kwargs.get(name) for name in NOT_KNOWN):
        return []
    room = available_memory() if available is None else available
    weights = weights_of(folder, index, kwargs)
    copied = {name: size.copied for name, size in weights.items() if size.copied}
    if sum(copied.values()) > room * MARGIN:
        parts = ", ".join(
            f"{name} {size / GIB:.2f}" for name, size in copied.items() if size > GIB // 100
        )
        raise ConfigError(
            f"model '{folder}' needs {sum(copied.values()) / GIB:.2f} GiB of host memory to load "
            f"({parts}), {room / GIB:.2f} GiB is available; give the machine or the container "
            "more, or set the dtype that its files hold (weights are then mapped, not copied)"
        )
    total = sum(size.copied + size.mapped for size in weights.values())
    if stays_on_cpu and total > room * MARGIN:
        return [
            f"the weights ({total / GIB:.2f} GiB) exceed the available memory ({room / GIB:.2f} "
            "GiB): every call will read them from the disk again"
        ]
    return []


@dataclass(frozen=True)
class HostBytes:
    """What one component takes of the host's memory: of its own, and mapped from its files."""

    copied: int
    mapped: int


def weights_of(
    folder: Path, index: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> dict[str, HostBytes]:
    """Return what from_pretrained() takes for each component that it loads from its folder."""
    found = {}
    for name, named in index.items():
        is_component = isinstance(named, list) and named[:1] not in ([], [None])
        if is_component and name not in kwargs and (folder / name).is_dir():
            try:
                weights = read_component(folder / name, kwargs.get("variant"))
            except ConfigError:  # from_pretrained() will tell which component it is
                continue
            sizes = split(weights, _dtype(kwargs, name))
            if kwargs.get("disable_mmap") or kwargs.get("low_cpu_mem_usage") is False:
                sizes = HostBytes(sizes.copied + sizes.mapped, 0)
            found[name] = sizes
    return found


def split(weights: Weights, dtype: str | None) -> HostBytes:
    """Return what weights take when they are loaded at a dtype; None keeps theirs."""
    copied, converted = 0, 0
    for stored, count in weights.counts:
        if dtype in BYTES and FLOATS.get(stored, dtype) != dtype:
            copied += count * BYTES[dtype]
            converted += count * STORED_BYTES[stored]
    return HostBytes(copied, max(0, weights.size - converted))


def _dtype(kwargs: Mapping[str, Any], component: str) -> str | None:
    given = kwargs.get("dtype", kwargs.get("torch_dtype"))
    if isinstance(given, Mapping):
        given = given.get(component, given.get("default", "float32"))
    return None if given is None else str(given).removeprefix("torch.")


def available_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many bytes this process may still take: the least of machine and containers."""
    machine = _numbers(proc / "meminfo")
    room = (machine.get("MemAvailable", UNLIMITED) + machine.get("SwapFree", 0)) << 10
    return min([room, *(_cgroup_room(folder) for folder in _cgroup_folders(proc, cgroups))])


def _cgroup_folders(proc: Path, cgroups: Path) -> Iterator[Path]:
    """Yield the process's memory cgroup and those around it; in a container its root alone."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = cgroups / "memory" if controllers else cgroups
        inner = Path(path.lstrip("/"))
        yield from dict.fromkeys([root / inner, *(root / p for p in inner.parents), root])


def _cgroup_room(folder: Path) -> int:
    """Return what a cgroup of version 2 or 1 leaves; the files it has cached do not count."""
    for limit_file, used_file, cached in (
        ("memory.max", "memory.current", ("inactive_file", "active_file")),
        (
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            ("total_inactive_file", "total_active_file"),
        ),
    ):
        try:
            limit = int((folder / limit_file).read_text())
            used = int((folder / used_file).read_text())
        except (OSError, ValueError):  # not this version, or "max"
            continue
        stat = _numbers(folder / "memory.stat")
        return max(0, limit - used + sum(stat.get(name, 0) for name in cached))
    return UNLIMITED


def _numbers(file: Path) -> dict[str, int]:
    """Return the numbers of a file such as /proc/meminfo by their names."""
    try:
        rows = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0].rstrip(":"): int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
