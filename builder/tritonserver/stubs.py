# SPDX-License-Identifier: Apache-2.0
"""The Python stubs of a tritonserver, read from /proc: one process per model instance."""

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

PROC = Path("/proc")
SHARED_MEMORY = Path("/dev/shm")
STUB = "triton_python_backend_stub"


@dataclass(frozen=True)
class Stub:
    """One live stub. A dead one that Triton has not reaped has no command line and is not found."""

    pid: int
    model: str
    region: str
    arguments: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """Its command line, which has the name of its instance somewhere."""


def find(server_pid: int) -> list[Stub]:
    """Return the live stubs in the server's process group."""
    found = (_read(folder, server_pid) for folder in PROC.glob("[0-9]*"))
    return [stub for stub in found if stub is not None]


def dead(server_pid: int) -> set[int]:
    """Return the stubs in the server's process group that ended and were not reaped."""
    return {pid for folder in PROC.glob("[0-9]*") if (pid := _read_dead(folder, server_pid))}


def shared_memory_regions(server_pid: int) -> set[str]:
    """Return the names of the shared memory that the server's stubs hold now."""
    return {stub.region for stub in find(server_pid)}


def remove_regions(regions: set[str]) -> None:
    """Remove shared memory that a killed server left behind."""
    for region in regions:
        if region.startswith("triton_python_backend_shm"):
            (SHARED_MEMORY / Path(region).name).unlink(missing_ok=True)


def _read_dead(folder: Path, group: int) -> int | None:
    with suppress(OSError, IndexError, ValueError):
        name, _, rest = (folder / "stat").read_text().rpartition(")")
        fields = rest.split()
        if fields[0] == "Z" and int(fields[2]) == group and STUB[:15] in name:
            return int(folder.name)
    return None


def _read(folder: Path, group: int) -> Stub | None:
    with suppress(OSError, IndexError, ValueError):
        # the process group is the third field after the name, which may hold spaces
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        if int(fields[2]) != group:
            return None
        arguments = (folder / "cmdline").read_text(errors="surrogateescape").split("\0")
        if Path(arguments[0]).name == STUB:
            # <stub> <repository>/<model>/<version>/model.py <shared memory region> ...
            model = Path(arguments[1]).parts[-3]
            return Stub(int(folder.name), model, arguments[2], tuple(arguments))
    return None
