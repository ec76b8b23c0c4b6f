# SPDX-License-Identifier: Apache-2.0
"""The jobs' files, in a folder or any store that fsspec knows. Every method blocks.

Names are made by the gateway: a job's id and a suffix, never a text from a request.
"""

import re
from collections.abc import Iterator
from datetime import datetime, timezone

import fsspec

from triton_diffusers.errors import ConfigError

CHUNK_BYTES = 2**20

OURS = re.compile(r"(video_[0-9a-f]{32})[.-][\w.-]+")
"""The name of a job's file; nothing else in the folder is touched."""


class JobFiles:
    """The files of the jobs. url: a folder, or a URL such as s3://BUCKET/FOLDER.

    Raises ConfigError where the store cannot be opened.
    """

    def __init__(self, url: str):
        try:
            self._store, self._folder = fsspec.core.url_to_fs(url)
            self._store.makedirs(self._folder, exist_ok=True)
        except (ImportError, ValueError, OSError) as error:
            raise ConfigError(
                f"the jobs' files cannot be kept in {url}: {error}. "
                "Name a folder, or a URL that fsspec opens, such as s3://BUCKET/FOLDER."
            ) from None

    def write(self, name: str, content: bytes) -> None:
        """Store a file."""
        self._store.pipe_file(self._path(name), content)

    def read(self, name: str) -> bytes:
        """Return a whole file. Raises FileNotFoundError."""
        content: bytes = self._store.cat_file(self._path(name))
        return content

    def size(self, name: str) -> int:
        """Return the number of bytes. Raises FileNotFoundError."""
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
        """Remove files; those that are gone already are fine."""
        for name in names:
            try:
                self._store.rm_file(self._path(name))
            except FileNotFoundError:
                continue

    def older_than(self, age_s: float) -> dict[str, str]:
        """Return the old files of jobs: name -> the job's id. Empty where no age is known."""
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
