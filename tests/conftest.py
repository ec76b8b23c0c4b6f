# SPDX-License-Identifier: Apache-2.0
"""What scripts/test sets, for a bare `pytest` too; and which tests share a lane of it."""

import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

SERVERS = ("tiny_server", "small_server", "page_server", "outcomes")
"""Fixtures of a session that are dear: their tests run in one lane."""
MACHINE = (
    "test_admin_key.py",
    "test_client_transport.py",
    "client/test_sizes.py",
)
"""Tests that look at what the whole machine has in /dev/shm: never side by side."""


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test the group whose tests follow one another in the same lane."""
    for item in items:
        server = next((name for name in SERVERS if name in item.fixturenames), None)
        path = item.path.as_posix()
        shared = "machine" if path.endswith(MACHINE) else server
        item.add_marker(pytest.mark.xdist_group(shared or path))
