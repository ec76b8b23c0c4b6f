# SPDX-License-Identifier: Apache-2.0
"""Whether an exception of a call is the pipeline's refusal of its inputs, or a failure."""

import traceback
from pathlib import Path

CHECKERS = {"diffusers", "transformers"}
"""Packages that look at a pipeline's inputs before its first step."""


def is_refusal(error: Exception, started: bool) -> bool:
    """Tell whether a pipeline checked its inputs and refused them.

    That is in `check_inputs`, or where a library that prepares inputs raises ValueError or
    TypeError of its own before the first step.
    """
    if not isinstance(error, ValueError | TypeError):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    parts = set(Path(last.filename).parts)
    raised = CHECKERS & parts and (last.line or "").startswith("raise ")
    return bool((raised or "PIL" in parts) and not started) or any(
        f.name == "check_inputs" for f in frames
    )


def is_of_a_scheduler(error: BaseException) -> bool:
    """Tell whether a scheduler raised: what the call asked of it was its options, or default."""
    frames = traceback.extract_tb(error.__traceback__)
    return any("schedulers" in Path(f.filename).parts for f in frames) or (
        frames[-1].name == "retrieve_timesteps"
    )
