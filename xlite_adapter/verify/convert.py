"""``python -m xlite_adapter.verify.convert GGUF FOLDER``: an ordinary checkpoint from a GGUF file."""

from __future__ import annotations

import sys
from pathlib import Path


def convert(gguf: Path, target: Path) -> None:
    """Write the checkpoint and the tokenizer of ``gguf`` to the folder ``target``, in bf16.

    bf16 is what such models are published in, and halves the file (269 MB). Runs in fp32 widen it, in every mode from
    the same numbers, so comparisons stay exact.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    plain = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(**source, quantization_config=plain, dtype=torch.bfloat16)
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(**source).save_pretrained(target)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
