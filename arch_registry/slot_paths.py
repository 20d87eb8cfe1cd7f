"""Whether the paths of a spec can be those of parameters."""

from __future__ import annotations

from arch_registry.findings import show
from arch_registry.slots import Derived, Optional, PerExpert, PerLayer, Reordered, Single, Slot, Tied


def template_problem(template: str) -> str | None:
    """Why a template does not name one thing for each layer, or None if it does."""
    try:
        if template.format(i=0) != template.format(i=1):
            return None
    except Exception as error:  # str.format fails in many ways
        return f"{show(template)} cannot be filled in for a layer i: {type(error).__name__}: {error}"
    return f"{show(template)} is the same for all layers; {{i}} is missing"


def path_problem(rule: Slot) -> str | None:
    """Why the paths of a rule of this module cannot be those of parameters, or None.

    Without a placeholder all layers share a parameter, which a model may do.
    """
    weight = rule.weight if isinstance(rule, Optional | Tied | Derived | Reordered) else rule
    if isinstance(weight, PerLayer | PerExpert):
        templates = [weight.path, *([rule.source] if isinstance(rule, Derived) else [])]
        return next(filter(None, map(template_problem, filter(_has_braces, templates))), None)
    paths = [rule.to] if isinstance(rule, Tied) else []
    paths += [weight.path] if isinstance(weight, Single) else []
    braced = next(filter(_has_braces, paths), None)
    return None if braced is None else f"{show(braced)} has a placeholder, and only PerLayer fills one in"


def _has_braces(path: str) -> bool:
    return "{" in path or "}" in path
