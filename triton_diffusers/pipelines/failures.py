# SPDX-License-Identifier: Apache-2.0
"""Whether an exception of a call is the pipeline's refusal of its inputs, or a failure."""

import traceback

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
    package = _modules(error)[-1].partition(".")[0]
    raised = package in CHECKERS and (frames[-1].line or "").startswith("raise ")
    return bool((raised or package == "PIL") and not started) or any(
        f.name == "check_inputs" for f in frames
    )


def is_of_a_scheduler(error: BaseException) -> bool:
    """Tell whether a scheduler raised: what the call asked of it was its options, or default."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    in_one = any(name.startswith("diffusers.schedulers.") for name in _modules(error))
    return in_one or last.name == "retrieve_timesteps"


def _modules(error: BaseException) -> list[str]:
    """Return the names of the modules that an exception went through, the one that raised last."""
    return [
        str(frame.f_globals.get("__name__", ""))
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
