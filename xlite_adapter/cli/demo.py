"""``xlite-adapter demo``: see the plugin work, against stock vLLM, on this machine."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from xlite_adapter.verify.errors import EngineProcessError, VerificationError

EXIT_DISAGREES = 1
EXIT_ERROR = 2
# Without a terminal rich assumes 80 columns, too narrow for the tables.
PLAIN_WIDTH = 120


def demo(
    model: Annotated[
        str | None, typer.Option(help="Folder or hub name of the model.", show_default="SmolLM2-135M-Instruct")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the results to this file.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, max=512, help="Tokens to generate per prompt.")] = 48,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of timing; the modes alternate in each.")] = 7,
    kv_cache_mib: Annotated[int, typer.Option(min=1, help="KV cache per engine, in MiB.")] = 256,
) -> None:
    """Serve the same prompts with stock vLLM, decode-only mode and full mode, and compare tokens, paths and speed.

    Exits with 0 when the tokens agree and the batches took the paths that the modes promise, with 1 when not, and with
    2 when something could not run.
    """
    from xlite_adapter.cli.tables import print_report
    from xlite_adapter.verify.demo import DemoOptions, run_demo
    from xlite_adapter.verify.smollm2 import smollm2_path

    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    if json_file:
        _prepare(json_file)
    try:
        with console.status("") as status:
            progress = _Progress(console, status.update)
            chosen = model or str(smollm2_path(progress))
            options = DemoOptions(chosen, max_tokens=max_tokens, rounds=rounds, kv_cache_mib=kv_cache_mib)
            report = run_demo(options, progress)
    except VerificationError as error:
        _print_error(error)
        raise typer.Exit(EXIT_ERROR) from None
    print_report(report, console)
    if json_file:
        json_file.write_text(json.dumps(report.to_json(), indent=2) + "\n", encoding="utf-8")
        console.print(f"Written to {escape(str(json_file))}", highlight=False)
    raise typer.Exit(0 if report.passed else EXIT_DISAGREES)


def _prepare(file: Path) -> None:
    """A file that cannot be written should be an error now and not after minutes."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        writable = os.access(file if file.exists() else file.parent, os.W_OK) and not file.is_dir()
    except OSError:
        writable = False
    if not writable:
        raise typer.BadParameter(f"cannot write to {file}", param_hint="--json")


class _Progress:
    """Prints each step with the seconds since the start; on a terminal the current one also beside a spinner."""

    def __init__(self, console: Console, update: Callable[[str], None]) -> None:
        self._console = console
        self._update = update
        self._begin = time.monotonic()

    def __call__(self, message: str) -> None:
        self._console.print(f"[dim]{time.monotonic() - self._begin:6.1f} s[/]  {escape(message)}", highlight=False)
        self._update(escape(message))


def _print_error(error: VerificationError) -> None:
    console = Console(stderr=True, soft_wrap=True)
    if isinstance(error, EngineProcessError) and error.log_tail:
        console.print("[dim]The last lines of its log:[/]")
        console.print(error.log_tail, markup=False, highlight=False, style="dim")
    console.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
