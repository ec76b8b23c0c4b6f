#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Kill, stall, flood and fuzz real servers, and count what became of every request.

  scripts/campaign.py                        everything, about an hour on two cores
  scripts/campaign.py kills floods           some of it
  scripts/campaign.py kills --rounds 3       shorter
  scripts/campaign.py --seed 7               another order; the same seed does the same

Exits 1 unless: wrong 0, twice 0, never 0, leaked 0, and all that was harmed healed.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from rich.console import Console
from rich.table import Table

from tests.campaign import floods, fuzz, harm
from tests.campaign.tally import Tally

Campaign = Callable[[Path, Tally, int, int, random.Random], None]
CAMPAIGNS: dict[str, tuple[Campaign, int, str]] = {
    "kills": (harm.kill_stubs, 20, "stubs killed at random moments, also while they load"),
    "servers": (harm.kill_servers, 3, "tritonserver killed"),
    "stalls": (harm.stall_stubs, 3, "a stub stopped for ten seconds"),
    "builder": (harm.kill_builder, 2, "builder serve killed: the server must end with it"),
    "floods": (floods.flood, len(floods.ATTACKS), "one client that wants the gateway for itself"),
    "requests": (fuzz.fuzz_requests, 15, "random tensors, media and heads"),
    "configs": (fuzz.fuzz_configs, 30, "random edits of config.pbtxt: check against load"),
}
"""Name -> what runs it, its rounds, what it does."""
NUMBERS = ("sent", "exact", "refused", "wrong", "twice", "never", "harmed", "healed", "leaked")
NOTES = 12


def main() -> int:
    args = parse()
    tallies = []
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        for name in args.names or CAMPAIGNS:
            tallies.append(run(name, Path(folder) / name, args))
    show(tallies)
    return 0 if all(tally.is_good for tally in tallies) else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    about = "; ".join(f"{name}: {text}" for name, (_, _, text) in CAMPAIGNS.items())
    parser.add_argument("names", nargs="*", choices=[[], *CAMPAIGNS], metavar="NAME", help=about)
    parser.add_argument("--rounds", type=int, metavar="N", help="default: each campaign's own")
    parser.add_argument("--callers", type=int, default=16, metavar="N", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: %(default)s")
    return parser.parse_args()


def run(name: str, folder: Path, args: argparse.Namespace) -> Tally:
    campaign, rounds, about = CAMPAIGNS[name]
    tally, started = Tally(name), time.monotonic()
    folder.mkdir()
    print(f"{name}: {about}, {args.rounds or rounds} rounds", file=sys.stderr, flush=True)
    draw = random.Random(f"{args.seed} {name}")
    campaign(folder, tally, args.rounds or rounds, args.callers, draw)
    verdict = "good" if tally.is_good else "NOT GOOD"
    print(f"  {verdict}, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return tally


def show(tallies: list[Tally]) -> None:
    """Print the numbers, and below them the most frequent notes."""
    table = Table()
    table.add_column("campaign")
    for title in NUMBERS:
        table.add_column(title, justify="right")
    for tally in tallies:
        table.add_row(tally.name, *(str(getattr(tally, number)) for number in NUMBERS))
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    for tally in tallies:
        for note, count in tally.notes.most_common(NOTES):
            console.print(f"{tally.name}: {count} x {note}", highlight=False, markup=False)


if __name__ == "__main__":
    sys.exit(main())
