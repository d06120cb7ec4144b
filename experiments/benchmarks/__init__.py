"""Benchmarks: `wdjax bench` runs the suite; RESULTS.md contains the measurements."""
