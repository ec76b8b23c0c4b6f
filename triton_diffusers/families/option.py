# SPDX-License-Identifier: Apache-2.0
"""How a load-time option is declared: here, so that a family can declare its own."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GROUPS = ("weights", "memory", "speed", "defaults of calls", "limits")
"""The headings under which options are listed."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What an option is to those who treat several alike. `limits` are the default group."""

    group: str = "limits"
    """Its heading; empty: nobody gives it, `builder` writes it."""
    argument: str = ""
    """"same": passed on to from_pretrained() under its own name; "ours": it is an argument of that
    name, too, which we translate."""
    of_file: bool = True
    """Whether a single file has a use for it."""
    tried: bool = False
    """Whether only a call can tell that it works."""
    moves_weights: bool = False
    """Whether it takes weights off the GPU, where some methods of quantization must stay."""
    inspected: bool = False
    """Whether it changes what `builder inspect` reads."""
    in_requests: bool = False
    """Whether comparable servers take it from a request; here it may only name what is loaded."""
    example: str = ""
    """Of one that takes JSON: what an error shows."""
    other_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What is typed elsewhere -> the choice that is meant."""
    paths: tuple[str, ...] | None = None
    """Where its value names files: the keys inside that do, none for the value itself."""


def option(
    about: str,
    default: Any = None,
    choices: tuple[str, ...] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    form: tuple[str, str] | None = None,
    needs: str = "",
    fails: str = "",
    **traits: Any,
) -> Any:
    """Declare an option; `needs` and `fails` are for the docs: what it takes, how it shows.

    traits: those of `Traits` that it has.
    """
    return dataclasses.field(
        default=default,
        metadata={
            "about": about,
            "choices": choices,
            "minimum": minimum,
            "maximum": maximum,
            "form": form,
            "needs": needs,
            "fails": fails,
            "traits": Traits(**traits),
        },
    )
