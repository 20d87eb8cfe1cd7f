"""Writes README.md's table of supported models from the registry: ``make readme``."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from arch_registry import ArchSpec, builtin_registry  # noqa: E402

BEGIN, END = "<!-- models: written by make readme -->\n", "<!-- end of models -->\n"
ATTENTION = {
    "mha": "multi-head, grouped or not",
    "mla": "multi-head latent (MLA)",
    "dsa": "latent and sparse (DSA)",
}


def table() -> str:
    """One row for each built-in architecture."""
    registry = builtin_registry()
    rows = ["| architecture | attention | experts | spec |", "|---|---|---|---|"]
    for name in registry:
        spec = registry.get(name)
        assert spec is not None
        rows.append(f"| `{name}` | {ATTENTION[spec.attention]} | {_experts(spec)} | `{_file(spec)}` |")
    return "\n".join(rows) + "\n"


def written(readme: str) -> str:
    """``readme`` with the table of today.

    Raises:
        ValueError: It lacks the two marks that the table stands between.
    """
    before, rest = readme.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    return f"{before}{BEGIN}{table()}{END}{after}"


def _experts(spec: ArchSpec) -> str:
    if not spec.moe:
        return "none"
    scoring = next(str(rule.value({})) for rule in spec.runtime if rule.field == "scoring_func")
    return f"yes, {scoring.removeprefix('ScoringFunc').lower()} routing"


def _file(spec: ArchSpec) -> str:
    return f"arch_registry/architectures/{spec.name}.py"


if __name__ == "__main__":
    file = ROOT / "README.md"
    file.write_text(written(file.read_text()))
