# SPDX-License-Identifier: Apache-2.0
"""`ServeConfig` -> a pipeline on its device. Imports torch and diffusers inside its functions."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_diffusers import families
from triton_diffusers.attention.choice import check_environment, choose_attention
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError
from triton_diffusers.loading.arguments import (
    QUANTIZATION,
    check_dtypes,
    dtype_names,
    dtype_of,
    load_kwargs,
    load_single_file,
)
from triton_diffusers.loading.checks import check_early, check_needed_components, check_options
from triton_diffusers.loading.errors import explain_load
from triton_diffusers.loading.modules import (
    cast_layerwise,
    compile_denoisers,
    enable_vae_options,
    use_channels_last,
)
from triton_diffusers.loading.progress import Log, moving_progress
from triton_diffusers.loading.scheduler import replace_scheduler
from triton_diffusers.loading.warmup import first_arguments, warm_up
from triton_diffusers.loading.weights import fetch, load_watched
from triton_diffusers.lora.adapters import load_lora
from triton_diffusers.pipelines.classes import find_pipeline_class, import_diffusers
from triton_diffusers.pipelines.failures import forget
from triton_diffusers.pipelines.isolation import read_processors, why_not_beside
from triton_diffusers.pipelines.loaded import LoadedPipeline
from triton_diffusers.pipelines.model_files import (
    component_classes,
    fetch_subfolder,
    find_model,
    is_single_file,
    read_index,
)
from triton_diffusers.pipelines.notices import quiet_loading
from triton_diffusers.pipelines.signature import read_signature
from triton_diffusers.placement.devices import check_device, use_device
from triton_diffusers.placement.placement import check_placement, choose_placement, place
from triton_diffusers.previews.previews import Previews
from triton_diffusers.quantization.plan import Quantization, plan_quantization, verify_quantization


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
    check_environment()
    diffusers = import_diffusers()
    import torch

    twice, config = config.given_twice(), config.lifted()
    if config.cpu_threads is not None:
        torch.set_num_threads(config.cpu_threads)
    cls = find_pipeline_class(config, entry)
    signature = read_signature(cls)
    device = _device(config, device)
    call_kwargs, notes = check_options(config, cls, signature, entry, device)
    notes = [*twice, *notes, *check_early(config, cls, entry)]
    facts: dict[str, Any] = {}
    kwargs = load_kwargs(config, cls, device, is_single_file(find_model(config, entry)))
    pipeline = _Load(config, entry, cls, device, kwargs, log, facts, notes).run()
    probed_with = call_kwargs | first_arguments(config)
    attention = choose_attention(pipeline, config, signature, probed_with, device)
    facts["attention_backend"] = attention.active
    if attention.attempts:
        facts["attention_attempts"] = [_without_none(a) for a in attention.attempts]
    notes += attention.warnings
    if compiled := compile_denoisers(pipeline, config):
        facts["compiled"] = compiled
    if config.step_batching and (reason := why_not_beside(pipeline)):
        raise ConfigError(f"parameter 'step_batching' cannot be used with {cls.__name__}: {reason}")
    previews = Previews(signature.is_video, log) if streams and signature.has_pictures else None
    notes += warm_up(pipeline, config, signature, call_kwargs, log, previews)
    return LoadedPipeline(
        pipeline=pipeline,
        signature=signature,
        config=config,
        device=device,
        dtype=dtype_names(kwargs),
        versions={"diffusers": diffusers.__version__, "torch": torch.__version__},
        warnings=tuple(notes),
        call_kwargs=call_kwargs,
        processors=read_processors(pipeline),
        previews=previews,
        facts=facts,
    )


def _without_none(attempt: Any) -> dict[str, str]:
    return {n: v for n, v in dataclasses.asdict(attempt).items() if v is not None}


def _device(config: ServeConfig, instance: str) -> str:
    """Return the device to run on: the entry's, else the instance's. Checks that it is there."""
    mapped = config.device_map not in (None, "cpu")
    device = config.device or ("cuda" if mapped else instance)
    check_device("device_map" if mapped else "device", device)
    check_device("generator_device", config.generator_device)
    check_placement(config, device)
    use_device(device)
    return device


@dataclass(frozen=True)
class _Load:
    """One load, from the files to the pipeline on its device; `facts` and `notes` tell of it."""

    config: ServeConfig
    entry: Path
    cls: Any
    device: str
    kwargs: dict[str, Any]
    log: Log
    facts: dict[str, Any]
    notes: list[str]

    def run(self) -> Any:
        """Load the weights, change the pipeline and place it. Raises ConfigError, in one line."""
        model = find_model(self.config, self.entry)
        pipeline = None
        try:
            with quiet_loading():
                pipeline = self._read(self._fetch(model))
                self._change(pipeline)
                self._place(pipeline)
                pipeline.set_progress_bar_config(disable=True)
                return pipeline
        except ConfigError as error:
            problem = str(error)
            forget(error)
        except Exception as error:
            local = model if isinstance(model, Path) else None
            problem = explain_load(error, self.config, local)
            forget(error)
        # raised here and without it: a traceback would keep what was loaded in memory
        pipeline = None
        raise ConfigError(problem)

    def _fetch(self, model: Path | str) -> Path:
        """Return the folder or the single file of the model, downloaded where it is the hub's."""
        if isinstance(model, str) and self.config.subfolder is not None:
            return fetch_subfolder(model, self.config)
        return fetch(self.cls, model, self.kwargs, self.log)

    def _read(self, model: Path) -> Any:
        """Load the weights, quantized where the entry asks for it."""
        if is_single_file(model):
            return load_single_file(self.cls, str(model), self.kwargs, self.entry)
        plan, kwargs = self._plan(model), dict(self.kwargs)
        if plan is not None:
            kwargs[QUANTIZATION] = plan.config
            if plan.on_gpu:
                kwargs.setdefault("device_map", "cuda")  # the current one: see use_device
        row = choose_placement(self.config)
        stays = self.device == "cpu" or (row is not None and row.option != "device_map")
        pipeline, report, notes = load_watched(
            self.cls, model, kwargs, self.log, stays_on_cpu=stays
        )
        self.facts["load"] = report.as_json()
        self.notes.extend(notes)
        if plan is not None:
            held = verify_quantization(pipeline, plan).items()
            sizes = {n: {"bytes_before": before, "bytes": after} for n, (before, after) in held}
            self.facts["quantization"] = {"method": plan.method, **sizes}
            self.notes.extend(plan.warnings)
        return pipeline

    def _plan(self, model: Path) -> Quantization | None:
        if not self.config.is_quantized:
            return None
        components = component_classes(read_index(model, self.config))
        return plan_quantization(self.config, components, self.cls.__name__, self.device)

    def _change(self, pipeline: Any) -> None:
        """Apply the options that change a loaded pipeline before it is placed."""
        config, facts = self.config, self.facts
        there = [n for n, component in pipeline.components.items() if component is not None]
        check_needed_components(config, type(pipeline).__name__, there)
        check_dtypes(pipeline, config)
        family = families.find(type(pipeline).__name__)
        if family and family.after_load:
            family.after_load(pipeline, config)
        self.notes.extend(replace_scheduler(pipeline, config))
        if config.scheduler is not None:
            facts["scheduler"] = type(pipeline.scheduler).__name__
        if layers := load_lora(pipeline, config, self.entry, self.notes):
            facts["lora_layers"] = layers
        if cast := cast_layerwise(pipeline, config, dtype_of(self.kwargs)):
            facts["layerwise_casting"] = cast
        if changed := use_channels_last(pipeline, config):
            facts["channels_last"] = changed
        enable_vae_options(pipeline, config)

    def _place(self, pipeline: Any) -> None:
        row = check_placement(self.config, self.device)
        total = self.facts.get("load", {}).get("bytes", 0)
        with moving_progress(self.log, self.device, total):
            self.facts["placement"] = place(pipeline, row, self.config, self.device)
