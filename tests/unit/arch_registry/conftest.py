"""Fixtures of the registry's tests."""

from __future__ import annotations

import arch_cases
import pytest


@pytest.fixture
def plan():
    return arch_cases.plan_dict
