# SPDX-License-Identifier: Apache-2.0
"""The type of the arrays that travel: numpy, of any dtype and rank that their place states."""

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
