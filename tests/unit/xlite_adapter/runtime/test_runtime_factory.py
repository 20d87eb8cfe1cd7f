import pytest

from xlite_adapter.errors import RuntimeUnavailableError
from xlite_adapter.runtime import reference
from xlite_adapter.runtime.factory import RuntimeKind, load_runtime


@pytest.mark.parametrize(("kind", "platform"), [("auto", "cpu"), ("reference", "cpu"), ("reference", "ascend")])
def test_reference(kind, platform):
    api, name, version = load_runtime(kind, platform)
    assert (api, name) == (reference, "reference")
    assert version


@pytest.mark.parametrize(("kind", "platform"), [("native", "cpu"), ("native", "ascend"), ("auto", "ascend")])
def test_native_is_planned(kind, platform):
    with pytest.raises(
        RuntimeUnavailableError, match=f"'{kind}' on platform '{platform}'.* planned with the Ascend workers"
    ):
        load_runtime(kind, platform)


def test_unknown_kind():
    with pytest.raises(
        RuntimeUnavailableError, match="unknown runtime 'torch': expected one of auto, native, reference"
    ):
        load_runtime("torch", "cpu")


def test_members_are_accepted():
    assert load_runtime(RuntimeKind.REFERENCE, "cpu").name == "reference"
