# SPDX-License-Identifier: Apache-2.0
"""`builder remove`: delete an entry of the repository."""

import argparse
from pathlib import Path

from builder.arguments import Parser, add_repository
from builder.console import say
from builder.entries import repository


def add_to(parser: Parser) -> None:
    """Remove an entry.

    builder remove qwen-image
    """
    add_repository(parser)
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--force", action="store_true", help="delete weights inside the entry too")


def run(args: argparse.Namespace) -> int:
    """Remove one entry."""
    folder = Path(args.repository)
    repository.remove_entry(folder, args.name, args.force)
    say(f"removed {folder / args.name}")
    return 0
