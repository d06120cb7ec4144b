"""Kernels (Pallas, Triton) for the networks of A2C and PPO on NVIDIA GPUs. Plain XLA says the same and tests them."""
