"""Weights: from the plan's paths to the runtime's slots."""

from xlite_adapter.weights.bind import BoundWeights, Weight, bind_weights
from xlite_adapter.weights.packed import PackedLinear
from xlite_adapter.weights.transforms import FORMS, ORDERS, TRANSFORMS

__all__ = ["FORMS", "ORDERS", "TRANSFORMS", "BoundWeights", "PackedLinear", "Weight", "bind_weights"]
