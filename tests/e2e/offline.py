"""A program of its own: generates with an engine and writes what came out, and this process's memory, as JSON."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import psutil

from tests.e2e import engines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--settings", type=json.loads, default={})
    arguments = parser.parse_args()
    with engines.engine(arguments.model, **arguments.settings) as llm:
        run = engines.generate(llm, engines.prompts())
        stats = engines.xlite_stats(llm) if "additional_config" in arguments.settings else []
        resident = psutil.Process().memory_info().rss
    arguments.result.write_text(json.dumps({"tokens": run.tokens, "stats": stats, "resident": resident}))


if __name__ == "__main__":
    main()
