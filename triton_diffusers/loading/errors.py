# SPDX-License-Identifier: Apache-2.0
"""Why a pipeline did not load or run, in one line: which component, which package, what to do."""

import pickle
import shutil
from pathlib import Path
from types import FrameType, TracebackType

from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import one_line
from triton_diffusers.pipelines import weight_files
from triton_diffusers.pipelines.failures import (
    GPU_FULL,
    NO_MEMORY,
    causes,
    refused_pickle,
    weight_file,
)
from triton_diffusers.pipelines.packages import missing_package

DAMAGED = ("EOFError", "JSONDecodeError", "KeyError", "SafetensorError", "UnpicklingError")
TORN_ZIP = "PytorchStreamReader"
"""What reads the archives that torch.save() writes, and names itself where one is cut short."""
DISK_FULL = ("No space left on device", "Disk quota exceeded", "File too large")


def explain_load(error: BaseException, config: ServeConfig, folder: Path | None = None) -> str:
    """Word the failure of from_pretrained() or download(). folder: the model's, where there is one.

    Call `forget` afterwards: what was loaded hangs on the error's traceback.
    """
    if found := _resources(error, config) or _of_hub(error, config):
        return found
    component = _component(error.__traceback__)
    of = f"component '{component}' of " if component else ""
    if pickled := refused_pickle(error):
        return f"{of}model '{config.model}' does not load: {pickled}"
    return (
        f"{of}model '{config.model}' does not load: {_told(error)}{_advice(error, config, folder)}"
    )


def _told(error: BaseException) -> str:
    """Return an error's text, or other words for one of torch that tells how to run any pickle."""
    if isinstance(error, pickle.UnpicklingError | EOFError):
        return f"{weight_file(error) or 'a file'} cannot be read as weights"
    return one_line(error).rstrip(".")


def component_of(frame: FrameType) -> str | None:
    """Return the component that a frame loads, where it is a pipeline's from_pretrained()."""
    code = frame.f_code
    if code.co_name != "from_pretrained" or "init_dict" not in code.co_varnames + code.co_cellvars:
        return None
    name = frame.f_locals.get("name")
    return name if isinstance(name, str) else None


def _component(trace: TracebackType | None) -> str | None:
    component = None
    while trace is not None:
        component = component_of(trace.tb_frame) or component
        trace = trace.tb_next
    return component


def _resources(error: BaseException, config: ServeConfig) -> str | None:
    """Word the want of disk, of the GPU's memory or of the host's."""
    texts = [f"{type(e).__name__}: {e}" for e in causes(error)]
    if any(words in text for words in DISK_FULL for text in texts):
        cache = cache_folder()
        free = shutil.disk_usage(next(p for p in (cache, *cache.parents) if p.exists())).free
        return (
            f"model '{config.model}' cannot be downloaded: the disk of {cache} is full "
            f"({free / 2**30:.1f} GiB free); free some or set HF_HOME to a folder on a larger one"
        )
    component = _component(error.__traceback__)
    of = f"component '{component}' of " if component else ""
    if any(word in text for word in GPU_FULL for text in texts):
        return (
            f"{of}model '{config.model}' does not fit the GPU's memory; free the GPU, or set "
            "quantization_config, enable_cpu_offload or a smaller dtype"
        )
    if isinstance(error, MemoryError) or any(w in text for w in NO_MEMORY for text in texts):
        return (
            f"{of}model '{config.model}' does not fit the host's memory; give the machine or the "
            "container more, or set the dtype that its files hold (they are then not copied)"
        )
    return None


def _advice(error: BaseException, config: ServeConfig, folder: Path | None) -> str:
    if package := missing_package(error):
        return f"; {package}"
    text = str(error)
    if config.variant and (config.variant in text or "no such modeling files" in text):
        return f"; set parameter 'variant' to one that {_variants(folder)}, or remove it"
    if config.use_safetensors and ".safetensors" in text:
        return (
            "; it has no safetensors files: remove use_safetensors to load its .bin files, or "
            "choose a model or revision that has them"
        )
    if config.use_safetensors is False and ".bin" in text:
        return "; it has no .bin files: remove use_safetensors to load its safetensors files"
    if isinstance(error, OSError) or type(error).__name__ in DAMAGED or TORN_ZIP in text:
        how = "copy or download it again" if folder else f"download it: hf download {config.model}"
        # what is not loaded is not downloaded, so that nothing here shows that there is a variant
        or_variant = folder is None and not config.variant and "no file named" in text
        only = "; if all its files are such as model.fp16.safetensors, set parameter 'variant'"
        return f"; the model is incomplete or damaged: {how}{only if or_variant else ''}"
    return ""


def _variants(folder: Path | None) -> str:
    """Say which variants a model has."""
    if folder is None:
        return "its page on the hub lists (fp16 means files such as model.fp16.safetensors)"
    there = ", ".join(sorted(weight_files.variants(folder)))
    return f"{folder} has ({there or 'it has none'})"


def cache_folder() -> Path:
    """Return where the hub's models are kept."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _of_hub(error: BaseException, config: ServeConfig) -> str | None:
    """Word a failure of the hub, or return None where it is not the hub's."""
    from huggingface_hub import constants, errors

    model, page = config.model, f"{constants.ENDPOINT}/{config.model}"
    found = {type(e): e for e in causes(error)}
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
