"""A2C and PPO."""
