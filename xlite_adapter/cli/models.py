"""``archs``, ``check`` and ``plan``: what is known of models before anything is installed or loaded."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from arch_registry import ArchRegistryError, HfConfig, ParallelShape, Quantization, Registry
from arch_registry.checkpoint import folder_findings
from arch_registry.parallel import DTYPES
from xlite_adapter.cli import verdict
from xlite_adapter.cli.output import EXIT_OK, EXIT_UNSUPPORTED, Format, FormatOption, print_json, printing, warn
from xlite_adapter.cli.registry import problems, registry

Dtype = Annotated[str, typer.Option(help=f"One of auto, {', '.join(DTYPES)}. auto: float16 if config.json says so, "
                                         "else bfloat16.")]  # fmt: skip
ConfigPath = Annotated[str, typer.Argument(metavar="PATH", help="A config.json, or the folder that has it.")]


def _size(text: str, low: int = 1) -> Any:
    return typer.Option(min=low, max=verdict.MAX_OPTION, help=text)


Tp = Annotated[int, _size("Tensor-parallel size.")]
Dp = Annotated[int, _size("Data-parallel size; ranks of a dense model are independent engines.")]
Ep = Annotated[int, _size("Expert-parallel size; without effect on a dense model.")]


def archs(output: FormatOption = Format.TABLE) -> None:
    """List the architectures that can be served, and which package each comes from."""
    known = registry()
    rows = [_row(known, name) for name in known]
    with printing(EXIT_OK):
        warn(problems(known))
        if output is Format.JSON:
            print_json(rows)
            return
        from xlite_adapter.cli.model_tables import print_archs

        print_archs(rows)


def check(path: ConfigPath, tp: Tp = 1, dp: Dp = 1, ep: Ep = 1, output: FormatOption = Format.TABLE) -> None:
    """Say whether a model can be served, or every reason why not.

    It judges the model alone, not the engine's limits: use plan for those. Exits with 0 if it is supported, 1 if not,
    and 2 if there is no config.json to read.
    """
    known = registry()
    config, types = _read(path), Quantization.beside(path)
    found = verdict.check_config(config, known, ParallelShape(tp, dp, ep), folder_findings(path), types)
    _finish(found, found.to_json(), known, output)


def plan(
    path: ConfigPath,
    max_num_seqs: Annotated[int, _size("Most requests in a batch.")] = 256,
    max_num_batched_tokens: Annotated[int, _size("Most tokens in a batch.")] = 2048,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, max=verdict.MAX_OPTION, show_default="all the model has positions for",
                                 help="Most tokens in a sequence.")
    ] = None,
    block_size: Annotated[int, _size("Tokens in a KV block.")] = verdict.BLOCK_SIZE,
    tp: Tp = 1,
    dp: Dp = 1,
    ep: Ep = 1,
    spec_tokens: Annotated[int, _size("Speculative tokens per request and step.", low=0)] = 0,
    full_mode: Annotated[bool, typer.Option("--full-mode", help="Size the budget for prefill too.")] = False,
    dtype: Dtype = verdict.AUTO,
    output: FormatOption = Format.TABLE,
) -> None:  # fmt: skip
    """Show how the runtime is sized for a model: token budget, ModelConfig, weight slots and bytes per rank.

    The defaults are those of vLLM's server, with the KV blocks of Ascend and CPUs. Exits with 0 if the model is
    supported, 1 if not, and 2 if there is no config.json to read or an option is wrong.
    """
    if dtype not in (verdict.AUTO, *DTYPES):
        raise typer.BadParameter(f"{dtype!r} is not one of auto, {', '.join(DTYPES)}.", param_hint="'--dtype'")
    engine = verdict.EngineOptions(
        max_num_seqs, max_num_batched_tokens, max_model_len, block_size, spec_tokens, full_mode, dtype
    )
    known = registry()
    config, types = _read(path), Quantization.beside(path)
    found = verdict.plan_config(config, known, ParallelShape(tp, dp, ep), engine, folder_findings(path), types)
    _finish(found, found.plan_json(), known, output)


def _read(path: str) -> HfConfig:
    try:
        return HfConfig.from_path(path)
    except ArchRegistryError as error:
        if not re.fullmatch(r"[\w.-]*\w/[\w.-]+", path) or "no such file" not in str(error):
            raise
        hint = "If it is the name of a model on a hub: these are not looked up, give the folder of a download."
        raise ArchRegistryError(f"{str(error).rstrip('.')}. {hint}") from None


def _row(known: Registry, name: str) -> dict[str, Any]:
    spec = known.get(name)
    assert spec is not None  # name is one of the registry's own
    return {
        "architecture": name,
        "attention": spec.attention,
        "moe": spec.moe,
        "spec": spec.name,
        "source": known.owner(name),
    }


def _finish(found: verdict.Verdict, as_json: dict[str, Any], known: Registry, output: Format) -> None:
    status = EXIT_OK if found.plan is not None else EXIT_UNSUPPORTED
    with printing(status):
        if output is Format.JSON:
            print_json({**as_json, "problems": problems(known)})
        else:
            from xlite_adapter.cli.model_tables import print_verdict

            warn(problems(known))
            print_verdict(as_json)
    raise typer.Exit(status)
