# SPDX-License-Identifier: Apache-2.0
"""Lines in the log while a large model is downloaded or loaded: how far it is."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from triton_diffusers.loading.errors import component_of

FIRST_S = 2.0
EVERY_S = 5.0
GIB = 2**30
Log = Callable[[str], None]


@contextmanager
def progress(
    log: Log, what: Callable[[], str], measure: Callable[[], int], total: int = 0
) -> Iterator[None]:
    """Log every few seconds how much `measure` has grown; nothing for what is done in two.

    total: bytes that are expected, 0 where nobody knows. A log that fails ends the lines only.
    """
    started, before = time.monotonic(), measure()
    done = threading.Event()

    def watch() -> None:
        wait_s = FIRST_S
        while not done.wait(wait_s):
            wait_s = EVERY_S
            grown = f"{max(0, measure() - before) / GIB:.1f}"
            of = f"{grown} of {total / GIB:.1f} GiB" if total else f"{grown} GiB so far"
            log(f"{what()}: {of}, {time.monotonic() - started:.0f} s")

    watcher = threading.Thread(target=watch, name="load progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


@contextmanager
def download_progress(log: Log, model: str, cache: Path | None = None) -> Iterator[None]:
    """Log how much of a hub model has arrived in the hub's cache."""
    folder = repository_cache(model, cache)
    with progress(log, lambda: f"downloading {model}", lambda: folder_bytes(folder)):
        yield


@contextmanager
def loading_progress(log: Log, total: int = 0) -> Iterator[None]:
    """Log which component this thread loads and how much memory has been filled."""
    thread = threading.get_ident()

    def what() -> str:
        return f"loading {_component(thread) or 'the pipeline'}"

    with progress(log, what, filled_bytes, total):
        yield


@contextmanager
def moving_progress(log: Log, device: str, total: int = 0) -> Iterator[None]:
    """Log how much of the weights has arrived on the device."""
    with progress(log, lambda: f"moving the weights to {device}", device_bytes, total):
        yield


def filled_bytes() -> int:
    """Return the memory of this process that holds copies: its own, and PyTorch's on devices.

    Weights that are mapped from their file count only once they are on a device.
    """
    with open("/proc/self/status", encoding="ascii") as status:
        own = sum(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon:"))
    return own + device_bytes()


def device_bytes() -> int:
    """Return what PyTorch's tensors take on CUDA devices; 0 before the first is used."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    cuda = torch.cuda
    return sum(int(cuda.memory_allocated(i)) for i in range(cuda.device_count()))


def repository_cache(model: str, cache: Path | None = None) -> Path:
    """Return the folder of the hub's cache into which a model is downloaded."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    name = repo_folder_name(repo_id=model, repo_type="model")
    return Path(cache or constants.HF_HUB_CACHE) / name / "blobs"


def folder_bytes(folder: Path) -> int:
    """Return what a folder's files take on disk; a file may vanish meanwhile."""
    total = 0
    for file in folder.glob("*"):
        try:
            total += file.stat().st_blocks * 512  # a file being fetched may have its full length
        except OSError:
            continue
    return total


def _component(thread: int) -> str | None:
    """Return the component that from_pretrained() is loading in a thread."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if name := component_of(frame):
            return name
        frame = frame.f_back
    return None
