# SPDX-License-Identifier: Apache-2.0
"""Options of comparable servers that are not served: refused by name, with the reason."""

ONE_PROCESS = (
    "one instance runs in one process, on one device; for more throughput, give the entry more "
    "instances or GPUs (builder add-model --gpus 0,1); for a model that does not fit, set "
    "'device_map' to 'balanced', or use an offload option"
)
LATER = "it is not part of this version; remove it"
EAGER = "pipelines run eagerly unless torch_compile says otherwise; remove it"
WHOLE_PIPELINE = (
    "offload is set for the whole pipeline: enable_cpu_offload, enable_group_offload or "
    "enable_layerwise_offload"
)

UNSUPPORTED: dict[str, str] = {
    "tensor_parallel_size": ONE_PROCESS,
    "pipeline_parallel_size": ONE_PROCESS,
    "data_parallel_size": ONE_PROCESS,
    "sequence_parallel_size": ONE_PROCESS,
    "ulysses_degree": ONE_PROCESS,
    "ulysses_mode": ONE_PROCESS,
    "ring_degree": ONE_PROCESS,
    "cfg_parallel_size": ONE_PROCESS,
    "vae_patch_parallel_size": ONE_PROCESS,
    "use_hsdp": ONE_PROCESS,
    "hsdp_shard_size": ONE_PROCESS,
    "parallel_config": ONE_PROCESS,
    "enforce_eager": EAGER,
    "enable_eager": EAGER,
    "offload_components": WHOLE_PIPELINE,
    "cpu_offload_components": WHOLE_PIPELINE,
    "component_offload": WHOLE_PIPELINE,
    "layerwise_num_gpu_layers": WHOLE_PIPELINE,
    "cache_backend": LATER,
    "cache_config": LATER,
}
"""Name -> why, and what to do instead. The names are those of vLLM-Omni's diffusion engine."""


def refusal(name: str) -> str | None:
    """Return why an option is refused, or None where the name is none of these."""
    reason = UNSUPPORTED.get(name.replace("-", "_"))
    return f"'{name}' is not supported: {reason}" if reason else None
