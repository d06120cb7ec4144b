"""Engines for CPUs and GPUs, with the results of the reference engine (state/engine.py)."""
