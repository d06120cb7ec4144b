"""Reaction path search with two atoms: WarpDrive's SingleAgentTwoAtomChemSearch (see game.py)."""

import dataclasses
from typing import ClassVar

from wdjax.envs.reaction.game import Params, ReactionPath
from wdjax.spaces import MultiDiscrete


@dataclasses.dataclass(frozen=True)
class ReactionTwoAtoms(ReactionPath):
    """One agent moves two atoms over a potential energy surface.

    Actions are MultiDiscrete(2, 6): the atom, and its move (x + 1, x - 1, y + 1, y - 1, z + 1,
    z - 1). Moves out of the slab are cancelled.
    """

    surface: str = "two_atom_exchange"
    """built-in surface, path of a .npy file, or "table" for custom `energies` in the params"""

    num_atoms: ClassVar[int] = 2

    def in_plane(self, params: Params) -> bool:
        return False

    def action_space(self, params: Params) -> MultiDiscrete:
        return MultiDiscrete((2, 6))
