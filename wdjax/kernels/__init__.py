"""Kernels for NVIDIA GPUs, in Pallas (Triton). Each has a simple version in XLA beside it, which gives the same."""
