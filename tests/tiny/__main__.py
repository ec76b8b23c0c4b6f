# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.tiny FOLDER [NAME...]` writes tiny pipelines; existing ones are kept."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.tiny import TINY, save


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tiny", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TINY))
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(TINY)):
        parser.error(f"unknown: {', '.join(unknown)}; there are: {', '.join(TINY)}")
    for name in arguments.names or TINY:
        if (arguments.folder / name / "model_index.json").exists():
            print(f"kept {name}")
        else:
            print(f"wrote {save(name, arguments.folder)}")


if __name__ == "__main__":
    main()
