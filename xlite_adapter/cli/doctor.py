"""``xlite-adapter doctor``: whether xlite can serve in this environment, and what is in the way."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from xlite_adapter.cli.checks import Check, Status
from xlite_adapter.cli.output import (
    EXIT_OK,
    EXIT_UNSUPPORTED,
    Format,
    FormatOption,
    one_line,
    print_json,
    printing,
    trimmed,
)


def doctor(output: FormatOption = Format.TABLE) -> None:
    """Look at the plugin, the runtime, versions and environment variables of this environment.

    Exits with 0 if nothing is in the way of serving, 1 if something is, and 2 if an option is wrong.
    """
    from xlite_adapter.cli.diagnosis import diagnose
    from xlite_adapter.cli.machine import Machine

    checks = diagnose(Machine.here())
    ok = all(check.status is not Status.ERROR for check in checks)
    status = EXIT_OK if ok else EXIT_UNSUPPORTED
    with printing(status):
        if output is Format.JSON:
            print_json({"ok": ok, "checks": [check.to_json() for check in checks]})
        else:
            _print(checks, ok)
    raise typer.Exit(status)


def _print(checks: Sequence[Check], ok: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from xlite_adapter.cli.model_tables import STYLES

    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for check in checks:
        lines = f"{check.name}: {one_line(check.detail)}" + (f"\n{one_line(check.hint)}" if check.hint else "")
        grid.add_row(Text(check.status.value, STYLES[check.status.value]), Text(lines))
    console = Console()
    with trimmed(console):
        console.print(grid)
        console.print(
            Text("xlite can serve here.", "bold green") if ok else Text("xlite cannot serve here.", "bold red")
        )
