"""Reaction path search on potential energy surfaces with known exact solutions."""

from wdjax.envs.reaction.one_atom import ReactionOneAtom
from wdjax.envs.reaction.two_atoms import ReactionTwoAtoms

__all__ = ["ReactionOneAtom", "ReactionTwoAtoms"]
