"""Pallas (Triton) kernels for NVIDIA GPUs. Each has an equivalent implementation in plain XLA."""
