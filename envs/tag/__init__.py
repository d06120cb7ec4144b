"""Games of Tag: taggers hunt runners in the plane (continuous) or on a grid (gridworld)."""

from wdjax.envs.tag.continuous import TagContinuous
from wdjax.envs.tag.gridworld import TagGridworld

__all__ = ["TagContinuous", "TagGridworld"]
