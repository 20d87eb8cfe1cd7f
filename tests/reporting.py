"""Measurements that tests make, shown together in the summary at the end; conftests import the names."""

from __future__ import annotations

from collections.abc import Callable

import pytest

_REPORT = pytest.StashKey[list[str]]()


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """``report(line)``: a measurement that the summary at the end shows."""
    return lambda line: add_line(request.config, line)


def add_line(config: pytest.Config, line: str) -> None:
    """The same for fixtures of a wider scope."""
    config.stash.setdefault(_REPORT, []).append(line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash.get(_REPORT, [])
    if lines:
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.write_line(line)
        # Another conftest may have imported this too.
        lines.clear()
