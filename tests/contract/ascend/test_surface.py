"""What we touch of vllm-ascend and its vLLM is as pinned: a rename or a new signature fails here, and names itself."""

from __future__ import annotations

import json
import re
from collections import defaultdict

import pytest

from tests.contract.ascend.conftest import release
from tests.contract.ascend.surface import PINS, Key, installed, read_surface
from tests.contract.ascend.touched import ABSENT, keys

PINNED = json.loads(PINS.read_text())


@pytest.mark.parametrize("key", keys())
def test_is_as_pinned(key):
    found, pinned = Key.parse(key).read(installed()), PINNED[release()][key]
    assert (found is None) == (key in ABSENT[release()]), f"{key} is {'gone' if found is None else 'there'}"
    assert found == pinned, f"{key} was {pinned}, and is {found}"


def test_nothing_is_left_unpinned():
    assert PINNED[release()].keys() == set(keys())


@pytest.mark.parametrize("part", ["name", "owner"])
def test_a_rename_would_be_seen(part, tmp_path):
    """In copies of the modules, with all names that we touch, or with the classes that have them, renamed."""
    touched = [Key.parse(key) for key in keys()]
    touched = [key for key in touched if getattr(key, part)]
    copies = {package: tmp_path / package for package in installed()}
    renamed = defaultdict(set)
    for key in touched:
        renamed[key.source(installed()), key.source(copies)].add(getattr(key, part))
    for (original, copy), names in renamed.items():
        if original.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(re.sub(rf"\b({'|'.join(names)})\b", r"\1_renamed", original.read_text()))
    found = read_surface(copies)
    missed = [key for key in keys() if Key.parse(key) in touched and found[key] is not None]
    assert missed == [], "these could be renamed unseen"
