"""Reaction path search with one atom: WarpDrive's SingleAgentOneAtomChemSearch (see game.py)."""

import dataclasses
from typing import Any, ClassVar

from wdjax.checks import require_known
from wdjax.envs.reaction.game import Params, ReactionPath
from wdjax.spaces import Discrete

RULES = ("auto", "2d", "3d")


@dataclasses.dataclass(frozen=True)
class ReactionOneAtom(ReactionPath):
    """One agent moves one atom over a potential energy surface.

    Actions are Discrete(6): x + 1, x - 1, y + 1, y - 1, z + 1, z - 1.
    """

    surface: str = "mueller_brown"
    """built-in surface, path of a .npy file, or "table" for custom `energies` in the params"""
    rule: str = "auto"
    """handling of moves out of the slab: "2d" executes them, "3d" cancels them, "auto" selects "2d"
    if start and goal have the same z and "3d" otherwise"""

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
