"""One atom on its way over an energy surface: WarpDrive's SingleAgentOneAtomChemSearch (see game.py)."""

import dataclasses
from typing import Any, ClassVar

from wdjax.checks import require_known
from wdjax.envs.reaction.game import Params, ReactionPath
from wdjax.spaces import Discrete

RULES = ("auto", "2d", "3d")


@dataclasses.dataclass(frozen=True)
class ReactionOneAtom(ReactionPath):
    """Discrete(6) moves: x + 1, x - 1, y + 1, y - 1, z + 1, z - 1."""

    surface: str = "mueller_brown"
    """a built-in one, the path of a .npy file, or "table": the `energies` given"""
    rule: str = "auto"
    """2d: moves out of the slab stand; 3d: they are cancelled; auto: 2d where start and goal share z"""

    num_atoms: ClassVar[int] = 1

    def __post_init__(self):
        super().__post_init__()
        require_known("rule", self.rule, RULES)

    def in_plane(self, params: Params) -> Any:
        return (
            params.initial_state[2] == params.final_state[2]
            if self.rule == "auto"
            else self.rule == "2d"
        )

    def action_space(self, params: Params) -> Discrete:
        return Discrete(6)
