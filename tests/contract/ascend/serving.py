"""A real vllm-ascend model runner with a real scheduler on a CPU: our runner, its own input preparation and sampler.

Its tensors live on the CPU, so that torch computes them. Some things of a device have a stand-in: the layouts of its
memory, a library of kernels that nothing calls, and its kernel for slots (a product and a sum).
"""

from __future__ import annotations

import functools
import inspect
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch_npu  # noqa: F401 - registers the operator that gets a stand-in
from vllm import SamplingParams
from vllm.config import set_current_vllm_config
from vllm.distributed import (
    destroy_distributed_environment,
    destroy_model_parallel,
    ensure_model_parallel_initialized,
    init_distributed_environment,
)
from vllm.model_executor.layers import rotary_embedding as vllm_rotary_embedding
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config, get_kv_cache_configs
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.worker.workspace import init_workspace_manager
from vllm_ascend.compilation import acl_graph
from vllm_ascend.distributed.parallel_state import destroy_ascend_model_parallel, init_ascend_model_parallel
from vllm_ascend.ops import rotary_embedding
from vllm_ascend.platform import NPUPlatform
from vllm_ascend.worker import worker
from vllm_ascend.worker.block_table import BlockTable

from tests.contract.ascend.conftest import release
from tests.contract.ascend.engines import configure

CPU = torch.device("cpu")
CACHE_BYTES = 64 << 20
_npu, _vllm = (torch.library.Library(name, "IMPL") for name in ("npu", "vllm"))


class Served:
    """One engine without processes: a scheduler and our runner.

    Attributes:
        runner: ``XliteNPUModelRunner``, loaded, with caches.
        config: Its VllmConfig.
    """

    def __init__(self, model: Path, monkeypatch: Any, **settings: Any) -> None:
        defaults = {"full": True, "enforce_eager": True, "dtype": "float32", "max_num_seqs": 8}
        defaults |= {"max_num_batched_tokens": 64, "async_scheduling": False, "enable_prefix_caching": False}
        self.config = config = configure(model, **{**defaults, **settings})
        config.device_config.device = CPU
        config.load_config.device = "cpu"
        monkeypatch.setattr(NPUPlatform, "device_type", "cpu")
        # Of graphs, none of which is captured.
        monkeypatch.setattr(NPUPlatform, "graph_pool_handle", classmethod(lambda cls: (0, 0)), raising=False)
        monkeypatch.setattr(BlockTable, "compute_slot_mapping", compute_slot_mapping)
        # A release of the device's libraries, which 0.23.0 compares.
        monkeypatch.setattr(torch.version, "cann", None, raising=False)
        # Kernels of a library that the stub has nothing of.
        monkeypatch.setattr(worker, "_register_atb_extensions", lambda: None)
        _forget(monkeypatch)
        with set_current_vllm_config(config):
            _one_rank(config)
            # Patches vLLM and registers layers, as in a worker's process.
            self.worker = resolve_obj_by_qualname(config.parallel_config.worker_cls)(
                vllm_config=config, local_rank=0, rank=0, distributed_init_method="", is_driver_worker=True
            )
            self.worker.log_memory_stats = lambda: None
            init_workspace_manager(CPU, 1)
            self.runner = self.worker.model_runner = self._runner()
            self.loaded()
            self.scheduler = self._scheduler()
        self._under_way: Any = None

    def _runner(self) -> Any:
        """What ``init_device`` makes on a device: it asks the module of vllm-ascend's worker for the class."""
        with self.worker._with_our_runner():
            runner = worker.NPUModelRunner(self.config, CPU)
        runner.load_model()
        return runner

    def loaded(self) -> None:
        """After the model and before its caches, where vLLM measures memory."""

    def _scheduler(self) -> Any:
        specs = self.runner.get_kv_cache_spec()
        _resolve_layout(self.config, specs)
        caches = get_kv_cache_configs(self.config, [specs], [CACHE_BYTES])[0]
        self.runner.initialize_kv_cache(caches)
        self.config.cache_config.num_gpu_blocks = caches.num_blocks
        return self.config.scheduler_config.get_scheduler_cls()(
            vllm_config=self.config,
            kv_cache_config=generate_scheduler_kv_cache_config([caches]),
            structured_output_manager=StructuredOutputManager(self.config),
            block_size=self.config.cache_config.block_size,
        )

    def add(self, name: str, prompt: Sequence[int], tokens: int) -> None:
        given: dict[str, Any] = {"prompt_token_ids": list(prompt), "pooling_params": None, "arrival_time": 0.0}
        if "eos_token_id" in inspect.signature(Request.__init__).parameters:
            given["eos_token_id"] = None
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        self.scheduler.add_request(Request(request_id=name, sampling_params=params, **given))

    def step(self) -> Any:
        """One batch; what the scheduler asked for, None where it had nothing to ask for.

        With asynchronous scheduling it asks before it knows the tokens of the batch before, as in the engine.
        """
        asked = self.scheduler.schedule()
        if asked.total_num_scheduled_tokens == 0:
            self._arrive()
            return None
        with set_current_vllm_config(self.config):
            output = self.runner.execute_model(asked)
            if output is None:
                output = self.runner.sample_tokens(None)
        self._arrive()
        self._under_way = asked, output
        if not self.config.scheduler_config.async_scheduling:
            self._arrive()
            drafts = self.runner.take_draft_token_ids()
            if drafts is not None:
                self.scheduler.update_draft_token_ids(drafts)
        return asked

    def _arrive(self) -> None:
        """The tokens of the batch that is under way."""
        if self._under_way is None:
            return
        (asked, output), self._under_way = self._under_way, None
        tokens = output.get_output() if hasattr(output, "get_output") else output
        self.scheduler.update_from_output(asked, tokens)

    def recorded(self) -> list[Any]:
        """From now on each batch: the tensors, the facts, and copies of positions, slots, starts and lengths."""
        seen: list[Any] = []
        self.runner.xlite.forward = Recording(self.runner.xlite.forward, seen)
        return seen

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        for number, prompt in enumerate(prompts):
            self.add(str(number), prompt, tokens)
        requests = [self.scheduler.requests[str(number)] for number in range(len(prompts))]
        while self.scheduler.has_unfinished_requests():
            self.step()
        return [list(request.output_token_ids) for request in requests]


