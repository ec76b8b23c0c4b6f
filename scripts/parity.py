#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Hold served pipelines against plain diffusers, element for element.

Each folder is called by plain diffusers in a fresh process and served by a real tritonserver from
an entry that builder writes; the answers over gRPC and HTTP must be identical to the last bit.

  scripts/parity.py model_repository/demo/pipeline --set height=64 --set width=64
  scripts/parity.py --tiny                 all tiny pipelines of the tests, with their own inputs
  scripts/parity.py --tiny flux wan-t2v    some of them
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, as_completed
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from PIL import Image
from rich.console import Console
from rich.table import Table

from tests.parity.arguments import guess_inputs, is_media
from tests.parity.fresh import call_fresh
from tests.parity.plain import PlainCall, class_of
from tests.parity.run import Outcome, Runner, describe_inputs

MakeCall = Callable[[], PlainCall]


def main() -> int:
    args = parse()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        outcomes = run(dict(tasks(args, Path(folder))), Path(folder), args.workers)
    show(outcomes)
    identical = sum(outcome.is_identical for outcome in outcomes)
    alike = sum(outcome.fails_alike for outcome in outcomes)
    note = f", {alike} fail in plain diffusers too" if alike else ""
    print(f"{time.monotonic() - started:.0f} s with {args.threads} thread(s) each{note}")
    print(f"{identical} of {len(outcomes)} identical")
    return 0 if identical + alike == len(outcomes) and identical else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", metavar="MODEL_DIR", help="with model_index.json")
    parser.add_argument("--tiny", action="store_true", help="MODEL_DIRs are tiny pipelines' names")
    parser.add_argument("--pipeline-class", metavar="C", help="instead of model_index.json's")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=read_setting,
        metavar="NAME=JSON",
        help="an argument of the call; null leaves it out; pictures as paths",
    )
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument("--seed", type=int, default=7, metavar="N", help="default: 7")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="models at a time")
    args = parser.parse_args()
    if not args.folders and not args.tiny:
        parser.error("name a folder, or --tiny")
    return args


def read_setting(text: str) -> tuple[str, Any]:
    """NAME=JSON; what is no JSON is taken as text. Paths of pictures are opened."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=JSON")
    try:
        read = json.loads(value)
    except ValueError:
        read = value
    return name, open_pictures(read) if is_media(name) else read


def open_pictures(value: Any) -> Any:
    if isinstance(value, list):
        return [open_pictures(item) for item in value]
    if value is None:
        return None
    try:
        return Image.open(value).convert("RGB")
    except OSError as error:
        raise argparse.ArgumentTypeError(f"'{value}': {error}") from None


def tasks(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, MakeCall]]:
    """Yield (entry name, how to get the call) for every model asked for."""
    if args.tiny:
        from tests.tiny import TINY

        for name in args.folders or TINY:
            if name not in TINY:
                raise SystemExit(f"no tiny pipeline '{name}'; there are: {', '.join(TINY)}")
            yield name, partial(tiny_call, name, folder / "tiny", args)
        return
    for index, given in enumerate(args.folders):
        path = Path(given).resolve()
        if not (path / "model_index.json").is_file():
            raise SystemExit(f"'{given}' has no model_index.json")
        yield f"model-{index}-{path.name.lower()}", partial(folder_call, path, args)


def tiny_call(name: str, folder: Path, args: argparse.Namespace) -> PlainCall:
    from tests.tiny import TINY, save

    call_fresh(save, name, folder)
    tiny = TINY[name]
    return make_call(folder / name, tiny.inputs(), args, tiny.load_kwargs)


def folder_call(folder: Path, args: argparse.Namespace) -> PlainCall:
    inputs = call_fresh(guess_inputs, args.pipeline_class or class_of(folder))
    return make_call(folder, inputs, args, {})


def make_call(
    folder: Path, inputs: dict[str, Any], args: argparse.Namespace, load_kwargs: dict[str, Any]
) -> PlainCall:
    merged = {n: v for n, v in (inputs | dict(args.set)).items() if v is not None}
    return PlainCall(
        folder, merged, (args.seed,), args.pipeline_class, load_kwargs, threads=args.threads
    )


def run(todo: dict[str, MakeCall], folder: Path, workers: int) -> list[Outcome]:
    """Run all; a line on stderr for each, as they end. The result is in the order given."""
    with Runner(folder / "served", workers) as runner:
        futures: dict[Future[Outcome], str] = {
            runner.submit(name, make): name for name, make in todo.items()
        }
        for done, future in enumerate(as_completed(futures), 1):
            name, error = futures[future], future.exception()
            text = future.result().verdict if error is None else f"{type(error).__name__}: {error}"
            print(f"[{done}/{len(todo)}] {name}: {text}", file=sys.stderr, flush=True)
    return [
        future.result() if future.exception() is None else broken(name, future.exception())
        for future, name in futures.items()
    ]


def broken(name: str, error: BaseException | None) -> Outcome:
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return Outcome(name, PlainCall(Path(name), {}), problems=[text])


def show(outcomes: list[Outcome]) -> None:
    table = Table(show_lines=True)
    for title in ("model", "class", "arguments", "outputs", "identical?", "seconds"):
        table.add_column(title, overflow="fold", justify="right" if title == "seconds" else "left")
    for outcome in outcomes:
        table.add_row(
            outcome.name,
            outcome.pipeline_class,
            describe_inputs(outcome.call.inputs),
            "\n".join(f"{n} {shape}" for n, shape in outcome.outputs.items()),
            "yes" if outcome.is_identical else outcome.verdict,
            "\n".join(f"{stage} {s:.1f}" for stage, s in outcome.seconds.items()),
        )
    width = None if sys.stdout.isatty() else 160
    Console(width=width).print(table)


if __name__ == "__main__":
    sys.exit(main())
