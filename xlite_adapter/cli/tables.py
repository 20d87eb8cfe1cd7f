"""Tables for people."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from xlite_adapter.cli.output import one_line
from xlite_adapter.verify.compare import first_difference
from xlite_adapter.verify.report import DemoReport, ModeReport

EXCERPT = 40  # characters of a prompt or an answer


def print_report(report: DemoReport, console: Console) -> None:
    """Print what happened per mode, per batch reason and per prompt, then the verdict."""
    console.print()
    for table in (modes_table(report), paths_table(report), prompts_table(report)):
        console.print(table)
    for check in report.checks:
        mark = "[green]ok  [/]" if check.passed else "[bold red]FAIL[/]"
        console.print(f"{mark}  {escape(check.name)} ({escape(one_line(check.detail))})", highlight=False)
    verdict = "[bold green]All modes agree.[/]" if report.passed else "[bold red]The modes do not agree.[/]"
    console.print(verdict)


def modes_table(report: DemoReport) -> Table:
    """Speed and memory per mode."""
    environment = report.environment
    threads = f"{environment['threads']} thread" + "s" * (environment["threads"] != 1)
    title = f"Speed and memory: {environment['speed_dtype']}, {environment['max_num_seqs']} sequences, {threads}"
    table = Table(title=title, title_justify="left")
    table.add_column("mode", overflow="fold")
    for header in ("ms per decode step", "against stock", "peak memory, MiB"):
        table.add_column(header, justify="right", overflow="fold")
    for mode in report.modes:
        table.add_row(
            mode.name,
            f"{mode.decode_step_ms_median:.2f}",
            f"{report.ratio_to_stock(mode):.2f}x",
            f"{mode.peak_rss_mib:.0f}",
        )
    return table


def paths_table(report: DemoReport) -> Table:
    """Batches and tokens per mode, path and reason, while the prompts were served."""
    table = Table(title="Where the batches of the prompts ran", title_justify="left")
    for header in ("mode", "path", "reason"):
        table.add_column(header, overflow="fold")
    for header in ("batches", "tokens"):
        table.add_column(header, justify="right", overflow="fold")
    for mode in report.modes:
        for path, reasons in mode.batches.items():
            for reason, batches in reasons.items():
                table.add_row(mode.name, path, reason, str(batches), str(mode.tokens[path][reason]))
        table.add_section()
    return table


def prompts_table(report: DemoReport) -> Table:
    """Per prompt: the stock answer, and whether the other modes gave the same tokens."""
    stock, *others = report.modes
    table = Table(title=f"Answers: {report.environment['tokens_dtype']}, greedy", title_justify="left")
    table.add_column("prompt", overflow="fold", max_width=EXCERPT)
    table.add_column("stock's answer", overflow="fold", max_width=EXCERPT)
    table.add_column("tokens", justify="right", overflow="fold")
    for mode in others:
        table.add_column(mode.name, overflow="fold")
    for number, prompt in enumerate(report.prompts):
        text = stock.texts[number] or str(stock.token_ids[number])
        marks = [_equality(stock, mode, number) for mode in others]
        table.add_row(_excerpt(prompt), _excerpt(text), str(len(stock.token_ids[number])), *marks)
    return table


def _equality(stock: ModeReport, mode: ModeReport, number: int) -> Text:
    at = first_difference(stock.token_ids[number], mode.token_ids[number])
    return Text("equal", "green") if at is None else Text(f"differs at {at}", "bold red")


def _excerpt(text: str) -> Text:
    line = one_line(" ".join(text.split()))
    return Text(line if len(line) <= EXCERPT else line[: EXCERPT - 3] + "...")
