# SPDX-License-Identifier: Apache-2.0
"""What scripts/test sets, for a bare `pytest` too: nothing is fetched, one thread a process."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
