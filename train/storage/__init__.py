"""A run's folder: configuration, checkpoints, metrics."""
