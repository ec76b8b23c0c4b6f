# SPDX-License-Identifier: Apache-2.0
"""The Python stubs of a tritonserver, read from /proc: one process per model instance."""

import re
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

PROC = Path("/proc")
SHARED_MEMORY = Path("/dev/shm")
STUB = "triton_python_backend_stub"
REGION = "triton_python_backend_shm_region_"
"""How the names of the stubs' shared memory begin; a part that is a server's own follows."""
STARTING_S = 2.0
STAND_IN = "triton_diffusers_stand_in"
"""Names the instances of a stand-in (stand_in.py), whose process is no stub of a model."""
INSTANCE = re.compile(r"(.+)_\d+_\d+")
FROM_LOAD_CALL = re.compile(r"folder\w{6}")
"""Where Triton puts the files of a model that came with its load call."""


@dataclass(frozen=True)
class Stub:
    """One live stub. A dead one that Triton has not reaped has no command line and is not found."""

    pid: int
    model: str
    region: str
    arguments: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """Its command line, which has the name of its instance somewhere."""

    @property
    def region_name(self) -> str:
        """The file of its shared memory in /dev/shm."""
        return Path(self.region).name


def find(server_pid: int) -> list[Stub]:
    """Return the live stubs in the server's process group."""
    found = (_read(folder, server_pid) for folder in PROC.glob("[0-9]*"))
    return [stub for stub in found if stub is not None]


def dead(server_pid: int) -> set[int]:
    """Return the stubs in the server's process group that ended and were not reaped."""
    return {pid for folder in PROC.glob("[0-9]*") if (pid := _read_dead(folder, server_pid))}


def mapped_regions(server_pid: int, prefix: str) -> set[str]:
    """Return the names of the stubs' shared memory that the server itself has mapped."""
    start = f"{SHARED_MEMORY}/{prefix}"
    with suppress(OSError):
        lines = (PROC / str(server_pid) / "maps").read_text(errors="surrogateescape").splitlines()
        words = (line.split(maxsplit=5)[-1] for line in lines if start in line)
        return {Path(word.removesuffix(" (deleted)")).name for word in words}
    return set()


def remove_regions(prefix: str, keep: Collection[str] = ()) -> None:
    """Remove the shared memory of one server's stubs: that whose name starts with its prefix."""
    if not prefix.startswith(REGION):
        return
    for region in SHARED_MEMORY.glob(f"{prefix}*"):
        if region.name not in keep:
            region.unlink(missing_ok=True)


def remove_dead_regions(server_pid: int, prefix: str) -> None:
    """Remove what killed stubs left: regions that neither a stub nor the server holds."""
    old = {region.name for region in SHARED_MEMORY.glob(f"{prefix}*") if _is_old(region)}
    held = {stub.region_name for stub in find(server_pid)} | mapped_regions(server_pid, prefix)
    for name in old - held:
        (SHARED_MEMORY / name).unlink(missing_ok=True)


def _is_old(region: Path) -> bool:
    """Tell whether a region was there before a stub could be starting with it."""
    with suppress(OSError):
        return time.time() - region.stat().st_ctime > STARTING_S
    return False


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
            if any(word.startswith(STAND_IN) for word in arguments):
                return None
            if FROM_LOAD_CALL.fullmatch(model):
                model = _model_of_instance(arguments) or model
            return Stub(int(folder.name), model, arguments[2], tuple(arguments))
    return None


def _model_of_instance(arguments: list[str]) -> str | None:
    """Return a model's name out of its instance's, NAME_GROUP_NUMBER, where nothing named these."""
    found = (INSTANCE.fullmatch(word) for word in arguments[2:])
    return next((match[1] for match in found if match), None)
