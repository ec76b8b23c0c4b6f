# SPDX-License-Identifier: Apache-2.0
"""`builder remove`: delete an entry of the repository."""

import argparse
from pathlib import Path

from builder.console import say
from builder.entries import repository


def run(args: argparse.Namespace) -> int:
    """Remove one entry."""
    folder = Path(args.repository)
    repository.remove_entry(folder, args.name, args.force)
    say(f"removed {folder / args.name}")
    return 0
