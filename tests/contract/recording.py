"""One recorded batch of one model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from arch_registry import RuntimePlan
from tests.contract import models
from tests.contract.labels import Labels
from tests.contract.running import running
from tests.contract.stub.recorder import Launch


@dataclass
class Recording:
    """Launches of a batch, in order, and the names of what they point to."""

    plan: RuntimePlan
    launches: list[Launch]
    labels: Labels

    @property
    def described(self) -> list[str]:
        return [self.labels.described(launch) for launch in self.launches]

    def all(self, kernel: str, dtype: str | None = None) -> list[Launch]:
        return [x for x in self.launches if x.kernel == kernel and dtype in (None, x.dtype)]

    def first(self, kernel: str) -> Launch:
        return self.all(kernel)[0]


def record(api: Any, plan: RuntimePlan, load: models.Load, fp32: tuple[str, ...] = ()) -> Recording:
    """Run the batch; slots in ``fp32`` hold weights of that dtype."""
    weights = models.weights_of(plan)
    slots = {name: [w.float() for w in held] if name in fp32 else held for name, held in weights.slots.items()}
    weights = models.BoundWeights(slots, weights.rope_table)
    built, caches = models.build(api, plan, weights), models.caches_of(plan)
    recorder = running().recorder
    recorder.clear()
    batch = models.run(built, plan, load, caches)
    return Recording(plan, recorder.launches(), Labels(built, slots, caches, batch))
