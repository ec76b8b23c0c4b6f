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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out whole groups of files to the lanes that scripts/test runs."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid.partition("::")[0])

    return ByGroup(config, log)


@lru_cache
def group(file: str) -> str:
    """Return the group of a file: its own, or that of the dear server that its tests use."""
    if file.endswith(MACHINE):
        return "machine"
    source = ROOT / file
    used = DEAR.search(source.read_text()) if source.is_file() else None
    return file if used is None else TOGETHER.get(used[1], used[1])
