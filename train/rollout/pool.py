"""Opponent pools as configured, and win rates of the other policies against the opponents.

An episode counts for an opponent that acted in it from the first step to the last, if no other
policy had an opponent. The other policies win if the sum of their returns is above its running mean
over all episodes that count, and win half at the mean. In a game with returns of +1 and -1 these
are the won games, provided that some are won and some are lost; in any other game these are the
episodes above average. A constant added to all returns changes nothing. Rates and the mean are over
about the last EPISODES episodes.

Recorded if a policy of the run sets `opponents`, `opponents_every` or `opponents_priority`.
"""

import dataclasses
from collections.abc import Mapping
from typing import cast

import jax
import jax.numpy as jnp
from flax import struct

from wdjax.metric_names import USER, free_name
from wdjax.train.config.schema import PolicyConfig, TrainConfig
from wdjax.train.devices.collectives import total
from wdjax.train.state.aliases import Metrics
from wdjax.train.state.metric import Metric
from wdjax.train.state.rows import Rollout
from wdjax.train.state.state import PRESENT, BlockState, Opponents, PoolState

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


NOW = "present"  # name of the policy itself in metrics
EPISODES = 200
"""number of episodes after which the weight of an episode is 1 / e"""
ROUNDING = 2e-5  # relative rounding error of the running mean


class Standings(struct.PyTreeNode):
    """Discounted sums over the episodes that count, by opponent; the policy itself is the last."""

    wins: jax.Array  # [opponents + 1] float32, of the other policies against it
    games: jax.Array  # [opponents + 1] float32
    returns: jax.Array  # () float32, of the other policies, over all episodes
    episodes: jax.Array  # () float32, all

    @property
    def win_rate(self) -> jax.Array:
        """[opponents + 1]: 1/2 without games, as if one more game were won and one more lost."""
        return (self.wins + 1) / (self.games + 2)

    def without(self, opponent: jax.Array) -> "Standings":
        """Return the standings without the games against an opponent, () int32; -2: with all."""
        chosen = jnp.arange(len(self.games)) == opponent
        wins, games = (jnp.where(chosen, 0.0, sums) for sums in (self.wins, self.games))
        return self.replace(wins=wins, games=games)


def keeps_standings(config: TrainConfig) -> bool:
    """Return whether a run records win rates."""
    return any(
        policy.opponents or policy.opponents_priority or policy.opponents_every > 1
        for policy in config.policies.values()
    )


def new_standings(size: int) -> Standings:
    """Return the standings of a pool of `size` opponents before the first episode."""
    return Standings(jnp.zeros(size + 1), jnp.zeros(size + 1), jnp.float32(0), jnp.float32(0))


def add_episodes(
    old: Standings, active: jax.Array, counted: jax.Array, returns: jax.Array
) -> tuple[Standings, jax.Array, jax.Array]:
    """Add the episodes of a rollout.

    Args:
        old: standings before.
        active: [N] int32, opponent in each replica.
        counted: [T, N] bool, whether an episode that counts ended in this step.
        returns: [T, N] float32, return of the other policies in it.

    Returns:
        (standings, games [opponents + 1], sums of returns [opponents + 1] of this rollout).
    """
    size = len(old.games)
    is_active = jnp.where(active < 0, size - 1, active)[:, None] == jnp.arange(size)[None]

    def by_opponent(values: jax.Array) -> jax.Array:
        of_replicas = jnp.sum(jnp.where(counted, values, 0.0), axis=0)
        return jnp.sum(jnp.where(is_active, of_replicas[:, None], 0.0), axis=0)

    games, sums = total((by_opponent(jnp.ones_like(returns)), by_opponent(returns)))
    kept = jnp.exp(-games.sum() / EPISODES)
    all_returns = kept * old.returns + sums.sum()
    episodes = kept * old.episodes + games.sum()
    mean = all_returns / jnp.maximum(episodes, jnp.finfo(jnp.float32).tiny)
    near = ROUNDING * jnp.abs(mean)  # equal returns are at their mean
    wins = total(by_opponent(0.5 * (returns > mean + near) + 0.5 * (returns >= mean - near)))
    kept = jnp.exp(-games / EPISODES)
    new = Standings(kept * old.wins + wins, kept * old.games + games, all_returns, episodes)
    return new, games, sums


def whole_episodes(blocks: Mapping[str, BlockState], played: Rollout, name: str) -> jax.Array:
    """Return [T, N] bool: whether an episode ended that counts for the opponent of a policy."""
    counted, (steps, num_envs) = played.over, played.over.shape
    for other, block in blocks.items():
        since, active = (
            jnp.repeat(values, num_envs // len(values))[None]
            for values in (cast(jax.Array, block.since), block.active)
        )
        since = since - steps + 1 + jnp.arange(steps)[:, None]  # env steps up to the end of a step
        counted &= played.episode_length <= since
        if other != name:
            counted &= active == PRESENT
    return counted


def count_episodes(
    numbers: Mapping[str, Mapping[str, slice]], opponents: Opponents, played: Rollout
) -> tuple[Opponents, Metrics]:
    """Update the standings of all pools after a rollout.

    Args:
        numbers: by policy, name of an opponent in metrics -> its numbers in the pool.
        opponents: state after the rollout.
        played: the rollout.

    Returns:
        (opponents, metrics by name).
    """
    steps, num_envs = played.over.shape
    blocks = {
        name: own.replace(since=cast(jax.Array, own.since) + steps)
        for name, own in opponents.blocks.items()
    }
    pools: dict[str, PoolState] = {}
    metrics: Metrics = {}
    for name, pool in opponents.pools.items():
        active = blocks[name].active
        counted = whole_episodes(blocks, played, name)
        others = (values for other, values in played.episode_return.items() if other != name)
        of_replicas = jnp.repeat(active, num_envs // len(active))
        returns = cast(jax.Array, sum(others))
        new, games, sums = add_episodes(pool.standings, of_replicas, counted, returns)
        pools[name] = pool.replace(standings=new)
        size = len(games) - 1
        is_active = jnp.where(active < 0, size, active)[:, None] == jnp.arange(size + 1)[None]
        num_blocks = total(jnp.sum(is_active, axis=0))
        for who, own in {**numbers[name], NOW: slice(size, None)}.items():
            ended, won, known = games[own].sum(), new.wins[own].sum(), new.games[own].sum()
            mean = jnp.where(ended > 0, sums[own].sum() / ended, jnp.nan)
            rate = jnp.where(known > 0, won / known, jnp.nan)
            weight = (f"{name}/opponent_games/{who}",)
            metrics |= {
                f"{name}/opponent_blocks/{who}": num_blocks[own].sum(),
                f"{name}/opponent_games/{who}": ended,
                f"{name}/opponent_return/{who}": Metric(mean, weight=weight),
                f"{name}/opponent_win_rate/{who}": Metric(rate, weight=weight),
            }
    return Opponents(pools, blocks), metrics
