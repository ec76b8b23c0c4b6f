# SPDX-License-Identifier: Apache-2.0
"""`ServeConfig` -> a pipeline on its device. Imports torch and diffusers inside its functions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError
from triton_diffusers.loading import features
from triton_diffusers.loading.arguments import (
    QUANTIZATION,
    dtype_names,
    load_single_file,
)
from triton_diffusers.loading.checks import check_alone
from triton_diffusers.loading.errors import explain_load
from triton_diffusers.loading.plan import LoadPlan, is_mapped, plan_load
from triton_diffusers.loading.progress import Log, moving_progress
from triton_diffusers.loading.warmup import warm_up
from triton_diffusers.loading.weights import fetch, load_watched
from triton_diffusers.pipelines.classes import import_diffusers
from triton_diffusers.pipelines.clip import answer_to_text_model
from triton_diffusers.pipelines.failures import forget
from triton_diffusers.pipelines.isolation import read_processors
from triton_diffusers.pipelines.loaded import LoadedPipeline
from triton_diffusers.pipelines.model_files import fetch_subfolder
from triton_diffusers.pipelines.notices import quiet_loading
from triton_diffusers.placement.devices import check_device, use_device
from triton_diffusers.placement.placement import place
from triton_diffusers.previews.previews import Previews
from triton_diffusers.quantization.plan import plan_quantization, verify_quantization


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
    _check_devices(plan)
    check_alone(config, device)
    use_device(device)
    notes = features.check(plan)
    call_kwargs, _ = plan.call_kwargs
    facts: dict[str, Any] = {}
    pipeline = _Load(plan, log, facts, notes).run()
    facts |= features.apply(pipeline, plan, notes, placed=True)
    previews = Previews(signature.is_video, log) if streams and signature.has_pictures else None
    notes += warm_up(pipeline, config, signature, call_kwargs, log, previews)
    return LoadedPipeline(
        pipeline=pipeline,
        signature=signature,
        config=config,
        device=device,
        dtype=dtype_names(plan.load_kwargs),
        versions={"diffusers": import_diffusers().__version__, "torch": torch.__version__},
        warnings=tuple(notes),
        call_kwargs=call_kwargs,
        processors=read_processors(pipeline),
        previews=previews,
        facts=facts,
    )


def _check_devices(plan: LoadPlan) -> None:
    check_device("device_map" if is_mapped(plan.config) else "device", plan.device)
    check_device("generator_device", plan.config.generator_device)


@dataclass(frozen=True)
class _Load:
    """One load, from the files to the pipeline on its device; `facts` and `notes` tell of it."""

    plan: LoadPlan
    log: Log
    facts: dict[str, Any]
    notes: list[str]

    def run(self) -> Any:
        """Load the weights, change the pipeline and place it. Raises ConfigError, in one line."""
        pipeline = None
        try:
            with quiet_loading():
                pipeline = self._read(self._fetch())
                self.facts.update(features.apply(pipeline, self.plan, self.notes, placed=False))
                answer_to_text_model(pipeline)
                self._place(pipeline)
                pipeline.set_progress_bar_config(disable=True)
                return pipeline
        except ConfigError as error:
            problem = str(error)
            forget(error)
        except Exception as error:
            source = self.plan.source
            local = source if isinstance(source, Path) else None
            problem = explain_load(error, self.plan.config, local)
            forget(error)
        # raised here and without it: a traceback would keep what was loaded in memory
        pipeline = None
        raise ConfigError(problem)

    def _fetch(self) -> LoadPlan:
        """Return the plan with the folder or the single file, downloaded where it is the hub's."""
        plan = self.plan
        if isinstance(plan.source, Path):
            return plan
        if plan.config.subfolder is not None:
            return plan.fetched(fetch_subfolder(plan.source, plan.config))
        return plan.fetched(fetch(plan.cls, plan.source, plan.load_kwargs, self.log))

    def _read(self, plan: LoadPlan) -> Any:
        """Load the weights, quantized where the entry asks for it."""
        kwargs = dict(plan.load_kwargs)
        if plan.single_file:
            return load_single_file(plan.cls, str(plan.source), kwargs, plan.entry)
        quantization = plan_quantization(
            plan.config, plan.components, plan.cls.__name__, plan.device
        )
        if quantization is not None:
            kwargs[QUANTIZATION] = quantization.config
            if quantization.on_gpu:
                kwargs.setdefault("device_map", "cuda")  # the current one: see use_device
        row = plan.placement
        stays = plan.device == "cpu" or (row is not None and row.option != "device_map")
        pipeline, report, notes = load_watched(
            plan.cls, Path(plan.source), plan.index or {}, kwargs, self.log, stays_on_cpu=stays
        )
        self.facts["load"] = report.as_json()
        self.notes.extend(notes)
        if quantization is not None:
            held = verify_quantization(pipeline, quantization).items()
            sizes = {n: {"bytes_before": before, "bytes": after} for n, (before, after) in held}
            self.facts["quantization"] = {"method": quantization.method, **sizes}
            self.notes.extend(quantization.warnings)
        return pipeline

    def _place(self, pipeline: Any) -> None:
        plan = self.plan
        total = self.facts.get("load", {}).get("bytes", 0)
        with moving_progress(self.log, plan.device, total):
            self.facts["placement"] = place(pipeline, plan.placement, plan.config, plan.device)
