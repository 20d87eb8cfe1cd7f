"""Runs a model in real engines, with and without the plugin, and compares what they do.

Read in this order: ``modes`` (what is run), ``engine`` (the child process that holds one vLLM engine), ``child`` (the
parent's handle on it), ``compare`` and ``report`` (what is concluded), ``demo`` (all of it together).
"""
