"""Options of vllm-ascend that xlite cannot follow."""

from __future__ import annotations

import pytest

from xlite_adapter.integrations.platform_options import FULL_MODE_REFUSED, REFUSED, option_findings


def nested(path, value):
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


@pytest.mark.parametrize("path", REFUSED)
def test_what_is_on_is_refused_by_its_name(path):
    (finding,) = option_findings({**nested(path, 2), "xlite_graph_config": {"enabled": True}}, full_mode=False)
    assert (finding.path, finding.got, finding.expected) == (f"additional_config.{path}", 2, "off")
    assert finding.hint.endswith("Leave it out, or leave xlite_graph_config out.")


@pytest.mark.parametrize("off", [False, 0, None, "", []])
@pytest.mark.parametrize("path", [*REFUSED, *FULL_MODE_REFUSED])
def test_what_is_off_is_not(path, off):
    assert list(option_findings(nested(path, off), full_mode=True)) == []


@pytest.mark.parametrize("path", FULL_MODE_REFUSED)
def test_sizes_that_are_measured(path):
    assert list(option_findings(nested(path, True), full_mode=False)) == []
    assert len(list(option_findings(nested(path, True), full_mode=True))) == 1


def test_other_options_are_the_platform_s_own():
    assert list(option_findings({"weight_nz_mode": 2, "eplb_config": "odd"}, full_mode=True)) == []
