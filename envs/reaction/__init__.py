"""Reaction path search on potential energy surfaces with known exact solutions."""

from wdjax.envs.reaction.game import ReactionOneAtom, ReactionTwoAtoms

__all__ = ["ReactionOneAtom", "ReactionTwoAtoms"]
