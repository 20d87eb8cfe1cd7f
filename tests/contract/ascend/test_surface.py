"""What we touch of vllm-ascend is as pinned: a rename or another signature fails here, and names itself."""

from __future__ import annotations

import json

import pytest

from tests.contract.ascend.conftest import release
from tests.contract.ascend.surface import PINS, installed, read_surface

PINNED = json.loads(PINS.read_text())


@pytest.mark.parametrize("name", sorted(PINNED[release()]) if release() in PINNED else [])
def test_is_as_pinned(name):
    found = read_surface(installed())
    assert found[name] is not None, f"{name} is gone"
    assert found[name] == PINNED[release()][name]


def test_nothing_is_left_unpinned():
    assert read_surface(installed()).keys() == PINNED[release()].keys()
