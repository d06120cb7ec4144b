"""Policies, their states, hyperparameters and rollouts, and the interface of algorithms."""

from wdjax.train.state.hypers import Hypers
from wdjax.train.state.policy import Context, Policy, Setup, Team
from wdjax.train.state.rows import Evaluation, Rollout, Rows
from wdjax.train.state.state import Memory, PolicyState, TrainState

__all__ = [
    "Context", "Evaluation", "Hypers", "Memory", "Policy", "PolicyState", "Rollout", "Rows",
    "Setup", "Team", "TrainState",
]  # fmt: skip
