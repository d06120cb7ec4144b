"""Kernels (Pallas, Triton) for the networks of A2C and PPO on NVIDIA GPUs; what they do is said in plain XLA elsewhere."""
