"""What the folder of a model says beside its config.json."""

from __future__ import annotations

from pathlib import Path

from arch_registry.findings import Finding, FindingCode

# Of quantised checkpoints whose config.json may be that of the float model, word for word. What ModelSlim writes beside
# it is read: arch_registry.quantization.
_QUANTIZED_BY = {"hf_quant_config.json": "ModelOpt"}


def folder_findings(path: str | Path) -> list[Finding]:
    """Reasons to refuse that only the files beside a config.json tell.

    Args:
        path: A config.json, or the folder that has it.
    """
    folder = Path(path)
    folder = folder if folder.is_dir() else folder.parent
    hint = "Its weights are quantised, whatever config.json says. Use the checkpoint with float weights."
    return [
        Finding(FindingCode.QUANTIZATION, f"{name} of {tool}", "beside config.json", "no such file", hint)
        for name, tool in _QUANTIZED_BY.items()
        if (folder / name).is_file()
    ]
