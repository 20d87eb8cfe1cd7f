"""Every name of vllm-ascend, and of vLLM below it, that the Ascend workers call, override, replace or read."""

from __future__ import annotations

# Package -> module -> class -> methods, fields, and attributes of ``self``. Those under "" are the module's own:
# functions, and attributes that it sets or reads of whatever object.
TOUCHED: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {
    "vllm_ascend": {
        "platform": {"NPUPlatform": ("check_and_update_config",)},
        "quantization.utils": {"": ("maybe_auto_detect_quantization",)},
        "xlite.xlite_worker": {"XliteWorker": ("init_device",)},
        "worker.worker": {
            "NPUWorker": (
                *("__init__", "init_device", "execute_dummy_batch", "start_weight_update", "sleep", "shutdown"),
                *("model_runner",),
            ),
            # Our runner takes the place of this attribute of the module.
            "": ("NPUModelRunner",),
        },
        "worker.model_runner_v1": {
            "NPUModelRunner": (
                *("__init__", "load_model", "get_model", "initialize_kv_cache", "execute_model", "_model_forward"),
                *("_should_build_dummy_attn_metadata", "_dummy_run", "profile_run", "query_start_loc", "seq_lens"),
                *("optimistic_seq_lens_cpu", "kv_cache_config", "cudagraph_dispatcher", "model_memory_usage"),
                *("input_batch", "kv_caches", "compilation_config", "use_async_scheduling"),
            ),
        },
        "worker.npu_input_batch": {"NPUInputBatch": ("block_table",)},
        "worker.block_table": {
            "BlockTable": ("get_device_tensor", "get_cpu_tensor", "logical_block_size"),
            "MultiGroupBlockTable": ("__getitem__",),
        },
        "worker.device_metadata": {"DeviceMetadataExecutor": ("release", "submission_in_flight")},
        "attention.attention_v1": {
            "AscendMetadata": (
                "num_actual_tokens",
                "actual_seq_lengths_q",
                "seq_lens_list",
                "block_tables",
                "slot_mapping",
            ),
        },
        "attention.mla_v1": {
            "AscendMLAMetadata": (
                *("num_actual_tokens", "num_decodes", "query_lens", "seq_lens_cpu", "slot_mapping", "prefill"),
                *("decode",),
            ),
            "AscendMLAPrefillMetadata": ("seq_lens", "block_table"),
            "AscendMLADecodeMetadata": ("block_table",),
        },
        "attention.sfa_v1": {
            "AscendSFAMetadata": ("num_actual_tokens", "seq_lens_cpu", "block_table", "slot_mapping"),
        },
        "utils": {"": ("should_skip_allreduce_across_dp_group",)},
        "ascend_forward_context": {
            "": ("set_ascend_forward_context", "max_tokens_across_dp", "device_metadata_executor"),
        },
    },
    "vllm": {
        "v1.worker.gpu_model_runner": {
            "GPUModelRunner": (
                *(
                    "vllm_config",
                    "model_config",
                    "device",
                    "compilation_config",
                    "speculative_config",
                    "input_batch",
                    "kv_caches",
                ),
                *("max_num_reqs", "max_num_tokens", "use_async_scheduling", "cudagraph_dispatcher", "get_model"),
                *("reload_weights", "profile_run", "query_start_loc", "seq_lens", "optimistic_seq_lens_cpu"),
            ),
        },
        "v1.worker.worker_base": {"WorkerBase": ("__init__", "rank", "vllm_config")},
        "v1.cudagraph_dispatcher": {
            "CudagraphDispatcher": ("cudagraph_keys", "initialize_cudagraph_keys", "get_capture_descs", "dispatch"),
        },
        "forward_context": {
            "BatchDescriptor": ("num_tokens",),
            "ForwardContext": ("attn_metadata",),
            "": ("get_forward_context",),
        },
        "config.compilation": {
            "CompilationConfig": ("cudagraph_mode", "cudagraph_capture_sizes", "static_forward_context"),
            "CUDAGraphMode": ("mixed_mode", "PIECEWISE", "FULL", "NONE"),
            "CompilationMode": ("NONE",),
        },
        "distributed.parallel_state": {
            "GroupCoordinator": ("rank_in_group", "world_size", "cpu_group"),
            "": ("get_ep_group", "get_tensor_model_parallel_rank", "get_tp_group", "get_world_group"),
        },
        "utils.network_utils": {"": ("get_ip",)},
        "model_executor.models.utils": {"": ("extract_layer_index",)},
        "model_executor.models.qwen3_vl": {
            "Qwen3VLForConditionalGeneration": (
                "embed_input_ids",
                "_get_deepstack_input_embeds",
                "_clear_deepstack_input_embeds",
            ),
        },
        "utils.mem_utils": {"DeviceMemoryProfiler": ("consumed_memory",)},
        "logger": {"": ("init_logger",)},
        "platforms": {"": ("current_platform",)},
    },
}

# Release of vllm-ascend -> what it does not have yet; integrations/compat.py says how we do without.
ABSENT = {
    "0.23.0": {
        "vllm_ascend.ascend_forward_context:device_metadata_executor",
        "vllm_ascend.worker.device_metadata:DeviceMetadataExecutor.release",
        "vllm_ascend.worker.device_metadata:DeviceMetadataExecutor.submission_in_flight",
    },
    "0.30.0rc2": set[str](),
}


def keys() -> list[str]:
    """``package.module:Class.name``, or ``package.module:name``."""
    return [
        f"{package}.{module}:{owner}{'.' if owner else ''}{name}"
        for package, modules in TOUCHED.items()
        for module, classes in modules.items()
        for owner, names in classes.items()
        for name in names
    ]
