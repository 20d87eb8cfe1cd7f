"""The ``xlite-adapter`` command.

Commands import what they need when they run, so that all but ``demo`` work without vllm, torch and transformers.
"""

from __future__ import annotations

from typing import Annotated

import typer

from xlite_adapter._version import __version__
from xlite_adapter.cli.demo import demo
from xlite_adapter.cli.doctor import doctor
from xlite_adapter.cli.models import archs, check, plan
from xlite_adapter.cli.output import EXIT_OK, Command, Group, printing

app = typer.Typer(
    cls=Group,
    name="xlite-adapter",
    help="Serve LLMs through xlite with vLLM.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (archs, check, plan, doctor, demo):
    app.command(cls=Command)(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"xlite-adapter {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Serve LLMs through xlite with vLLM: an out-of-tree plugin for Ascend NPUs, provable on a CPU."""


def main() -> None:
    """Entry point of the console script."""
    # Help and version; what commands print they guard themselves, with a status of their own.
    with printing(EXIT_OK):
        app()
