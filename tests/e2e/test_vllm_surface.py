"""Every name and signature of vLLM that the adapter touches: a rename fails here and says which."""

from __future__ import annotations

import dataclasses
import inspect
import re

import pytest


def parameters(function):
    return [name for name in inspect.signature(function).parameters if name != "self"]


def test_the_runner_methods_that_are_overridden():
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    assert parameters(CPUModelRunner.__init__) == ["vllm_config", "device"]
    assert parameters(CPUModelRunner._model_forward) == [
        "input_ids",
        "positions",
        "intermediate_tensors",
        "inputs_embeds",
        "model_kwargs",
    ]
    assert parameters(CPUModelRunner.execute_model) == ["scheduler_output", "intermediate_tensors"]
    assert parameters(CPUModelRunner.load_model)[:1] == ["load_dummy_weights"]
    assert parameters(CPUModelRunner.initialize_kv_cache)[0] == "kv_cache_config"
    assert callable(CPUModelRunner.reload_weights)
    assert callable(CPUModelRunner.get_model)


def test_execute_model_calls_the_model_only_through_model_forward():
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    source = inspect.getsource(GPUModelRunner.execute_model)
    assert source.count("self._model_forward(") == 1
    assert "self.model(" not in source


def test_the_worker_constructs_its_runner_from_the_module_attribute_that_is_replaced():
    from vllm.v1.worker import cpu_worker

    source = inspect.getsource(cpu_worker.CPUWorker.init_device)
    assert "self.model_runner = CPUModelRunner(self.vllm_config" in source
    assert parameters(cpu_worker.CPUWorker.__init__)[0] == "vllm_config"
    for method in ("execute_dummy_batch", "shutdown"):
        assert parameters(getattr(cpu_worker.CPUWorker, method)) == []
    # 0.23.0 has a parameter, which is handed on.
    assert parameters(cpu_worker.CPUWorker.start_weight_update) in ([], ["is_checkpoint_format"])


def test_the_platform_step_that_is_wrapped_and_the_class_it_chooses():
    from vllm.platforms.cpu import CpuPlatform

    from xlite_adapter.integrations.plugin import WORKERS

    # Under our own wrapper, if another test has loaded the plugin in this process.
    step = inspect.unwrap(CpuPlatform.check_and_update_config.__func__)
    step = getattr(step, "__func__", step)
    assert parameters(step) == ["cls", "vllm_config"]
    source = inspect.getsource(step)
    assert any(f'worker_cls = "{name}"' in source for name in WORKERS)


def test_packing_is_looked_up_at_each_call():
    from vllm.model_executor.layers import linear, utils, vocab_parallel_embedding

    assert parameters(utils.dispatch_cpu_unquantized_gemm) == ["layer", "remove_weight"]
    for module in (linear, vocab_parallel_embedding):
        assert not hasattr(module, "dispatch_cpu_unquantized_gemm")
        assert "import dispatch_cpu_unquantized_gemm" in inspect.getsource(module)


def test_the_kernels_that_are_called():
    from vllm import _custom_ops as ops

    assert parameters(ops.rotary_embedding)[:6] == [
        "positions",
        "query",
        "key",
        "head_size",
        "cos_sin_cache",
        "is_neox",
    ]
    metadata = parameters(ops.cpu_attn_get_scheduler_metadata)
    assert metadata[:11] == [
        "num_reqs",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "seq_lens",
        "dtype",
        "query_start_loc",
        "causal",
        "sliding_window_size",
        "isa",
        "enable_kv_split",
    ]
    assert parameters(ops.cpu_attn_reshape_and_cache)[:6] == [
        "key",
        "value",
        "key_cache",
        "value_cache",
        "slot_mapping",
        "isa",
    ]
    attention = {"query", "key_cache", "value_cache", "output", "query_start_loc", "seq_lens", "scale", "causal"}
    attention |= {"alibi_slopes", "sliding_window", "block_table", "softcap", "scheduler_metadata", "s_aux"}
    assert attention <= set(parameters(ops.cpu_attention_with_kv_cache))


def test_the_attention_metadata_that_is_read():
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadata, _get_attn_isa

    fields = {field.name for field in dataclasses.fields(CPUAttentionMetadata)}
    assert {"query_start_loc", "seq_lens", "block_table", "slot_mapping", "num_actual_tokens"} <= fields
    assert parameters(_get_attn_isa) == ["dtype", "block_size", "head_size", "kv_cache_dtype"]


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (
            "VllmConfig",
            """additional_config cache_config compilation_config device_config instance_id kv_transfer_config
            lora_config model_config parallel_config scheduler_config speculative_config weight_transfer_config""",
        ),
        ("ModelConfig", "dtype enforce_eager max_model_len model model_impl quantization runner_type"),
        ("CacheConfig", "block_size cache_dtype kv_offloading_size kv_sharing_fast_prefill sliding_window"),
        (
            "ParallelConfig",
            """data_parallel_index decode_context_parallel_size enable_dbo enable_eplb pipeline_parallel_size
            prefill_context_parallel_size rank tensor_parallel_size worker_cls""",
        ),
        ("SchedulerConfig", "max_num_batched_tokens max_num_seqs"),
        ("CompilationConfig", "cudagraph_capture_sizes cudagraph_mode custom_ops mode static_forward_context"),
    ],
)
def test_the_configuration_that_is_read(config, names):
    import vllm.config

    known = {field.name for field in dataclasses.fields(getattr(vllm.config, config))} | _instance_names(config)
    assert set(names.split()) <= known


def test_the_properties_of_the_configuration_that_are_read():
    from vllm.config import ModelConfig, ParallelConfig, VllmConfig

    for owner, name in (
        (ModelConfig, "architecture"),
        (ModelConfig, "using_transformers_backend"),
        (ParallelConfig, "use_ubatching"),
        (ParallelConfig, "world_size"),
        (VllmConfig, "use_v2_model_runner"),
    ):
        assert hasattr(owner, name) or name in {field.name for field in dataclasses.fields(owner)}, (owner, name)


def _instance_names(config):
    """Attributes that vLLM assigns in the class body's methods, without declaring a field."""
    import vllm.config

    return set(re.findall(r"self\.(\w+)(?:: [\w |.]+)? = ", inspect.getsource(getattr(vllm.config, config))))
