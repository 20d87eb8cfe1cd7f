"""Rules that refuse what routers cannot choose from, and slices of shared experts that look whole."""

from __future__ import annotations

from dataclasses import dataclass

from arch_registry.findings import Finding, FindingCode
from arch_registry.scope import Scope


@dataclass(frozen=True, slots=True)
class ExpertGroups:
    """Experts in equal groups; a token chooses among those of its best groups, and a group is as good as its two best.

    Attributes:
        experts: Field that counts the experts.
        groups: Field that counts their groups.
        limited: Field that counts the groups that a token chooses from; no more than there are.
        chosen: Field that counts the experts that a token chooses.
    """

    experts: str = "num_experts"
    groups: str = "n_group"
    limited: str = "topk_group"
    chosen: str = "num_experts_per_tok"

    @property
    def keys(self) -> tuple[str, ...]:
        return ()

    def apply(self, scope: Scope) -> None:
        sizes = scope.ints(self.experts, self.groups)
        if sizes is None or sizes[1] == 1:
            return
        experts, groups = sizes
        if experts % groups or experts // groups < 2:
            expected = f"1, or equal groups of two or more of the {scope.label(self.experts)} {experts}"
            hint = "A group is judged by its two best experts; correct one of the two."
            scope.add(Finding(FindingCode.KEY_VALUE, self._path(scope, self.groups), groups, expected, hint))
            return
        self._check_choice(scope, experts // groups)

    def _check_choice(self, scope: Scope, size: int) -> None:
        sizes = scope.ints(self.limited, self.chosen)
        if sizes is not None and sizes[1] > sizes[0] * size:
            limited, chosen = sizes
            expected = f"at most {limited * size}, the experts in {scope.label(self.limited)} {limited} groups"
            hint = "A token could not choose so many; correct one of the keys."
            scope.add(Finding(FindingCode.KEY_VALUE, self._path(scope, self.chosen), chosen, expected, hint))

    def _path(self, scope: Scope, name: str) -> str:
        return scope.config.path(scope.label(name))


@dataclass(frozen=True, slots=True)
class SharedSlices:
    """A rank's slice of the shared experts is not as wide as one routed expert, by which the runtime knows whole ones.

    Attributes:
        shared: Name that counts the shared experts; a model without it passes.
    """

    shared: str = "n_shared_experts"

    @property
    def keys(self) -> tuple[str, ...]:
        return ()

    def apply(self, scope: Scope) -> None:
        sizes = scope.ints(self.shared, "tp")
        if sizes is None or not sizes[0] == sizes[1] > 1:
            return
        expected = f"1, or another size than {scope.label(self.shared)} ({sizes[0]})"
        hint = "A slice would have the width of a whole shared expert, which the runtime adds up once only."
        scope.add(Finding(FindingCode.PARALLEL, "tensor_parallel_size", sizes[1], expected, hint))
