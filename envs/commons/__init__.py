"""A common pool that agents harvest, and a planner who taxes them."""

from wdjax.envs.commons.taxed import TaxedCommons

__all__ = ["TaxedCommons"]