class Recording:
    """Keeps what the runtime is handed; tensors that the next batch overwrites as copies."""

    def __init__(self, forward: Any, seen: list[Any]) -> None:
        self.built, self._forward, self._seen = forward.built, forward, seen

    def __call__(self, batch: Any, facts: Any, *stream: Any) -> Any:
        tensors = batch.positions, batch.slot_mapping, batch.query_start_loc, batch.seq_lens
        self._seen.append((batch, facts, *(each.clone() for each in tensors)))
        return self._forward(batch, facts, *stream)


def compute_slot_mapping(
    self: Any, num_reqs: int, query_start_loc: torch.Tensor, positions: torch.Tensor, *_: Any
) -> None:
    """What the device's kernel does: the slot of each token, and -1 behind the last one."""
    lens = query_start_loc[: num_reqs + 1].diff()
    requests = torch.repeat_interleave(torch.arange(num_reqs), lens)
    places = positions[: len(requests)].long()
    slots = self.block_table.gpu[requests, places // self.block_size] * self.block_size + places % self.block_size
    self.slot_mapping.gpu.fill_(-1)
    self.slot_mapping.gpu[: len(requests)] = slots.to(torch.int32)


def _forget(monkeypatch: Any) -> None:
    """Rotary tables and graphs of the model before, which vLLM and vllm-ascend keep for the whole process."""
    for name in ("_cos_mla", "_sin_mla", "_cos_cache", "_sin_cache", "_cos_sin_cache", "_cos", "_sin"):
        monkeypatch.setattr(rotary_embedding, name, None)
    monkeypatch.setattr(vllm_rotary_embedding, "_ROPE_DICT", {})
    monkeypatch.setattr(acl_graph, "_graph_params", None)


@functools.cache
def _stand_ins() -> None:
    _npu.impl("npu_format_cast", lambda tensor, *layout: tensor, "CPU")
    if release() == "0.23.0":
        # Of 0.23.0's embeddings; with one rank there is nothing to add up.
        _vllm.impl("maybe_pad_and_reduce", lambda tensor, *_: tensor, "CPU")


def _one_rank(config: Any) -> None:
    _stand_ins()
    # The groups are those of a model with experts, or of one without.
    destroy_ascend_model_parallel()
    destroy_model_parallel()
    destroy_distributed_environment()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    init_distributed_environment(1, 0, f"tcp://127.0.0.1:{port}", 0, "gloo")
    ensure_model_parallel_initialized(1, 1)
    engram = [config.engram_config] if hasattr(config, "engram_config") else []
    init_ascend_model_parallel(config.parallel_config, *engram)


def _resolve_layout(config: Any, specs: dict[str, Any]) -> None:
    """What vLLM 0.30's engine core does with the layouts that its workers report."""
    try:
        from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
        from vllm.v1.worker.worker_base import get_current_attn_backends, get_supported_kv_cache_layouts
    except ImportError:
        return
    layouts = [layout.name for layout in get_supported_kv_cache_layouts(get_current_attn_backends(config))]
    resolve_kv_cache_layout(config, [layouts], specs.values())
