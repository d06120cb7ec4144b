"""Rollouts: policies act in replicas for some steps."""
