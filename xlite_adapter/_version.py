"""Version of the distribution, kept where nothing else is imported."""

__version__ = "0.1.0"
