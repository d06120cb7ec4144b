"""Who is beaten how often: what episodes come to, by who plays in the place of a policy (rollout/self_play.py).

Only such episodes count that one player of the policy has played from the first step to the last, while every other
policy was played by its present self. The others win an episode where the sum of their returns is above its running
mean over all that count (half, where it is the mean): in a game of +1 and -1 these are the games won, as long as some
are and some are not, and in any other game those that went better than usual. A constant added to all returns changes
nothing. Rates and the mean are over about the last EPISODES episodes.

Kept where a policy of the run names `opponents`, `opponents_every` or `opponents_priority`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from wdjax.train.config.schema import TrainConfig
from wdjax.train.devices.collectives import total
from wdjax.train.rollout.self_play import NOW, PRESENT, pool_of
from wdjax.train.state.metric import Metric
from wdjax.train.state.policy import Setup
from wdjax.train.state.rows import Rollout
from wdjax.train.state.state import Memory, TrainState

EPISODES = 200
"""after so many more an episode counts 1 / e of a new one"""
ROUNDING = 2e-5  # of a running mean, relative


class Standings(struct.PyTreeNode):
    """Discounted sums over the episodes that count, by member of the pool; the present self is the last."""

    wins: jax.Array  # [members + 1] float32, of the others against it
    games: jax.Array  # [members + 1] float32
    returns: jax.Array  # () float32, of the others, over all
    episodes: jax.Array  # () float32, all

    @property
    def win_rate(self) -> jax.Array:
        """[members + 1]: 1/2 where nothing is known, as if one game more were won and one more lost."""
        return (self.wins + 1) / (self.games + 2)

    def without(self, member: jax.Array) -> "Standings":
        """Returns them without the games against a member; one that is not there changes nothing."""
        own = jnp.arange(len(self.games)) == member
        return self.replace(wins=jnp.where(own, 0.0, self.wins), games=jnp.where(own, 0.0, self.games))


def keeps_standings(config: TrainConfig) -> bool:
    """Whether a run asks who is beaten how often."""
    return any(p.opponents or p.opponents_priority or p.opponents_every > 1 for p in config.policies.values())


def new_standings(members: int) -> Standings:
    """Returns the standings of a pool before the first episode."""
    return Standings(jnp.zeros(members + 1), jnp.zeros(members + 1), jnp.float32(0), jnp.float32(0))


def add_episodes(
    old: Standings, member: jax.Array, counted: jax.Array, returns: jax.Array
) -> tuple[Standings, jax.Array, jax.Array]:
    """Adds the episodes of a rollout.

    Args:
        member: [N] int32, who played in each replica.
        counted: [T, N] bool, an episode that counts ended in this step.
        returns: [T, N] float32, of the others in it.

    Returns:
        (standings, games [members + 1], sums of returns [members + 1] of this rollout).
    """
    size = len(old.games)
    own = jnp.where(member < 0, size - 1, member)[:, None] == jnp.arange(size)[None]

    def by_member(values: jax.Array) -> jax.Array:
        of_replicas = jnp.sum(jnp.where(counted, values, 0.0), axis=0)
        return jnp.sum(jnp.where(own, of_replicas[:, None], 0.0), axis=0)

    games, sums = total((by_member(jnp.ones_like(returns)), by_member(returns)))
    kept = jnp.exp(-games.sum() / EPISODES)
    all_returns, episodes = kept * old.returns + sums.sum(), kept * old.episodes + games.sum()
    mean = all_returns / jnp.maximum(episodes, jnp.finfo(jnp.float32).tiny)
    near = ROUNDING * jnp.abs(mean)  # equal returns are at their mean
    wins = total(by_member(0.5 * (returns > mean + near) + 0.5 * (returns >= mean - near)))
    kept = jnp.exp(-games / EPISODES)
    new = Standings(kept * old.wins + wins, kept * old.games + games, all_returns, episodes)
    return new, games, sums


def whole_episodes(memory: dict[str, Memory], played: Rollout, name: str) -> jax.Array:
    """Returns [T, N] bool: an episode ended in this step, and counts for who plays in the place of a policy."""
    counted, (steps, num_envs) = played.over, played.over.shape
    for other, own in memory.items():
        if own.member is None:
            continue
        in_replicas = lambda values: jnp.repeat(values, num_envs // len(values))[None]  # noqa: E731
        since = in_replicas(own.since) - steps + 1 + jnp.arange(steps)[:, None]  # env steps up to the end of this
        counted &= played.episode_length <= since
        if other != name:
            counted &= in_replicas(own.member) == PRESENT
    return counted


def look_at_opponents(setup: Setup, state: TrainState, played: Rollout) -> tuple[TrainState, dict[str, Any]]:
    """Brings the standings of all pools up to date after a rollout. Returns (state, metrics by name)."""
    if not keeps_standings(setup.config):
        return state, {}
    steps = len(played.over)
    pools = {name: pool_of(policy.config) for name, policy in setup.policies.items()}
    pools = {name: pool for name, pool in pools.items() if pool.size}
    memory, policies, metrics = dict(state.memory), dict(state.policies), {}
    memory |= {name: memory[name].replace(since=memory[name].since + steps) for name in pools}
    for name, pool in pools.items():
        member = jnp.repeat(memory[name].member, played.over.shape[1] // len(memory[name].member))
        counted = whole_episodes(memory, played, name)
        returns = sum(values for other, values in played.episode_return.items() if other != name)
        new, games, sums = add_episodes(policies[name].standings, member, counted, returns)
        policies[name] = policies[name].replace(standings=new)
        blocks = jnp.where(memory[name].member < 0, pool.size, memory[name].member)[:, None]
        blocks = total(jnp.sum(blocks == jnp.arange(pool.size + 1)[None], axis=0))
        for who, places in {**pool.names, NOW: slice(pool.size, None)}.items():
            ended, won, known = games[places].sum(), new.wins[places].sum(), new.games[places].sum()
            mean = jnp.where(ended > 0, sums[places].sum() / ended, jnp.nan)
            rate, by_games = jnp.where(known > 0, won / known, jnp.nan), (f"{name}/opponent_games/{who}",)
            metrics |= {
                f"{name}/opponent_blocks/{who}": blocks[places].sum(),
                f"{name}/opponent_games/{who}": ended,
                f"{name}/opponent_return/{who}": Metric(mean, weight=by_games),
                f"{name}/opponent_win_rate/{who}": Metric(rate, weight=by_games),
            }
    return state.replace(policies=policies, memory=memory), metrics
