"""Rollouts, their opponents and their metrics."""
