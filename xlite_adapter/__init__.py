"""Serve LLMs through xlite on Ascend NPUs with vLLM."""

from xlite_adapter._version import __version__

__all__ = ["__version__"]
