"""Tables of ``archs``, ``check`` and ``plan`` for people; readable at 80 columns.

Strings of a config.json may hold anything, so nothing of it is taken as markup and all of it goes through ``one_line``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from xlite_adapter.cli.output import one_line, trimmed

MAX_NAME = 60
STYLES = {"error": "bold red", "warning": "yellow", "ok": "green"}


def print_archs(rows: Sequence[Mapping[str, Any]]) -> None:
    """One row per architecture."""
    table = Table(title="Architectures", title_justify="left")
    for header in ("architecture", "attention", "MoE", "spec", "source"):
        table.add_column(header, overflow="fold")
    for row in rows:
        moe = "yes" if row["moe"] else "no"
        table.add_row(*map(_text, (row["architecture"], row["attention"], moe, row["spec"], row["source"])))
    console = Console()
    with trimmed(console):
        console.print(table)


def print_verdict(found: Mapping[str, Any]) -> None:
    """The verdict, its findings, and the plan if there is one."""
    console = Console()
    with trimmed(console):
        console.print(_headline(found))
        if "token_budget" in found:
            console.print(_summary(found), _config_table(found["runtime_config"]), _slots_table(found["weight_slots"]))
        if "quantization" in found:
            console.print(_quantization_table(found["quantization"]))
        if found["findings"]:
            console.print(findings_grid(found["findings"]))


def findings_grid(findings: Sequence[Mapping[str, str]]) -> Table:
    """Severity beside message, hint and code."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for finding in findings:
        text = Text.assemble(
            one_line(finding["message"]), "\n", one_line(finding["hint"]), (f" [{finding['code']}]", "dim")
        )
        grid.add_row(Text(finding["severity"], STYLES[finding["severity"]]), text)
    return grid


def _headline(found: Mapping[str, Any]) -> Text:
    name = _text((found["architecture"] or "no architecture")[:MAX_NAME])
    attention = f" ({found['attention']})" if found["attention"] else ""
    mark = ("supported", "bold green") if found["supported"] else ("not supported", "bold red")
    return Text.assemble(name, one_line(attention), ": ", mark)


def _summary(found: Mapping[str, Any]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    parallel = found["parallel"]
    for name, value in (
        ("spec", f"{found['spec']} of {found['source']}"),
        ("parallel sizes", ", ".join(f"{name} {size}" for name, size in parallel.items())),
        ("token budget", f"{found['token_budget']} tokens (max_m)"),
        ("largest batch", f"{found['max_batch_size']} requests"),
        ("dtype", found["dtype"]),
        (
            "workspace per rank",
            f"{_size(found['workspace_bytes'])}, of which {_size(found['output_bytes'])} for output",
        ),
        ("KV cache per rank", f"{_size(found['kv_bytes_per_token'])} per token"),
    ):
        grid.add_row(Text(name, "bold"), _text(value))
    return grid


def _config_table(config: Mapping[str, Any]) -> Table:
    table = Table(title="ModelConfig", title_justify="left")
    table.add_column("field", overflow="fold")
    table.add_column("value", overflow="fold")
    for field, value in config.items():
        table.add_row(_text(field), _text(_listed(value) if isinstance(value, tuple) else value))
    return table


def _listed(values: tuple[Any, ...]) -> str:
    """A list for people: what stands there for every layer is said once."""
    runs = [(value, len(list(run))) for value, run in groupby(values)]
    return f"[{', '.join(str(value) if count == 1 else f'{value} x {count}' for value, count in runs)}]"


def _slots_table(slots: Mapping[str, Any]) -> Table:
    table = Table(title="Weights of one rank", title_justify="left")
    table.add_column("slot", overflow="fold")
    table.add_column("tensors", justify="right", overflow="fold")
    table.add_column("shape", overflow="fold")
    for slot, weight in slots.items():
        table.add_row(_text(slot), _text(weight["count"]), _text(weight["shape"]))
    return table


def _quantization_table(slots: Mapping[str, Mapping[str, int]]) -> Table:
    table = Table(title="Quantised weights", title_justify="left")
    table.add_column("slot", overflow="fold")
    table.add_column("layers of each type", overflow="fold")
    for slot, kinds in slots.items():
        table.add_row(_text(slot), _text(", ".join(f"{kind} x {count}" for kind, count in kinds.items())))
    return table


def _size(count: int) -> str:
    for unit, bytes_per in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= bytes_per:
            return f"{count / bytes_per:.1f} {unit}"
    return f"{count} bytes"


def _text(value: object) -> Text:
    return Text(one_line(str(value)))
