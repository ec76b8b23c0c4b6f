# SPDX-License-Identifier: Apache-2.0
"""Serve an entry on a real tritonserver, ask for one picture, save it, and say where it is.

The last line of output is the path of the picture. With --gateway the picture comes through the
OpenAI-style gateway, and both go on serving until Ctrl-C.
"""

import argparse
import base64
import json
import signal
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from builder.commands.generate import check_output
from builder.console import busy, fail, say, warn
from builder.tritonserver.installation import ServerError, shared_memory_warning
from builder.tritonserver.server import Server, start_server
from triton_diffusers.client import DiffusersClient, DiffusersClientError, InvalidRequest, Result
from triton_diffusers.errors import ConfigError


def main() -> int:
    args = parse()
    log = Path(tempfile.mkdtemp(prefix="triton-diffusers-demo-")) / "tritonserver.log"
    if warning := shared_memory_warning():
        warn(warning)
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell lets its background jobs ignore SIGINT
        signal.signal(number, signal.default_int_handler)
    try:
        paths = serve_gateway(args, log) if args.gateway else draw(args, log)
    except ConfigError as error:
        fail(str(error))
        return 1
    except (ServerError, DiffusersClientError, OSError, RuntimeError) as error:
        if not isinstance(error, RuntimeError | InvalidRequest):  # what a caller can mend
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
    parser.add_argument(
        "--gateway", action="store_true", help="serve the OpenAI-style API and its page as well"
    )
    parser.add_argument(
        "--port", type=int, metavar="P", help="of the gateway; default: 8080, or a free one"
    )
    args = parser.parse_args()
    words = "".join(c if c.isalnum() else " " for c in args.prompt.lower()).split()
    args.output = args.output or ROOT / "out" / f"{words[-1] if words else 'picture'}.png"
    return args


def draw(args: argparse.Namespace, log: Path) -> list[Path]:
    """Start the server, draw, stop the server. Returns the files written."""
    with serve(args, log) as server:
        with DiffusersClient(server.grpc_url, model=args.model) as client, busy("drawing"):
            result = client.generate(prompt=args.prompt, seed=args.seed)
        paths = result.save(args.output)
        say(describe(args, result))
    return [path.resolve() for path in paths]


def serve_gateway(args: argparse.Namespace, log: Path) -> list[Path]:
    """Start server and gateway, draw through it, serve until Ctrl-C. Returns the files written."""
    from scripts.gateway_process import run_gateway

    port = args.port if args.port is not None else free_or_any(8080)
    with (
        serve(args, log) as server,
        tempfile.TemporaryDirectory() as folder,
        run_gateway(server.grpc_url, Path(folder), "--port", str(port)) as gateway,
    ):
        with busy("drawing"):
            answer = ask(f"{gateway.url}/v1/images/generations", args)
        args.output.write_bytes(base64.b64decode(answer["data"][0]["b64_json"]))
        say(f"the gateway drew {args.prompt!r} with seed {answer['seed']}: {args.output}")
        say(f"  page {gateway.url}/")
        say(f"  API  {gateway.url}/v1")
        say("ready  (Ctrl-C stops)")
        try:
            while gateway.process.poll() is None and server.is_running():
                time.sleep(0.2)
        except KeyboardInterrupt:
            say("stopping")
            return [args.output.resolve()]
        raise ServerError("the gateway or tritonserver ended by itself")


@contextmanager
def serve(args: argparse.Namespace, log: Path) -> Iterator[Server]:
    """Start a server with the entry, and say where it is."""
    args.output.parent.mkdir(parents=True, exist_ok=True)
    check_output(args.output)
    started = time.monotonic()
    with busy(f"starting tritonserver with {args.model}"):
        server = start_server(args.repository, [args.model], log=log)
    with server:
        say(f"tritonserver serves '{args.model}' after {time.monotonic() - started:.1f} s")
        say(f"  HTTP http://{server.http_url}   gRPC {server.grpc_url}")
        yield server


def ask(url: str, args: argparse.Namespace) -> Any:
    """Ask the gateway for a picture, as any client of OpenAI's API would."""
    body = {"prompt": args.prompt, "seed": args.seed, "model": args.model}
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=600) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise RuntimeError(json.load(error)["error"]["message"]) from None


def free_or_any(port: int) -> int:
    """Return the port where nothing listens on it, else 0: any."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            warn(f"port {port} is taken: the gateway takes a free one; choose one with --port")
            return 0
    return port


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
