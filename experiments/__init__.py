"""Command line, presets (configs/), sweeps, benchmarks, reference results and examples."""
