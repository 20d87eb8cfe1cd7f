"""Every published config has a known origin, and is a config."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

CONFIGS = Path(__file__).parents[2] / "fixtures" / "configs"
FOLDERS = sorted(str(file.parent.relative_to(CONFIGS)) for file in CONFIGS.rglob("config.json"))
ROW = re.compile(r"\| ([^/| ]+/[^/| ]+) \|(.*)\|")


def _rows():
    """(model, its other cells) of each row, in the table's order."""
    lines = (CONFIGS / "SOURCES.md").read_text(encoding="utf-8").splitlines()
    return [(row[1], row[2].split("|")) for line in lines if (row := ROW.fullmatch(line))]


def _object(pairs):
    keys = [key for key, _ in pairs]
    assert len(keys) == len(set(keys)), f"a key is written twice: {keys}"
    return dict(pairs)


def test_folders_and_rows_are_the_same():
    names = [name for name, _ in _rows()]
    assert sorted(names) == FOLDERS, "a folder without a row, a row without a folder, or a row written twice"


def test_every_row_says_source_comparison_and_licence():
    for name, cells in _rows():
        assert [bool(cell.strip()) for cell in cells] == [True] * 3, name


@pytest.mark.parametrize("name", FOLDERS)
def test_is_a_config(name):
    config = json.loads((CONFIGS / name / "config.json").read_text(encoding="utf-8"), object_pairs_hook=_object)
    assert isinstance(config, dict)
    assert isinstance(config["model_type"], str)
    architectures = config["architectures"]
    assert isinstance(architectures, list)
    assert architectures
    assert all(isinstance(architecture, str) and architecture for architecture in architectures)
