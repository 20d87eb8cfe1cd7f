"""Child process that holds one real vLLM engine and does what its parent asks.

``python -m xlite_adapter.verify.engine REQUEST_FD REPLY_FD`` reads one JSON object per line and answers each with one.
The two pipes are its own, so whatever vLLM prints goes to stdout and stderr and cannot end up in an answer. It leaves
when the request pipe closes, hence also when the parent is killed.

Commands: ``start`` (with the arguments of ``vllm.LLM``), then ``encode``, ``generate``, ``time_decode``, ``stats`` and
``peak_rss``. An answer has either ``result`` or ``error``.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arch_registry.errors import ArchRegistryError
from xlite_adapter.errors import XliteAdapterError
from xlite_adapter.verify.steps import StepRecorder

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "tekken.json")


class Engine:
    """The commands. ``max_model_len`` is lowered to what the model can do."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        # After the environment is set and only here: the import takes seconds.
        from transformers import AutoConfig
        from vllm import LLM

        model = arguments["model"]
        limit = getattr(AutoConfig.from_pretrained(model).get_text_config(), "max_position_embeddings", None)
        self.has_tokenizer = not Path(model).is_dir() or any((Path(model) / name).exists() for name in TOKENIZER_FILES)
        self.llm = LLM(
            **{
                **arguments,
                "max_model_len": min(arguments["max_model_len"], limit or sys.maxsize),
                "skip_tokenizer_init": not self.has_tokenizer,
            }
        )
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.recorder = StepRecorder(self.core.scheduler)

    def start(self) -> dict[str, Any]:
        """Describe the engine: vLLM's and torch's version, number of threads, class of the worker."""
        import torch
        import vllm

        worker = self.core.vllm_config.parallel_config.worker_cls
        return {
            "vllm": vllm.__version__,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "worker": worker if isinstance(worker, str) else worker.__qualname__,
            "vocabulary": self.core.vllm_config.model_config.get_vocab_size(),
        }

    def encode(self, prompts: list[str]) -> list[list[int]] | None:
        """Token ids of ``prompts``, each a user's turn where the model has a chat template; None without tokenizer."""
        if not self.has_tokenizer:
            return None
        tokenizer = self.llm.get_tokenizer()
        if not getattr(tokenizer, "chat_template", None):
            return [list(tokenizer.encode(prompt)) for prompt in prompts]
        turns = [[{"role": "user", "content": prompt}] for prompt in prompts]
        texts = [tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True) for turn in turns]
        return [list(tokenizer.encode(text, add_special_tokens=False)) for text in texts]

    def generate(self, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        """Decode greedily from token ids; also what the scheduler handed to the model meanwhile."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=max_tokens, detokenize=self.has_tokenizer)
        before = self.recorder.totals()
        outputs = self.llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        after = self.recorder.totals()
        return {
            "token_ids": [list(output.outputs[0].token_ids) for output in outputs],
            "texts": [output.outputs[0].text for output in outputs],
            "batches": after["batches"] - before["batches"],
            "tokens": after["tokens"] - before["tokens"],
        }

    def time_decode(self, prompts: list[list[int]], steps: int, skip: int) -> list[float]:
        """Milliseconds per engine step in which each prompt's request decodes one token and nothing else runs.

        ``steps`` values, after ``skip`` such steps that are left out. Scheduling, sampling and output processing are
        included: it is what a user waits for.
        """
        from vllm import SamplingParams

        engine = self.llm.llm_engine
        params = SamplingParams(temperature=0, max_tokens=steps + skip + 2, ignore_eos=True, detokenize=False)
        for number, ids in enumerate(prompts):
            engine.add_request(f"timing-{time.monotonic_ns()}-{number}", {"prompt_token_ids": ids}, params)
        times = []
        while engine.has_unfinished_requests():
            begin = time.perf_counter()
            engine.step()
            elapsed = (time.perf_counter() - begin) * 1e3
            if self.recorder.last.is_decode_of(len(prompts)):
                times.append(elapsed)
        return times[skip : skip + steps]

    def stats(self) -> list[dict[str, Any]]:
        """The plugin's counters, one entry per rank. Only where the plugin's worker runs."""
        return list(self.llm.collective_rpc("xlite_stats"))


def peak_rss_mib() -> float:
    """Largest resident memory of this process, in MiB.

    From VmHWM: unlike ``ru_maxrss`` it does not start at what the parent had when it forked.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Server:
    """Answers commands; the engine is made by the first, ``start``."""

    def __init__(self) -> None:
        self.engine: Engine | None = None

    def answer(self, command: str, arguments: dict[str, Any]) -> Any:
        if command == "start":
            self.engine = Engine(arguments)
            return self.engine.start()
        if command == "peak_rss":
            return peak_rss_mib()
        if command not in {"encode", "generate", "time_decode", "stats"}:
            raise ValueError(f"unknown command {command!r}")
        return getattr(self.engine, command)(**arguments)


def serve(request_fd: int, reply_fd: int) -> None:
    """Answer until the request pipe ends."""
    server = Server()
    with os.fdopen(request_fd) as requests, os.fdopen(reply_fd, "w") as replies:
        for line in requests:
            message = json.loads(line)
            try:
                reply = {"result": server.answer(message["command"], message["arguments"])}
            except Exception as error:
                traceback.print_exc()
                # A refusal explains itself; the parent shows the log only for what nobody foresaw.
                refused = isinstance(error, XliteAdapterError | ArchRegistryError)
                reply = {"error": f"{type(error).__name__}: {error}", "refused": refused}
            replies.write(json.dumps(reply) + "\n")
            replies.flush()


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
    # vLLM's and torch's destructors take a second and can complain at exit; the answers are all delivered.
    sys.stdout.flush()
    os._exit(0)
