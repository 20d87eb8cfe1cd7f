"""How commands print: formats, one-line errors, and text that no terminal trips over."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from arch_registry import ArchRegistryError

EXIT_OK = 0
EXIT_UNSUPPORTED = 1
EXIT_BAD_INPUT = 2

# typer brings its own copy of click since 0.26; this is the base of its errors about the command line in either.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class Format(str, Enum):
    """Output of a command."""

    TABLE = "table"
    JSON = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="A table for people, or JSON on stdout.")]


class Command(TyperCommand):
    """A command that reports bad input in one line on stderr; with --format json also as {"error": ...} on stdout."""

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        given = list(args)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except _UsageError as error:
            raise _usage(error, as_json=_wants_json(given)) from None

    def invoke(self, ctx: Any) -> Any:
        as_json = ctx.params.get("output") is Format.JSON
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            raise _usage(error, as_json=as_json) from None
        except ArchRegistryError as error:
            raise bad_input(str(error), as_json=as_json) from None


def _usage(error: Any, *, as_json: bool) -> typer.Exit:
    message = error.format_message().rstrip(".")
    command = error.ctx.command_path if error.ctx else "xlite-adapter"
    return bad_input(f"{message}. Try '{command} --help'.", as_json=as_json)


def bad_input(message: str, *, as_json: bool) -> typer.Exit:
    """Print an error; raise what it returns."""
    if as_json:
        print_json({"error": message})
    typer.echo(f"error: {one_line(message)}", err=True)
    return typer.Exit(EXIT_BAD_INPUT)


def print_json(value: object) -> None:
    """Print ASCII JSON, whatever the strings hold."""
    typer.echo(json.dumps(value, indent=2))


def warn(problems: Iterable[str]) -> None:
    """One line on stderr for each problem."""
    for problem in problems:
        typer.echo(f"warning: {one_line(problem)}", err=True)


def one_line(text: str) -> str:
    """The text with control characters, line breaks and what stdout cannot encode written as escapes."""
    shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def _wants_json(args: Sequence[str]) -> bool:
    return "--format=json" in args or ("--format", "json") in pairwise(args)
