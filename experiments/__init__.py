"""What a person runs: presets (configs/), the command line, benchmarks."""
