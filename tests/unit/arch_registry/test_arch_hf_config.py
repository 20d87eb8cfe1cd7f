"""Reading config.json: files that are none, values of the wrong kind, and the record of what was read."""

from __future__ import annotations

import json
import math

import pytest

from arch_registry import Finding, FindingCode, HfConfig, InvalidConfigError
from arch_registry.findings import show

WRONG_NUMBERS = (True, "1.0", math.nan, math.inf, -math.inf, 0, -1.5, 10**400, [1.0], 2.5)


def test_reads_a_file_and_a_folder(tmp_path):
    (tmp_path / "config.json").write_text('{"hidden_size": 64}')
    for path in (tmp_path, tmp_path / "config.json", str(tmp_path)):
        assert HfConfig.from_path(path).get("hidden_size") == 64


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not valid JSON"),
        (b"{'a': 1}", "not valid JSON"),
        (b'{"a": 1', "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"[1, 2]", "expected a JSON object, got list"),
        (b"null", "expected a JSON object, got NoneType"),
        (b"3", "expected a JSON object, got int"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"a": ' + b"[" * 200_000, "not valid JSON"),
        (b'{"a": "' + b"x" * (16 * 2**20) + b'"}', "larger than"),
    ],
    ids=lambda value: show(value)[:20],
)
def test_files_that_are_no_config(tmp_path, content, says):
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(InvalidConfigError, match=says) as caught:
        HfConfig.from_path(file)
    assert str(file) in str(caught.value)
    assert len(str(caught.value)) < 500 + len(str(file))


def test_missing_files(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "nowhere" / "config.json"):
        with pytest.raises(InvalidConfigError, match="no such file"):
            HfConfig.from_path(path)
    with pytest.raises(InvalidConfigError):
        HfConfig.from_path("a\0b")
    with pytest.raises(InvalidConfigError, match="not a regular file"):
        HfConfig.from_path("/dev/null")


@pytest.mark.parametrize("data", [[], "x", None, 3, {1: 2}, {None: 1}])
def test_from_dict_wants_string_keys(data):
    with pytest.raises(InvalidConfigError):
        HfConfig.from_dict(data)


def test_is_independent_of_the_dictionary_and_records_reads():
    data = {"a": 1, "b": None, "c": {"d": 2}}
    config = HfConfig.from_dict(data)
    data["z"] = 1
    assert config.get("a") == 1
    assert config.get("absent", 7) == 7
    assert not config.is_set("b")
    assert config.read_keys == {"a", "b", "absent"}
    assert config.unread_keys() == ("c",)
    assert "c" in config
    assert config.unread_keys() == ()
    assert config.fresh().read_keys == frozenset()
    section = config.section("c").value
    assert section is not None
    assert section.path("d") == "config.json: c.d"


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (True, FindingCode.KEY_TYPE),
        ("64", FindingCode.KEY_TYPE),
        (64.0, FindingCode.KEY_TYPE),
        (math.nan, FindingCode.KEY_TYPE),
        ([64], FindingCode.KEY_TYPE),
        (0, FindingCode.KEY_VALUE),
        (-1, FindingCode.KEY_VALUE),
        (10**5000, FindingCode.KEY_VALUE),
    ],
    ids=lambda value: show(value)[:20],
)
def test_integers(value, code):
    reading = HfConfig.from_dict({"n": value}).integer("n", 1, 100)
    assert reading.value is None
    assert reading.finding is not None
    assert reading.finding.code is code
    assert "an integer from 1 to 100" in reading.finding.message


@pytest.mark.parametrize("value", WRONG_NUMBERS, ids=lambda value: show(value)[:20])
def test_numbers(value):
    reading = HfConfig.from_dict({"n": value}).number("n", most=2.0)
    assert reading.value is None
    assert reading.finding is not None
    assert "a finite number above 0 up to 2" in reading.finding.message


def test_good_values_and_nulls():
    config = HfConfig.from_dict({"i": 3, "f": 1, "b": False, "s": "x", "n": None})
    assert config.integer("i", 1, 3).value == 3
    assert config.number("f").value == 1.0
    assert config.boolean("b").value is False
    assert config.string("s").value == "x"
    for read in (config.number, config.boolean, config.string, config.section):
        assert read("n").value is None
        assert read("n").finding is None
    for read in (config.boolean, config.string, config.section):
        assert read("i").finding is not None


def test_messages_survive_any_value():
    class Bad:
        def __repr__(self) -> str:
            raise RuntimeError

    for value in (10**5000, "x" * 10**6, Bad(), math.nan):
        message = Finding(FindingCode.KEY_VALUE, "k", value, "something", "Do something.").message
        assert len(message) < 300
    assert show("ä") == "'ä'"


def test_nan_in_a_file_is_read_as_a_number_that_is_none(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"rms_norm_eps": math.nan}))
    assert HfConfig.from_path(tmp_path).number("rms_norm_eps").finding is not None
