# SPDX-License-Identifier: Apache-2.0
"""A server whose /dev/shm is its own and full: run in a mount namespace, prints what it answers.

usage: unshare -Urm python -m tests.server.full_shared_memory FOLDER
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tritonclient.utils import InferenceServerException

from builder.tritonserver.server import start_server
from tests import tiny
from tests.server.entries import SMALL, add_entry
from tests.server.wire import PROTOCOLS, connect, infer

SHM, SIZE = Path("/dev/shm"), "24m"
LARGE = {"height": 128, "width": 128, "num_images_per_prompt": 64}
"""3.1 MB of pictures."""
LEFT = (2**20, 0)


def _fill(left: int) -> Path:
    """Leave so many bytes."""
    status = os.statvfs(SHM)
    file = SHM / "filling"
    with file.open("wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, status.f_bavail * status.f_frsize - left)
    return file


def _ask(client: Any, protocol: str, inputs: dict[str, Any]) -> str:
    try:
        outputs = infer(client, protocol, "pictures", {"prompt": "a fox"} | inputs)
        return f"{outputs['images'].nbytes}"
    except InferenceServerException as error:
        return f"{error.status()} {error.message()}"


def main(folder: Path) -> None:
    """Serve, fill the shared memory, ask for small and large answers, make room, ask again."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", SHM], check=True)
    call = ("--diffusers-call-kwargs", json.dumps(SMALL))
    add_entry(folder / "repository", "pictures", tiny.save("stable-diffusion", folder), *call)
    log = folder / "server.log"
    found: dict[str, list[str]] = {"small": [], "large": [], "with room": []}
    with start_server(folder / "repository", ["pictures"], log=log, exit_timeout_s=3) as server:
        for protocol in PROTOCOLS:
            with connect(server, protocol) as client:
                for left in LEFT if protocol == "grpc" else LEFT[:1]:
                    file = _fill(left)
                    found["small"] += [_ask(client, protocol, {}) for _ in range(3)]
                    found["large"].append(_ask(client, protocol, LARGE))
                    found["small"].append(_ask(client, protocol, {}))
                    file.unlink()
        with connect(server, "grpc") as client:
            found["with room"].append(_ask(client, "grpc", LARGE))
            _fill(0)
            found["with room"].append(_ask(client, "grpc", LARGE))  # in the room of the last
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
