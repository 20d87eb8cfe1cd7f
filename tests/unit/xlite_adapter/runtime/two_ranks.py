"""Two ranks of the reference runtime over gloo, in processes that need not import transformers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from reference_models import Harness, rope_table

from xlite_adapter.runtime import reference as xl


def packed(hf, fields: dict, model: xl.Model) -> tuple:
    """What ``unpacked`` makes a harness of; fields of ModelConfig that are enums by name."""
    plain = {k: v for k, v in hf.config.to_dict().items() if isinstance(v, (int, float, str))}
    slots = {k: v for k, v in vars(model).items() if not k.startswith("_")}
    named = {k: getattr(v, "name", v) if k == "scoring_func" else v for k, v in fields.items()}
    return plain, named, slots, rope_table(hf)


def unpacked(part: tuple, rank: int, kind: type[Harness] = Harness, **sizes: int) -> Harness:
    """A harness of this rank; ``sizes`` are the Runtime's besides those of experts."""
    plain, fields, slots, table = part
    model = xl.Model()
    for slot, value in slots.items():
        setattr(model, slot, value)
    if "scoring_func" in fields:
        fields["scoring_func"] = getattr(xl, fields["scoring_func"])
    experts = {name: fields.get(name, 1) for name in ("moe_ep_size", "moe_tp_size")}
    runtime = xl.Runtime(0, rank=rank, **sizes, **experts)
    hf = SimpleNamespace(config=SimpleNamespace(**plain))
    return kind(hf, overrides=fields, runtime=runtime, model=model, table=table)


@contextmanager
def group(rank: int, folder: Path) -> Iterator[None]:
    """This process as one of two ranks."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    yield
    dist.destroy_process_group()
