"""Custom algorithms of several tests."""

import dataclasses

from wdjax.train import PPO, traced


@dataclasses.dataclass(frozen=True)
class PullOptions(PPO.Options):
    pull: float = traced(0.0, allowed="at least 0")
    """Weight of the pull towards actions with a high probability."""


class Pulled(PPO):
    """PPO with one more term and one more option."""

    Options = PullOptions

    def loss(self, new, batch, options, mean):
        terms = {"pull": -new.log_prob}
        loss, means = super().loss(new, batch, options, lambda own: mean(own | terms))
        return loss + options.pull * means["pull"], means
