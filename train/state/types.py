"""Old name of aliases.py, which hides a module of the standard library. Removed at the end."""

from wdjax.train.state.aliases import *  # noqa: F403
