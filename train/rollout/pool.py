"""Opponent pools as configured: snapshots, other runs, scripts and random play."""

import dataclasses

from wdjax.metric_names import USER, free_name
from wdjax.train.config.schema import PolicyConfig
from wdjax.train.rollout.standings import NOW

RANDOM = "random"
REFERENCE = "reference:"  # prefix of a bundled run, such as "reference:tag_continuous"


@dataclasses.dataclass(frozen=True)
class Pool:
    """Static description of the opponents of a policy, in the order of their numbers."""

    past: int  # number of snapshots
    runs: tuple[str, ...]
    rules: tuple[str, ...]  # scripts and random play

    @property
    def networks(self) -> int:
        """Number of opponents with a network."""
        return self.past + len(self.runs)

    @property
    def size(self) -> int:
        """Number of opponents."""
        return self.networks + len(self.rules)

    @property
    def names(self) -> dict[str, slice]:
        """Name in metrics -> numbers; snapshots share "past". A name that is taken is user/NAME."""
        names = {"past": slice(0, self.past)} if self.past else {}
        for i, name in enumerate((*self.runs, *self.rules), self.past):
            free = free_name(name, USER, lambda name: name in names or name == NOW)
            names[free] = slice(i, i + 1)
        return names


def pool_of(config: PolicyConfig) -> Pool:
    """Return the pool of a policy. A run is named by a path or a reference, unlike a rule."""
    runs = tuple(name for name in config.opponents if "/" in name or name.startswith(REFERENCE))
    rules = tuple(name for name in config.opponents if name not in runs)
    return Pool(config.past_selves, runs, rules)
