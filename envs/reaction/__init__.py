"""Reaction paths: atoms find their way over an energy table, on surfaces whose right answers are known."""

from wdjax.envs.reaction.one_atom import ReactionOneAtom
from wdjax.envs.reaction.two_atoms import ReactionTwoAtoms

__all__ = ["ReactionOneAtom", "ReactionTwoAtoms"]
