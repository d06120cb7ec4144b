"""DDPG, and TD3 by its options."""
