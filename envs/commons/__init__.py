"""Tragedy of the commons with a planner that taxes the harvesters."""

from wdjax.envs.commons.taxed import TaxedCommons

__all__ = ["TaxedCommons"]
