# SPDX-License-Identifier: Apache-2.0
"""Why a model could not be had from the Hugging Face hub, in one line, with what to do."""

from collections.abc import Iterator
from pathlib import Path

from triton_diffusers.config.options import ServeConfig


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that led to it."""
    found: list[BaseException] = []
    following: list[BaseException | None] = [error]
    while following:
        each = following.pop()
        if each is not None and each not in found:
            found.append(each)
            yield each
            following += [each.__context__, each.__cause__]


def cache_folder() -> Path:
    """Return where the hub's models are kept."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def explain(error: BaseException, config: ServeConfig) -> str | None:
    """Word a failure of the hub, or return None where it is not the hub's."""
    from huggingface_hub import constants, errors

    model, page = config.model, f"{constants.ENDPOINT}/{config.model}"
    found = {type(e): e for e in chain(error)}
    kinds = tuple(found)

    def is_any(*wanted: type[BaseException]) -> bool:
        return any(issubclass(kind, wanted) for kind in kinds)

    if is_any(errors.GatedRepoError):
        return (
            f"model '{model}' is gated: accept its licence on {page} and start tritonserver with "
            "HF_TOKEN set to a token of that account"
        )
    status = max((_status(e) for e in found.values()), default=0)
    if is_any(errors.RepositoryNotFoundError):
        return (
            f"model '{model}' is not on the hub ({page}), or it is private: correct parameter "
            "'model', or start tritonserver with HF_TOKEN set to a token that may read it"
        )
    if is_any(errors.RevisionNotFoundError):
        return (
            f"model '{model}' has no revision '{config.revision}': set parameter 'revision' to a "
            f"branch, tag or commit of {page}, or remove it"
        )
    if status in (401, 403):
        return (
            f"the hub refuses model '{model}' (HTTP {status}): start tritonserver with HF_TOKEN "
            f"set to a valid token that may read {page}"
        )
    if status:
        return f"model '{model}' {_not_cached(config, f' (it answers HTTP {status})')}"
    if is_any(errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "no connection"
        return f"model '{model}' {_not_cached(config, f' ({reason})')}"
    return None


def _not_cached(config: ServeConfig, why: str) -> str:
    revision = f" --revision {config.revision}" if config.revision else ""
    return (
        f"cannot be fetched from the hub{why} and is not complete in the offline cache "
        f"({cache_folder()}); fill it where there is a network with: hf download {config.model}"
        f"{revision}; or give a local folder"
    )


def _status(error: BaseException) -> int:
    return int(getattr(getattr(error, "response", None), "status_code", 0) or 0)
