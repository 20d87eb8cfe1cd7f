"""How commands print: formats, one-line errors, and text that no terminal trips over."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from typer.core import TyperCommand, TyperGroup

from arch_registry import ArchRegistryError

if TYPE_CHECKING:
    from rich.console import Console

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


class Group(TyperGroup):
    """The same for what comes before a command, or is none."""

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        given = list(args)
        try:
            context = super().make_context(info_name, args, parent, **extra)
        except _UsageError as error:
            if not given:  # that is how the help is asked for
                raise
            raise _usage(error, as_json=_wants_json(given)) from None
        context.meta[__name__] = _wants_json(given)
        return context

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            raise _usage(error, as_json=ctx.meta[__name__]) from None


@contextmanager
def printing(status: int) -> Iterator[None]:
    """A block that prints. A reader that went away leaves the status what it is; any other failure to write is 2.

    Raises:
        SystemExit: What was to be printed could not be.
    """
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()
        _say("", end="")
        raise SystemExit(status) from None
    except OSError as error:
        discard_stdout()
        _say(f"error: the output cannot be written: {error.strerror or error}")
        raise SystemExit(EXIT_BAD_INPUT) from None


def discard_stdout() -> None:
    """Let what is still buffered, and all that follows, go nowhere: Python would fail again when it exits."""
    _discard(sys.stdout)


def _discard(stream: TextIO | None) -> None:
    if stream is None:
        return
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _say(line: str, end: str = "\n") -> None:
    try:
        typer.echo(line + end, err=True, nl=False)
    except OSError:
        _discard(sys.stderr)


@contextmanager
def trimmed(console: Console) -> Iterator[None]:
    """What the block prints, without blanks at the ends of lines unless a terminal shows it."""
    if console.is_terminal:
        yield
        return
    with console.capture() as captured:
        yield
    text = "".join(line.rstrip(" \n") + "\n" * line.endswith("\n") for line in captured.get().splitlines(keepends=True))
    console.file.write(text)
    console.file.flush()


def _usage(error: Any, *, as_json: bool) -> typer.Exit:
    message = error.format_message().rstrip(".")
    command = error.ctx.command_path if error.ctx else "xlite-adapter"
    return bad_input(f"{message}. Try '{command} --help'.", as_json=as_json)


def bad_input(message: str, *, as_json: bool) -> typer.Exit:
    """Print an error; raise what it returns."""
    if as_json:
        with printing(EXIT_BAD_INPUT):
            print_json({"error": message})
    _say(f"error: {one_line(message)}")
    return typer.Exit(EXIT_BAD_INPUT)


def print_json(value: object) -> None:
    """Print ASCII JSON, whatever the strings hold."""
    typer.echo(json.dumps(value, indent=2))


def warn(problems: Iterable[str]) -> None:
    """One line on stderr for each problem."""
    for problem in problems:
        _say(f"warning: {one_line(problem)}")


def one_line(text: str) -> str:
    """The text with control characters, line breaks and what stdout cannot encode written as escapes."""
    shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def _wants_json(args: Sequence[str]) -> bool:
    return "--format=json" in args or ("--format", "json") in pairwise(args)
