# SPDX-License-Identifier: Apache-2.0
"""Two sets of output tensors -> what differs, in words."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

SERVER_ONLY = frozenset({"seed", "info", "media", "sampling_rate", "progress"})
"""What the server adds to the pipeline's own outputs."""


def differences(expected: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]) -> list[str]:
    """Return one line per tensor that is not identical; empty when all are."""
    lines = []
    for name in dict.fromkeys([*expected, *found]):
        if name not in found:
            lines.append(f"{name} is missing")
        elif name not in expected:
            if name not in SERVER_ONLY:
                lines.append(f"{name} is none of the pipeline's outputs")
        elif line := difference(expected[name], found[name]):
            lines.append(f"{name}: {line}")
    return lines


def difference(expected: np.ndarray, found: np.ndarray) -> str:
    """Say how two tensors differ in dtype, shape or elements; empty when they do not."""
    if expected.dtype != found.dtype:
        return f"{found.dtype} instead of {expected.dtype}"
    if expected.shape != found.shape:
        return f"shape {list(found.shape)} instead of {list(expected.shape)}"
    if expected.dtype == np.object_:
        return "" if expected.tolist() == found.tolist() else "another text"
    # bytes, so that NaN equals NaN and 0.0 does not equal -0.0
    if expected.tobytes() == found.tobytes():
        return ""
    apart = np.abs(expected.astype(np.float64) - found.astype(np.float64))
    count = int(np.count_nonzero(apart != 0))
    return f"{count} of {expected.size} elements differ, by up to {apart.max():.3g}"
