"""Base class of both games of Tag, and their moves. Arrays list the taggers before the runners."""

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.checks import require
from wdjax.env import Env

Arrays = dict[str, jax.Array]  # by group, each with a leading agent axis
# Taggers per chunk. From 32 elements on, XLA reduces with a warp and spends most time on shuffles.
CHUNK = 25
# Grid actions: 0 stay, 1 x+1, 2 x-1, 3 y+1, 4 y-1.
X_STEPS = np.array([0, 1, -1, 0, 0], np.int32)
Y_STEPS = np.array([0, 0, 0, 1, -1], np.int32)


@dataclasses.dataclass(frozen=True)
class Tag(Env):
    """A game of `num_taggers` taggers and `num_runners` runners."""

    can_truncate: ClassVar[bool] = False
    cheap_reset: ClassVar[bool] = True
    info_ratios: ClassVar[dict[str, tuple[str, str]]] = {"time_to_tag": ("tag_steps", "tags")}

    if TYPE_CHECKING:  # defined by the games

        @property
        def num_taggers(self) -> int: ...
        @property
        def num_runners(self) -> int: ...
        @property
        def use_full_observation(self) -> bool: ...

    @property
    def groups(self) -> Mapping[str, int]:
        return {"tagger": self.num_taggers, "runner": self.num_runners}

    @property
    def num_agents(self) -> int:
        return self.num_taggers + self.num_runners

    def by_group(self, rows: jax.Array) -> Arrays:
        """Split rows (num_agents, ...) by group."""
        return {"tagger": rows[: self.num_taggers], "runner": rows[self.num_taggers :]}

    def check_num_agents(self) -> None:
        """Raise ValueError if the number of pairs that are compared exceeds the range of int32.

        With partial observations, only taggers and runners are compared pairwise.
        """
        why = "because int32 counts the pairs of agents"
        if self.use_full_observation:
            allowed = f"at most 46340, {why}"
            require(self.num_agents**2 < 2**31, "number of agents", self.num_agents, allowed)
        pairs = self.num_taggers * self.num_runners
        require(pairs < 2**31, "num_taggers * num_runners", pairs, f"less than 2^31, {why}")

    def check_starts(self, params: Any, inside_words: str = "between 0 and grid_length") -> None:
        """Raise ValueError unless the starts have one number per agent, inside the square.

        Args:
            params: the params with the starts.
            inside_words: the allowed positions, for the error message.
        """
        x, y = params.starting_location_x, params.starting_location_y
        require(
            (x is None) == (y is None),
            "starting_location_y",
            y,
            "set together with starting_location_x",
        )
        for name in ("starting_location_x", "starting_location_y", "starting_directions"):
            value = getattr(params, name, None)
            if value is not None:
                require(
                    np.shape(value)[-1:] == (self.num_agents,),
                    name,
                    value,
                    f"{self.num_agents} numbers, one per agent",
                )
                inside = (value >= 0) & (value <= np.asarray(params.grid_length)[..., None])
                require(
                    name == "starting_directions" or np.all(inside),
                    name,
                    value,
                    inside_words,
                )


def wrap(angle: jax.Array) -> jax.Array:
    """Return `angle` [rad] modulo 2 pi."""
    return jnp.mod(angle, jnp.float32(2 * math.pi))


def level(
    index: jax.Array, low: float | jax.Array, high: float | jax.Array, num_levels: int
) -> jax.Array:
    """Return the value of an action index, using evenly spaced levels from `low` to `high`.

    Index 0 is the no-op with value 0; index i is level i - 1 of `num_levels`. If low = -high, the
    levels are exact negatives of each other, so opposite turns cancel exactly.
    """
    steps = max(num_levels - 1, 1)
    part = (2 * (index - 1) - steps) / steps  # from -1 to 1
    return jnp.where(index == 0, 0.0, 0.5 * (high + low) + 0.5 * (high - low) * part)


def distance_between(
    x: jax.Array, y: jax.Array, other_x: jax.Array, other_y: jax.Array
) -> jax.Array:
    """Return sqrt((x - x')^2 + (y - y')^2)."""
    return jnp.sqrt((x - other_x) ** 2 + (y - other_y) ** 2)


def count_by(index: jax.Array, counted: jax.Array, n: int) -> jax.Array:
    """Count the elements of each index among the `counted` ones, (n,) int32."""
    if n <= CHUNK:  # faster than a scatter, which needs a separate kernel
        counts = jnp.sum(counted[:, None] & (index[:, None] == jnp.arange(n)[None, :]), axis=0)
        # otherwise XLA counts again wherever a reward is read, with a single thread per tagger
        return jax.lax.optimization_barrier(counts)
    return jnp.zeros(n, jnp.int32).at[jnp.where(counted, index, n)].add(1, mode="drop")
