# SPDX-License-Identifier: Apache-2.0
"""`ServeConfig` -> a pipeline on its device. Imports torch and diffusers inside its functions."""

from pathlib import Path
from typing import Any

from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError
from triton_diffusers.loading import features
from triton_diffusers.loading.arguments import dtype_names, load_single_file
from triton_diffusers.loading.errors import explain_load
from triton_diffusers.loading.plan import Loading, LoadPlan, plan_load
from triton_diffusers.loading.progress import Log
from triton_diffusers.loading.weights import fetch, load_watched
from triton_diffusers.pipelines.classes import import_diffusers
from triton_diffusers.pipelines.failures import forget
from triton_diffusers.pipelines.isolation import read_processors
from triton_diffusers.pipelines.loaded import LoadedPipeline
from triton_diffusers.pipelines.model_files import fetch_subfolder
from triton_diffusers.pipelines.notices import quiet_loading
from triton_diffusers.placement.devices import check_device, use_device
from triton_diffusers.previews.previews import Previews


def load_pipeline(
    config: ServeConfig,
    entry: Path,
    device: str,
    log: Log = lambda text: None,
    streams: bool = False,
) -> LoadedPipeline:
    """Load the pipeline of an entry and change it as its options say.

    device: the instance's. log: gets progress, a line at a time. streams: whether previews may be
    asked for. Raises ConfigError, in one line, for what the operator set and for what does not
    load.
    """
    return load_planned(plan_load(config, entry, device), log, streams)


def load_planned(
    plan: LoadPlan, log: Log = lambda text: None, streams: bool = False
) -> LoadedPipeline:
    """Check a plan and load by it; see `load_pipeline`."""
    import torch

    config, signature, device = plan.config, plan.signature, plan.device
    if config.cpu_threads is not None:
        torch.set_num_threads(config.cpu_threads)
    for option, name in plan.devices.items():
        check_device(option, name)
    features.check_alone(config, device)
    use_device(device)
    loading = Loading(log, warnings=features.check(plan))
    if streams and signature.has_pictures:
        loading.previews = Previews(signature.is_video, log)
    pipeline = _read_and_place(plan, loading)
    features.apply(pipeline, plan, loading, placed=True)
    return LoadedPipeline(
        pipeline=pipeline,
        signature=signature,
        config=config,
        device=device,
        dtype=dtype_names(plan.load_kwargs),
        versions={"diffusers": import_diffusers().__version__, "torch": torch.__version__},
        warnings=tuple(loading.warnings),
        call_kwargs=plan.call_kwargs[0],
        processors=read_processors(pipeline),
        previews=loading.previews,
        facts=loading.facts,
    )


def _read_and_place(plan: LoadPlan, loading: Loading) -> Any:
    """Load the weights, change the pipeline and place it. Raises ConfigError, in one line."""
    pipeline = None
    try:
        with quiet_loading():
            ready = _fetch(plan, loading.log)
            pipeline = _read(ready, loading)
            features.apply(pipeline, ready, loading, placed=False)
            pipeline.set_progress_bar_config(disable=True)
            return pipeline
    except ConfigError as error:
        problem = str(error)
        forget(error)
    except Exception as error:
        local = plan.source if isinstance(plan.source, Path) else None
        problem = explain_load(error, plan.config, local)
        forget(error)
    # raised here and without it: a traceback would keep what was loaded in memory
    pipeline = None
    raise ConfigError(problem)


def _fetch(plan: LoadPlan, log: Log) -> LoadPlan:
    """Return the plan with the folder or the single file, downloaded where it is the hub's."""
    if isinstance(plan.source, Path):
        return plan
    if plan.config.subfolder is not None:
        return plan.fetched(fetch_subfolder(plan.source, plan.config))
    return plan.fetched(fetch(plan.cls, plan.source, plan.load_kwargs, log))


def _read(plan: LoadPlan, loading: Loading) -> Any:
    """Load the weights, quantized where the entry asks for it."""
    kwargs = features.arguments(plan)
    if plan.single_file:
        return load_single_file(plan.cls, str(plan.source), kwargs, plan.entry)
    row = plan.placement
    stays = plan.device == "cpu" or (row is not None and row.option != "device_map")
    pipeline, report, notes = load_watched(
        plan.cls, Path(plan.source), plan.index or {}, kwargs, loading.log, stays_on_cpu=stays
    )
    loading.facts["load"] = report.as_json()
    loading.warnings += notes
    return pipeline
