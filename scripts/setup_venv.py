# SPDX-License-Identifier: Apache-2.0
"""Make `.venv` in the checkout and install the package with extras; standard library only.

setup_venv.py [--is-current] EXTRA,EXTRA

A stamp inside `.venv` says what was installed from which files. It is removed before pip starts
and written when pip is done, so an interrupted install is taken up again.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "triton-diffusers-setup.json"
LOG = VENV / "setup.log"
CONSTRAINTS = ROOT / "constraints.txt"
SOURCES = (ROOT / "pyproject.toml", CONSTRAINTS)

REDIRECTIONS = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PYTHONHOME", "PYTHONPATH")
"""Variables with which pip or Python would look, or write, outside the environment."""
LARGE_MB = 20


def main() -> None:
    words = [word for word in sys.argv[1:] if word != "--is-current"]
    extras = set(words[0].split(",")) if words else {"server"}
    if "--is-current" in sys.argv:
        sys.exit(0 if is_current(extras) else 1)
    with only_one():
        if not (is_current(extras) and works()):
            set_up(extras)


def is_current(extras: set[str]) -> bool:
    """Tell whether the environment holds these extras, from the files as they are now."""
    stamp = read_stamp()
    return stamp.get("sources") == sources_hash() and extras <= set(stamp.get("extras", ()))


def set_up(extras: set[str]) -> None:
    """Make the environment where it is missing or broken, and install into it."""
    stamp = read_stamp()
    extras = extras | set(stamp.get("extras", ()))
    # scripts in an environment that was moved name its old place
    if not works() or stamp.get("venv", str(VENV)) != str(VENV):
        make_venv()
    STAMP.unlink(missing_ok=True)
    install(sorted(extras))
    written = {"sources": sources_hash(), "extras": sorted(extras), "venv": str(VENV)}
    STAMP.write_text(json.dumps(written) + "\n")


def read_stamp() -> dict:
    try:
        return json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}


def sources_hash() -> str:
    digest = hashlib.sha256(str(VENV).encode())
    for path in SOURCES:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def works() -> bool:
    """Tell whether the environment's Python and pip start."""
    try:
        command = [str(PYTHON), "-c", "import pip, sys; sys.exit(sys.prefix == sys.base_prefix)"]
        return subprocess.run(command, capture_output=True, env=environment()).returncode == 0
    except OSError:
        return False


def make_venv() -> None:
    say(f"making {VENV} with Python {sys.version.split()[0]} ({sys.executable})")
    command = [sys.executable, "-m", "venv", "--clear", str(VENV)]
    try:
        import ensurepip  # noqa: F401 - only whether it is there
    except ImportError:
        run([*command, "--without-pip"])
        run([sys.executable, "-m", "pip", "--python", str(PYTHON), "install", "--quiet", "pip"])
    else:
        run(command)
        # pip before 21.3 installs nothing editable without a setup.py
        old = "import pip, sys; sys.exit(int(pip.__version__.partition('.')[0]) < 22)"
        if subprocess.run([str(PYTHON), "-c", old], env=environment()).returncode:
            run([str(PYTHON), "-m", "pip", "install", "--quiet", "--upgrade", "pip"])


def install(extras: list[str]) -> None:
    """Install the package, editable, with the pinned set. On failure: pip's last lines, exit."""
    index = os.environ.get("TORCH_INDEX_URL")
    say(f"installing triton-diffusers[{','.join(extras)}] with the versions of constraints.txt")
    if not has_package("torch"):
        say_torch_size(index)
    command = [str(PYTHON), "-m", "pip", "install", "--progress-bar", "off"]
    command += ["--editable", f"{ROOT}[{','.join(extras)}]", "--constraint", str(CONSTRAINTS)]
    command += ["--extra-index-url", index] if index else []
    started = time.monotonic()
    with Progress() as progress:
        code = run_pip(command, progress)
    if code:
        tail = "\n".join(f"  | {line}" for line in LOG.read_text().splitlines()[-20:])
        sys.exit(
            f"{tail}\nerror: pip failed with exit code {code}; its whole output is in {LOG}. "
            "Run the command again when the cause is gone; what was downloaded is cached."
        )
    say(f"installed in {time.monotonic() - started:.0f} s")


def has_package(name: str) -> bool:
    command = [str(PYTHON), "-c", f"import importlib.util as u; u.find_spec({name!r}) or exit(1)"]
    return subprocess.run(command, env=environment()).returncode == 0


def say_torch_size(index: str | None) -> None:
    """Say how large this gets: PyPI's torch for Linux brings CUDA along."""
    if index:
        say(f"about 500 MB are downloaded, torch from {index}; this takes a few minutes")
    elif shutil.which("nvidia-smi"):
        say("about 3 GB are downloaded, mostly torch with CUDA; this takes several minutes")
    else:
        say(
            "torch comes from where pip is configured to look. From PyPI that is the CUDA build, "
            "about 3 GB, of little use to this machine; the CPU build is much smaller: "
            "TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu"
        )


class Progress:
    """Shows what pip does: on a terminal each step over the last, else large steps only.

    It keeps counting seconds while pip says nothing.
    """

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.live = sys.stderr.isatty()
        self.text = "starting pip"
        self.ended = threading.Event()
        self.clock = threading.Thread(target=self.tick, daemon=True)

    def __enter__(self) -> "Progress":
        self.clock.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        self.clock.join()
        if self.live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def tick(self) -> None:
        while not self.ended.wait(1 if self.live else 60):
            self.write(self.text, keep=not self.live)

    def show(self, line: str) -> None:
        text = line.strip()
        if text.startswith("Installing collected packages: "):
            count = text.count(",") + 1
            self.step(f"unpacking {count} packages", keep=True)
        elif match := re.match(r"(Downloading|Using cached|Processing) (\S+) ?(\(.*\))?", text):
            name, size = Path(match[2]).name.partition("-cp")[0], match[3] or ""
            self.step(f"{match[1].lower()} {name} {size}".rstrip(), keep=is_large(size))
        elif text.startswith(("Collecting ", "Building ", "Preparing ")):
            self.step(text[0].lower() + text[1:])

    def step(self, text: str, keep: bool = False) -> None:
        self.text = text
        self.write(text, keep)

    def write(self, text: str, keep: bool = False) -> None:
        line = f"{time.monotonic() - self.started:5.0f} s  {text}"
        if self.live:
            width = shutil.get_terminal_size().columns - 1
            end = "\n" if keep else ""
            print(f"\r\033[K{line[:width]}", end=end, file=sys.stderr, flush=True)
        elif keep:
            print(line, file=sys.stderr, flush=True)


def is_large(size: str) -> bool:
    match = re.match(r"\(([\d.]+) (MB|GB)", size)
    return bool(match) and (match[2] == "GB" or float(match[1]) >= LARGE_MB)


def run_pip(command: list[str], progress: Progress) -> int:
    with LOG.open("w", buffering=1) as log:
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with subprocess.Popen(command, env=environment(), cwd=ROOT, **pipe) as pip:
            try:
                for line in pip.stdout:
                    log.write(line)
                    progress.show(line)
            except KeyboardInterrupt:
                pip.terminate()
                sys.exit("interrupted; the next run goes on from here")
    return pip.returncode


def run(command: list[str]) -> None:
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    if done.returncode:
        text = (done.stderr or done.stdout).strip()
        sys.exit(f"{text}\nerror: this command failed: {' '.join(command)}")


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in REDIRECTIONS}


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Let one setup of a checkout run at a time; the others wait for it."""
    import fcntl

    with Path(__file__).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another setup of this checkout")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks
        yield


def say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
