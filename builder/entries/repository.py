# SPDX-License-Identifier: Apache-2.0
"""The model repository on disk: names, writing an entry whole or not at all, removing one."""

import os
import re
import shutil
import tempfile
from pathlib import Path

from builder.entries.config_pbtxt import MODEL_PY
from triton_diffusers.errors import ConfigError, unknown

DEFAULT = "model_repository"
CONFIG = "config.pbtxt"
MODEL = Path("1", "model.py")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
OWN_FILES = {CONFIG, "1"}


def check_name(name: str) -> str:
    """Return the name, or raise ConfigError where Triton's URLs could not carry it."""
    if not NAME.fullmatch(name) or len(name) > 128:
        raise ConfigError(
            f"'{name}' cannot be a model's name: use letters, digits, '.', '_' and '-', starting "
            "with a letter or digit; choose one with --name"
        )
    return name


def entry_names(repository: Path) -> list[str]:
    """Return the names of all entries. Raises ConfigError when the folder does not exist."""
    try:
        if not repository.is_dir():
            raise ConfigError(
                f"model repository '{repository}' does not exist: choose one with --repository, or "
                "write its first entry with builder add-model"
            )
        return sorted(folder.name for folder in repository.iterdir() if _is_entry(folder))
    except OSError as error:
        raise ConfigError(
            f"model repository '{repository}' cannot be read: {error.strerror}"
        ) from None


def find_entry(repository: Path, name: str) -> Path:
    """Return the folder of an entry. Raises ConfigError with the near miss."""
    names = entry_names(repository)
    if name not in names:
        raise ConfigError(unknown("model", name, f"the repository '{repository}'", names))
    return repository / name


def read_config_text(folder: Path) -> str:
    """Return the text of an entry's config.pbtxt."""
    try:
        return (folder / CONFIG).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{folder / CONFIG} cannot be read: {reason}") from None


def check_free(repository: Path, name: str, force: bool) -> None:
    """Refuse to overwrite an entry unless forced, and never write through a link."""
    folder = repository / name
    if folder.is_symlink() or (folder / "1").is_symlink():
        raise ConfigError(f"'{folder}' is a link, which add-model does not write through")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"'{folder}' is in the way: it is not a folder; choose another --name")
    if not force and ((folder / CONFIG).exists() or (folder / MODEL).exists()):
        raise ConfigError(
            f"entry '{folder}' exists: pass --force to write its config.pbtxt and 1/model.py "
            "again, or choose another --name"
        )


def write_entry(repository: Path, name: str, config: str) -> Path:
    """Write an entry whole or not at all; other files of the folder are kept."""
    try:
        repository.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=repository))
    except OSError as error:
        raise ConfigError(f"cannot write to '{repository}': {error.strerror}") from None
    try:
        _stage(staged, config)
        return _publish(staged, repository / name)
    except OSError as error:
        raise ConfigError(f"cannot write '{repository / name}': {error.strerror}") from None
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def remove_entry(repository: Path, name: str, force: bool) -> None:
    """Remove an entry; weights or other files inside it need `force`. Links are not followed."""
    folder = find_entry(repository, check_name(name))
    try:
        _remove(folder, force)
    except OSError as error:
        raise ConfigError(
            f"cannot remove '{folder}': '{error.filename}': {error.strerror}"
        ) from None


def _is_entry(folder: Path) -> bool:
    """Tell whether a folder holds an entry; one that cannot be looked into may."""
    try:
        return (folder / CONFIG).is_file()
    except PermissionError:
        return NAME.fullmatch(folder.name) is not None


def _remove(folder: Path, force: bool) -> None:
    if folder.is_symlink():
        folder.unlink()
        return
    others = sorted(p.name for p in folder.iterdir() if p.name not in OWN_FILES)
    if others and not force:
        raise ConfigError(
            f"'{folder}' also holds {', '.join(others)}: pass --force to delete everything"
        )
    # hidden first, so that a server never sees half an entry
    doomed = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        folder.rename(doomed / folder.name)
    except OSError:
        doomed.rmdir()
        raise
    shutil.rmtree(doomed)


def _stage(folder: Path, config: str) -> None:
    (folder / CONFIG).write_text(config, encoding="utf-8")
    (folder / MODEL).parent.mkdir()
    (folder / MODEL).write_text(MODEL_PY, encoding="utf-8")
    # mkdtemp's 0700 would hide the entry from a server of another user
    umask = os.umask(0)
    os.umask(umask)
    folder.chmod(0o777 & ~umask)


def _publish(staged: Path, folder: Path) -> Path:
    if not folder.exists():
        return staged.rename(folder)
    (folder / MODEL).parent.mkdir(exist_ok=True)
    (staged / MODEL).replace(folder / MODEL)
    # last: a folder is an entry once it has a config.pbtxt
    (staged / CONFIG).replace(folder / CONFIG)
    return folder
