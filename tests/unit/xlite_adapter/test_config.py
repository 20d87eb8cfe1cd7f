"""Options: every wrong input names the offender, its value, what is allowed and the closest match."""

import pytest

from xlite_adapter.config import OnUnsupported, Options, RuntimeKind, XliteGraphConfig
from xlite_adapter.errors import ConfigurationError


def section(**keys):
    return {"xlite_graph_config": keys}


@pytest.mark.parametrize(
    ("additional_config", "enabled", "full_mode"),
    [
        (None, False, False),
        ({}, False, False),
        ({"ascend_scheduler_config": {}}, False, False),
        ({"xlite_graph_config": None}, False, False),
        (section(), False, False),
        (section(enabled=True), True, False),
        (section(enabled=True, full_mode=True), True, True),
        (object(), False, False),
    ],
)
def test_good_sections(additional_config, enabled, full_mode):
    config = XliteGraphConfig.from_additional_config(additional_config)
    assert (config.enabled, config.full_mode) == (enabled, full_mode)


@pytest.mark.parametrize(
    ("additional_config", "parts"),
    [
        (section(enabled=True, fullmode=True), ["'fullmode'", "True", "'full_mode'", "Did you mean 'full_mode'"]),
        (section(enabled="true"), ["'enabled'", "'true'", "str", "without quotes"]),
        (section(enabled=1), ["'enabled'", "1", "int", "true or false"]),
        (section(full_mode=None), ["'full_mode'", "None"]),
        (section(enabled=True, budget=4), ["'budget'", "4", "'enabled'", "XLITE_ADAPTER_*"]),
        ({"xlite_graph_config": True}, ["xlite_graph_config", "True", "bool", "an object"]),
        ({"xlite_graph_config": [1]}, ["xlite_graph_config", "list"]),
        ({"xlite_graph_confg": {"enabled": True}}, ["'xlite_graph_confg'", "'xlite_graph_config'"]),
        ({"xlite-graph-config": {"enabled": True}}, ["'xlite-graph-config'", "'xlite_graph_config'"]),
        ({"xlite_graph": {"enabled": True}}, ["'xlite_graph'", "{'enabled': True}", "'xlite_graph_config'"]),
        ({"enabled": True}, ["'enabled'", "belongs inside", "{'xlite_graph_config': {'enabled': True}}"]),
        ({"full_mode": True}, ["'full_mode'", "belongs inside"]),
    ],
)
def test_bad_sections(additional_config, parts):
    with pytest.raises(ConfigurationError) as error:
        XliteGraphConfig.from_additional_config(additional_config)
    assert all(part in str(error.value) for part in parts)


def test_only_quoted_values_are_told_to_lose_their_quotes():
    for value, told in (("true", True), (1, False), (None, False)):
        with pytest.raises(ConfigurationError) as error:
            XliteGraphConfig.from_additional_config(section(enabled=value))
        assert ("quotes" in str(error.value)) == told


def test_every_problem_is_reported_at_once():
    with pytest.raises(ConfigurationError) as error:
        XliteGraphConfig.from_additional_config(section(enabled="yes", fullmode=1))
    assert "'yes'" in str(error.value)
    assert "'fullmode'" in str(error.value)


def test_options_of_the_environment(tmp_path):
    environ = {
        "XLITE_ADAPTER_RUNTIME": "reference",
        "XLITE_ADAPTER_ON_UNSUPPORTED": "native",
        "XLITE_ADAPTER_TRACE": str(tmp_path / "trace"),
        "PATH": "/bin",
    }
    assert Options.from_env(environ) == Options(
        runtime=RuntimeKind.REFERENCE, on_unsupported=OnUnsupported.NATIVE, trace=tmp_path / "trace"
    )
    assert Options.from_env({}) == Options.from_env({"XLITE_ADAPTER_RUNTIME": "", "XLITE_ADAPTER_TRACE": ""})


@pytest.mark.parametrize(
    ("environ", "parts"),
    [
        ({"XLITE_ADAPTER_RUNTIM": "native"}, ["XLITE_ADAPTER_RUNTIM='native'", "Did you mean 'XLITE_ADAPTER_RUNTIME'"]),
        ({"XLITE_ADAPTER_RUNTIME": "cuda"}, ["XLITE_ADAPTER_RUNTIME is 'cuda'", "'auto', 'native', 'reference'"]),
        ({"XLITE_ADAPTER_ON_UNSUPPORTED": "warn"}, ["XLITE_ADAPTER_ON_UNSUPPORTED is 'warn'", "'error', 'native'"]),
    ],
)
def test_bad_variables(environ, parts):
    with pytest.raises(ConfigurationError) as error:
        Options.from_env(environ)
    assert all(part in str(error.value) for part in parts)
