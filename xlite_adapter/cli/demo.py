"""``xlite-adapter demo``: see the plugin work, against stock vLLM, on this machine."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from xlite_adapter.cli.output import bad_input, discard_stdout, one_line, printing, trimmed
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

    terminal = sys.stdout is not None and sys.stdout.isatty()
    console = Console(width=None if terminal else PLAIN_WIDTH)
    if json_file:
        _prepare(json_file)
    try:
        with _sigterm_leaves(), console.status("") as status:
            progress = _Progress(console, status.update)
            chosen = model or str(smollm2_path(progress))
            options = DemoOptions(chosen, max_tokens=max_tokens, rounds=rounds, kv_cache_mib=kv_cache_mib)
            report = run_demo(options, progress)
    except VerificationError as error:
        with printing(EXIT_ERROR):
            _print_error(error)
        raise typer.Exit(EXIT_ERROR) from None
    except OSError as error:  # no room for logs, no process to be had
        raise bad_input(f"the demo cannot run: {error}", as_json=False) from None
    verdict = 0 if report.passed else EXIT_DISAGREES
    if json_file:
        # Before the report is printed, which fails more easily.
        try:
            json_file.write_text(json.dumps(report.to_json(), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise bad_input(f"cannot write to {json_file}: {error.strerror}", as_json=False) from None
    with printing(verdict), trimmed(console):
        print_report(report, console)
        if json_file:
            console.print(f"Written to {escape(one_line(str(json_file)))}", highlight=False)
    raise typer.Exit(verdict)


@contextmanager
def _sigterm_leaves() -> Iterator[None]:
    """SIGTERM ends the block as an exception, so that engines and temporary folders do not outlive it."""

    def leave(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # the way out is not to be interrupted
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
        shown = escape(one_line(message))
        with printing(EXIT_ERROR):
            try:
                with trimmed(self._console):
                    self._console.print(f"[dim]{time.monotonic() - self._begin:6.1f} s[/]  {shown}", highlight=False)
            except BrokenPipeError:
                discard_stdout()  # nobody reads it; the verdict is still wanted
        self._update(shown)


def _print_error(error: VerificationError) -> None:
    console = Console(stderr=True, soft_wrap=True)
    with trimmed(console):
        if isinstance(error, EngineProcessError) and error.log_tail:
            console.print("[dim]The last lines of its log:[/]")
            console.print(_lines(error.log_tail), markup=False, highlight=False, style="dim")
        message = _lines(str(error).replace("Value error, ", ""))
        console.print(f"[bold red]error:[/] {escape(message)}", highlight=False)


def _lines(text: str) -> str:
    return "\n".join(map(one_line, text.split("\n")))
