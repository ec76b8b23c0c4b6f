# SPDX-License-Identifier: Apache-2.0
"""What scripts/test sets, for a bare `pytest` too; and which tests share a lane of it."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).parent.parent
DEAR = re.compile(r"\b(tiny|small|page|preview)_(?:server|gateway)\b")
"""Servers of a session: the files that use one follow each other, so that it is started once."""
TOGETHER = {"preview": "tiny"}
"""Of these some files use both."""
MACHINE = ("test_admin_key.py", "test_client_transport.py", "client/test_sizes.py")
"""Files whose tests look at what the whole machine has in /dev/shm: never side by side."""
WAITING = (
    *("server/test_probe.py", "server/test_serve_requests.py", "server/test_serve.py"),
    *("server/test_starting.py", "gateway/test_job_store.py", "unit/test_packaging.py", "machine"),
)
"""Files whose tests wait more than they compute: a third lane has them, and nothing else."""
FIRST = ("tiny", "small", "page", "tests/server/", "tests/pipeline/")
"""What takes long comes first, so that the lanes end together."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _turn(group(item.nodeid.partition("::")[0])))


def _turn(name: str) -> int:
    return next((turn for turn, start in enumerate(FIRST) if name.startswith(start)), len(FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out whole groups of files to the lanes that scripts/test runs."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid.partition("::")[0])

        def _next(self, node: Any) -> str | None:
            """Return the group that is next for a lane; the last of three takes what waits only."""
            waiting = [name for name in self.workqueue if name.endswith(WAITING)]
            if self.numnodes > 2 and node.gateway.id == f"gw{self.numnodes - 1}":
                return next(iter(waiting), None)
            return next((name for name in self.workqueue if name not in waiting), *waiting[:1])

        def _assign_work_unit(self, node: Any) -> None:
            if name := self._next(node):
                self.workqueue.move_to_end(name, last=False)
                super()._assign_work_unit(node)

        def _reschedule(self, node: Any) -> None:
            if self.workqueue and not self._next(node) and not node.shutting_down:
                node.shutdown()
            else:
                super()._reschedule(node)

    return ByGroup(config, log)


@lru_cache
def group(file: str) -> str:
    """Return the group of a file: its own, or that of the dear server that its tests use."""
    if file.endswith(MACHINE):
        return "machine"
    source = ROOT / file
    used = DEAR.search(source.read_text()) if source.is_file() else None
    return file if used is None else TOGETHER.get(used[1], used[1])
