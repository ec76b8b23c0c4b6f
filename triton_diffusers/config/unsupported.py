# SPDX-License-Identifier: Apache-2.0
"""Options of comparable servers: those that are called otherwise here, and those not served.

Both are known by name: a guess by likeness would point to an option that does something else.
"""

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

SLEEP = (
    "a model that is not needed is unloaded, and loaded again when it is: by Triton's load calls "
    "(docs/operations.md)"
)
READING = "weights are read as diffusers reads them, shards in parallel; remove it"
TRITON = "Triton serves the entry: ports, host and log are options of builder serve; remove it"
QUEUE = "how many requests wait, run or join is set by max_queue, request_batching, step_batching"
MEMORY = "an entry takes the memory that its weights and calls need; see the options of memory"
MANY_PARTS = "a pipeline is loaded whole, in one process; remove it"
LORAS = """adapters are listed in 'lora', each with its scale: [{"path": PATH, "scale": 0.8}]"""
TEXTS = "it is of language models; remove it"

OF_SERVERS = (
    *("host", "port", "api_key", "served_model_name", "uvicorn_log_level", "log_level", "omni"),
    *("log_stats", "log_file", "disable_log_stats", "disable_log_requests", "ssl_keyfile"),
    *("ssl_certfile", "allowed_origins", "root_path", "init_timeout"),
    *("allowed_local_media_path", "allowed_media_domains"),
)
"""What `vllm serve` takes for its server; commands other than add-model may have such options."""

UNSUPPORTED: dict[str, str] = {
    **dict.fromkeys(
        (
            *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
            *("sequence_parallel_size", "ulysses_degree", "ulysses_mode", "ring_degree"),
            *("cfg_parallel_size", "vae_patch_parallel_size", "use_hsdp", "hsdp_shard_size"),
            *("parallel_config", "usp", "ring", "tp", "pp", "dp", "num_gpus"),
            *("hsdp_replicate_size", "enable_expert_parallel", "use_fsdp_inference"),
            *("text_encoder_tensor_parallel_size", "worker_backend", "ray_address"),
            *("distributed_executor_backend", "worker_extension_cls", "master_port", "nccl_port"),
            *("data_parallel_size_local", "data_parallel_address", "data_parallel_rpc_port"),
        ),
        ONE_PROCESS,
    ),
    "enforce_eager": EAGER,
    "enable_eager": EAGER,
    **dict.fromkeys(
        (
            *("offload_components", "cpu_offload_components", "component_offload"),
            *("layerwise_num_gpu_layers", "cpu_offload_gb", "swap_space", "pin_cpu_memory"),
            *("dit_cpu_offload", "text_encoder_cpu_offload", "image_encoder_cpu_offload"),
            "vae_cpu_offload",
        ),
        WHOLE_PIPELINE,
    ),
    **dict.fromkeys(
        (
            *("cache_backend", "cache_config", "cache_strategy", "enable_cache_dit_summary"),
            *("mask_strategy_file_path", "skip_time_steps", "moba_config_path", "vsa_sparsity"),
            *("enable_diffusion_pipeline_profiler", "default_sampling_params"),
        ),
        LATER,
    ),
    "enable_sleep_mode": SLEEP,
    **dict.fromkeys(
        (
            *("load_format", "enable_multithread_weight_load", "num_weight_load_threads"),
            *("model_loader_extra_config", "download_dir", "use_tqdm_on_load"),
        ),
        READING,
    ),
    **dict.fromkeys(OF_SERVERS, TRITON),
    **dict.fromkeys(
        ("max_num_seqs", "batch_timeout", "step_execution", "max_num_batched_tokens"), QUEUE
    ),
    **dict.fromkeys(("gpu_memory_utilization", "kv_cache_dtype", "shm_threshold_bytes"), MEMORY),
    **dict.fromkeys(
        (
            *("stage_configs_path", "stage_id", "stage_init_timeout", "deploy_config"),
            *("stage_overrides", "omni_kv_config", "override_transformer_cls_name"),
        ),
        MANY_PARTS,
    ),
    **dict.fromkeys(
        ("enable_lora", "max_loras", "max_lora_rank", "max_cpu_loras", "lora_scale"), LORAS
    ),
    **dict.fromkeys(
        (
            *("max_model_len", "tokenizer", "tokenizer_mode", "task", "runner", "hf_overrides"),
            *("chat_template", "tool_call_parser", "reasoning_parser", "limit_mm_per_prompt"),
            *("trust_request_chat_template", "enable_prefix_caching", "block_size"),
            *("async_chunk", "enable_chunked_prefill"),
        ),
        TEXTS,
    ),
}
"""Name -> why, and what to do instead. The names are those of vLLM-Omni, engine and adapter."""

RENAMED = {
    "torch_dtype": "dtype",
    "quantization": "quantization_config",
    "q": "quantization_config",
    "diffusion_quantization_config": "quantization_config",
    "diffusion_attention_backend": "attention_backend",
    "model_class_name": "pipeline_class",
    "lora_path": "lora",
    "max_generated_image_size": "max_pixels",
}
"""Name elsewhere -> what it is called here."""
LOAD_FORMAT = "diffusion_load_format"
LOAD_FORMATS = {
    "diffusers": "",
    "auto": "",
    "default": "the pipelines of diffusers are what is served; leave it out, or give diffusers",
    "custom_pipeline": "name your own pipeline with custom_pipeline instead",
    "dummy": "an entry serves real weights; leave it out, or give diffusers",
}
"""Value of `diffusion_load_format` -> why it is refused, nothing for what is always done."""


def refusal(name: str) -> str | None:
    """Return why an option is refused, or None where the name is none of these."""
    ours = name.replace("-", "_").lower()
    if ours in RENAMED:
        return f"'{name}' is called '{RENAMED[ours]}' here: write that instead"
    if ours == LOAD_FORMAT:
        return f"'{name}' is not needed: diffusers loads every entry; remove it"
    reason = UNSUPPORTED.get(ours)
    return f"'{name}' is not supported: {reason}" if reason else None
