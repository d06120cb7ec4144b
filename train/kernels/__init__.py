"""Kernels (Pallas, Triton) for A2C and PPO on NVIDIA GPUs, tested against plain XLA."""
