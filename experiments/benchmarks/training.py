"""Names that other benchmarks take from here; they live in `timing`."""

from wdjax.experiments.benchmarks.timing import machine, median_seconds, workload

__all__ = ["machine", "median_seconds", "workload"]
