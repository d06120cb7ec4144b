"""Base class of both games of Tag. Arrays list the taggers first, then the runners."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import numpy as np

from wdjax.checks import require
from wdjax.env import Env

Arrays = dict[str, jax.Array]  # by group, each with a leading agent axis


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
    def groups(self) -> Mapping[str, int]:
        return {"tagger": self.num_taggers, "runner": self.num_runners}

    @property
    def num_agents(self) -> int:
        return self.num_taggers + self.num_runners

    def by_group(self, rows: jax.Array) -> Arrays:
        """Split rows (num_agents, ...) by group."""
        return {"tagger": rows[: self.num_taggers], "runner": rows[self.num_taggers :]}

    def check_num_agents(self) -> None:
        """Raise ValueError if the number of agent pairs exceeds the range of int32."""
        require(
            self.num_agents**2 < 2**31,
            "number of agents",
            self.num_agents,
            "at most 46340, because int32 counts the pairs of agents",
        )

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
