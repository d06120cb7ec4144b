"""Engines for CPUs and GPUs. They return what the reference (state/engine.py) returns."""
