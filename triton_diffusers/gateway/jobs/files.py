# SPDX-License-Identifier: Apache-2.0
"""The jobs' files, in a folder or any store that fsspec knows. Every method blocks.

Each raises FilesError where the store fails, whatever its own errors are: a disk that is full, a
bucket that does not answer. Names are made by the gateway: a job's id and a suffix, never a text
from a request.
"""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem

from triton_diffusers.errors import ConfigError, one_line

LOG = logging.getLogger(__name__)

CHUNK_BYTES = 2**20

OURS = re.compile(r"(video_[0-9a-f]{32})[.-][\w.-]+")
"""The name of a job's file; nothing else in the folder is touched."""


class FilesError(Exception):
    """The store of the jobs' files fails."""


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, FilesError):
        raise
    except Exception as error:  # each store has its own kinds
        raise FilesError(one_line(error)) from error


class JobFiles:
    """The files of the jobs. url: a folder, or a URL such as s3://BUCKET/FOLDER.

    Raises ConfigError where the store cannot be opened.
    """

    def __init__(self, url: str):
        try:
            self._store, self._folder = fsspec.core.url_to_fs(url)
            if isinstance(self._store, LocalFileSystem):
                Path(self._folder).mkdir(mode=0o700, parents=True, exist_ok=True)
            else:
                self._store.makedirs(self._folder, exist_ok=True)
        except (ImportError, ValueError, OSError) as error:
            raise ConfigError(
                f"the jobs' files cannot be kept in {url}: {error}. "
                "Name a folder, or a URL that fsspec opens, such as s3://BUCKET/FOLDER."
            ) from None

    def write(self, name: str, content: bytes) -> None:
        """Store a file. One that could not be written whole is removed."""
        try:
            with _told():
                self._put(self._path(name), content)
        except FileNotFoundError as error:  # the folder is gone
            raise FilesError(one_line(error)) from None
        except FilesError:
            self.remove(name)
            raise

    def _put(self, path: str, content: bytes) -> None:
        """Write a file; in a folder only its owner can read it."""
        if not isinstance(self._store, LocalFileSystem):
            self._store.pipe_file(path, content)
            return
        with open(path, "wb", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
            file.write(content)

    def read(self, name: str) -> bytes:
        """Return a whole file. Raises FileNotFoundError."""
        with _told():
            content: bytes = self._store.cat_file(self._path(name))
        return content

    def size(self, name: str) -> int:
        """Return the number of bytes. Raises FileNotFoundError."""
        with _told():
            return int(self._store.info(self._path(name))["size"])

    def chunks(self, name: str, start: int, end: int) -> Iterator[bytes]:
        """Return the bytes from `start` up to `end`, which is left out, piece by piece."""
        with self._store.open(self._path(name), "rb") as file:
            file.seek(start)
            while start < end:
                piece: bytes = file.read(min(CHUNK_BYTES, end - start))
                if not piece:
                    return
                start += len(piece)
                yield piece

    def remove(self, *names: str) -> None:
        """Remove files; those that are gone already are fine.

        One that cannot be removed now is told in the log; it belongs to no job, and is among those
        that older_than() returns.
        """
        for name in names:
            try:
                with _told():
                    self._store.rm_file(self._path(name))
            except FileNotFoundError:
                continue
            except FilesError as error:
                LOG.warning("the file %s cannot be removed: %s", name, error)

    def older_than(self, age_s: float) -> dict[str, str]:
        """Return the old files of jobs: name -> the job's id. Empty where no age is known."""
        with _told():
            names = [path.rpartition("/")[2] for path in self._store.ls(self._folder, detail=False)]
            found = {name: match[1] for name in names if (match := OURS.fullmatch(name))}
            try:
                return {n: id for n, id in found.items() if self._age_s(n) > age_s}
            except NotImplementedError:
                return {}

    def _age_s(self, name: str) -> float:
        try:
            modified: datetime = self._store.modified(self._path(name))
        except FileNotFoundError:  # removed since it was listed
            return 0.0
        if modified.tzinfo is None:
            modified = modified.replace(tzinfo=timezone.utc)
        return (datetime.now(timezone.utc) - modified).total_seconds()

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"
