"""Generate text with vLLM's own API and the plugin.

    python examples/offline.py MODEL          # decode-only: prefill native, decode steps on xlite
    python examples/offline.py MODEL --full   # every batch on xlite

MODEL is a folder or a hub name.
"""

import argparse

from vllm import LLM, SamplingParams

PROMPTS = ["The capital of France is", "A haiku about the sea:", "Three prime numbers are"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder or hub name")
    parser.add_argument("--full", action="store_true", help="serve every batch on xlite, not only decode steps")
    parser.add_argument("--max-tokens", type=int, default=32)
    arguments = parser.parse_args()

    llm = LLM(
        arguments.model,
        # The plugin is installed, so this is all it takes.
        additional_config={"xlite_graph_config": {"enabled": True, "full_mode": arguments.full}},
        # Recommended with full mode, where the platform's own graphs are never used; on a CPU it also starts faster.
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=8,
        # The whole KV cache, in bytes: room for a small model. Raise it for a large one.
        kv_cache_memory_bytes=256 << 20,
    )
    for output in llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=arguments.max_tokens)):
        print(f"{output.prompt!r} -> {output.outputs[0].text!r}")

    for rank, stats in enumerate(llm.collective_rpc("xlite_stats")):
        print(f"rank {rank}: batches by path and reason: {stats['batches']}")


if __name__ == "__main__":
    # vLLM starts worker processes, which import this file again.
    main()
