# SPDX-License-Identifier: Apache-2.0
"""Serve an entry on a real tritonserver, ask for one picture, save it, and say where it is.

The last line of output is the path of the picture.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from builder.console import busy, fail, say, warn
from builder.installation import ServerError, shared_memory_warning
from builder.tritonserver import start_server
from triton_diffusers.client import DiffusersClient, DiffusersClientError, Result

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    args = parse()
    log = Path(tempfile.mkdtemp(prefix="triton-diffusers-demo-")) / "tritonserver.log"
    if warning := shared_memory_warning():
        warn(warning)
    try:
        paths = draw(args, log)
    except (ServerError, DiffusersClientError, OSError) as error:
        for line in tail(log):
            print(f"  | {line}", file=sys.stderr)
        fail(f"{error} (the server's log: {log})")
        return 1
    except KeyboardInterrupt:
        fail("interrupted")
        return 1
    for path in paths:
        say(str(path))
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("prompt", nargs="?", default="a handwritten seven", metavar="PROMPT")
    parser.add_argument("--seed", type=int, default=7, help="another seed, another picture")
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: out/WORD.png")
    parser.add_argument("--model", default="demo", metavar="NAME", help="another entry")
    parser.add_argument("--repository", type=Path, default=ROOT / "model_repository", metavar="DIR")
    args = parser.parse_args()
    words = "".join(c if c.isalnum() else " " for c in args.prompt.lower()).split()
    args.output = args.output or ROOT / "out" / f"{words[-1] if words else 'picture'}.png"
    return args


def draw(args: argparse.Namespace, log: Path) -> list[Path]:
    """Start the server, draw, stop the server. Returns the files written."""
    args.output.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with busy(f"starting tritonserver with {args.model}"):
        server = start_server(args.repository, [args.model], log=log)
    with server:
        say(f"tritonserver serves '{args.model}' after {time.monotonic() - started:.1f} s")
        say(f"  HTTP http://{server.http_url}   gRPC {server.grpc_url}")
        with DiffusersClient(server.grpc_url, model=args.model) as client, busy("drawing"):
            result = client.generate(prompt=args.prompt, seed=args.seed)
        paths = result.save(args.output)
        say(describe(args, result))
    return [path.resolve() for path in paths]


def describe(args: argparse.Namespace, result: Result) -> str:
    info = result.info
    seconds = info.get("seconds", {}).get("pipeline", 0.0)
    return (
        f"{info.get('pipeline_class')} drew {args.prompt!r} with seed {result.seeds[0]} in "
        f"{seconds:.1f} s ({info.get('steps')} steps)"
    )


def tail(log: Path, lines: int = 30) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-lines:] if log.exists() else []


if __name__ == "__main__":
    sys.exit(main())
