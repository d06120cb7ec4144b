"""The critic of a team: the value of every agent from the global state, for `MAPPO`."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.spaces import Box
from wdjax.train.learning import (
    Batch,
    Context,
    CriticNetwork,
    Evaluation,
    Policy,
    PolicyState,
    Rollout,
    RunningStatistics,
    Team,
    encode,
    encoded_size,
    update_statistics,
)
from wdjax.train.state.aliases import Carry, Observation
from wdjax.train.state.normalization import (
    EPSILON,
    normalize_observation,
    update_observation_statistics,
)
from wdjax.vector import when_any


def make_critic(team: Team, context: Context, sees_own: bool, rngs: nnx.Rngs) -> CriticNetwork:
    """Return the critic of a team, with the network configuration of its first policy.

    Args:
        team: static part of the team.
        context: the environment, the run, and the agents of all policies.
        sees_own: the critic also receives the observation of the agent.
        rngs: random numbers for the parameters.
    """
    config = team.first.config.network
    config = dataclasses.replace(config, encoder="flat", encoder_options={})
    size = encoded_size(context.global_state_space) + num_agents(team)
    if sees_own:
        spaces = [policy.assignment.network_space for policy in team.policies.values()]
        size += max(map(encoded_size, spaces))
    return CriticNetwork(Box(-jnp.inf, jnp.inf, (size,)), config, rngs=rngs)


def num_agents(team: Team) -> int:
    """Return the number of agents of a team."""
    return sum(policy.assignment.num_agents for policy in team.policies.values())


def critic_inputs(
    team: Team,
    sees_own: bool,
    states: Mapping[str, PolicyState],
    shared: PolicyState,
    global_state: jax.Array | None,
    obs: Mapping[str, Observation],
) -> jax.Array:
    """Return the inputs of the critic, [..., n, F]: global state, agent number and observation.

    The agents are in the order of the team's policies. Shorter observations are padded with zeros.

    Args:
        team: static part of the team.
        sees_own: include the observation of the agent.
        states: states of its policies, which normalize observations.
        shared: state of the critic, which normalizes global states.
        global_state: [..., S].
        obs: observations by policy, leaves [..., n of the policy, ...].
    """
    global_state = cast(jax.Array, global_state)
    if shared.normalizer is not None:
        global_state = normalize_observation(shared.normalizer.obs, global_state)
    leading, agents = global_state.shape[:-1], num_agents(team)
    state = jnp.broadcast_to(global_state[..., None, :], (*leading, agents, global_state.shape[-1]))
    number = jnp.broadcast_to(jnp.eye(agents), (*leading, agents, agents))
    if not sees_own:
        return jnp.concatenate([state, number], axis=-1)
    own = [
        encode(policy.assignment.network_space, policy.inputs(states[name], obs[name])[0])
        for name, policy in team.policies.items()
    ]
    width = max(rows.shape[-1] for rows in own)
    own = [
        jnp.pad(rows, [(0, 0)] * len(leading) + [(0, 0), (0, width - rows.shape[-1])])
        for rows in own
    ]
    return jnp.concatenate([state, number, jnp.concatenate(own, axis=-2)], axis=-1)


class Values(NamedTuple):
    """Values of a rollout, for the agents of a team in the order of its policies."""

    inputs: jax.Array  # [T, N, n, F], inputs of the critic
    value: jax.Array  # [T, N, n], before each step
    last: jax.Array  # [N, n], after the last step
    final: jax.Array | None  # [T, N, n], of the final observation where truncated, else 0
    carry: Carry  # carry of the critic after the rollout, leaves [N, n, ...]

    def of(self, team: Team, name: str) -> "Values":
        """Return the values of the agents of one policy."""
        start, sizes = 0, {n: own.assignment.num_agents for n, own in team.policies.items()}
        for other, size in sizes.items():
            if other == name:
                break
            start += size
        agents = slice(start, start + sizes[name])
        final = None if self.final is None else self.final[..., agents]
        return self._replace(
            value=self.value[..., agents], last=self.last[..., agents], final=final
        )


def evaluate_rollout(
    team: Team,
    states: Mapping[str, PolicyState],
    shared: PolicyState,
    rollout: Rollout,
    carry: Carry,
    sees_own: bool,
) -> Values:
    """Return the values of a rollout, in units of rewards.

    Args:
        team: static part of the team.
        states: states of its policies.
        shared: state of the critic.
        rollout: the rollout, with global states.
        carry: carry of the critic before the first step, leaves [N, n, ...]; None: feed-forward.
        sees_own: the critic also receives the observation of the agent.
    """
    rows = {name: rollout.rows[name] for name in team.policies}
    inputs = functools.partial(critic_inputs, team, sees_own)
    critic = team.module(shared)
    seen = inputs(
        states, shared, rollout.global_state, {name: row.obs for name, row in rows.items()}
    )
    value, after, carry = advance(critic, seen, carry, restarts_of(team, rollout))
    last = inputs(states, shared, rollout.last_global_state, rollout.last_obs)
    final = None
    if rollout.final_global_state is not None:
        flags = [cast(jax.Array, row.truncated) & row.live for row in rows.values()]
        truncated = jnp.concatenate(flags, axis=-1)

        def evaluate(
            current: jax.Array,
            truncated: jax.Array,
            after: Carry,
            states: Mapping[str, PolicyState],
            shared: PolicyState,
            *seen: Any,
        ) -> jax.Array:
            values = team.module(shared)(inputs(states, shared, *seen), after)[0]
            return jnp.where(truncated, to_rewards(shared, values), current)

        obs = {name: row.next_obs for name, row in rows.items()}
        given = truncated, after, states, shared, rollout.final_global_state, obs
        final = when_any(truncated, evaluate, jnp.zeros(truncated.shape), *given)
    last_value = to_rewards(shared, critic(last, carry)[0])
    return Values(seen, to_rewards(shared, value), last_value, final, carry)


def restarts_of(team: Team, rollout: Rollout) -> jax.Array:
    """Return `Rows.restarts` of the agents of a team in its order, [T, N, n]; or `rollout.over`."""
    restarts = [rollout.rows[name].restarts(rollout.over) for name in team.policies]
    return rollout.over if restarts[0] is rollout.over else jnp.concatenate(restarts, axis=-1)


def advance(
    critic: CriticNetwork, inputs: jax.Array, carry: Carry, restarts: jax.Array
) -> tuple[jax.Array, Carry, Carry]:
    """Return (values [T, N, n], carry after each step, carry for the next rollout).

    Args:
        critic: the network.
        inputs: [T, N, n, F].
        carry: before the first step, leaves [N, n, ...]; None if the network is feed-forward.
        restarts: [T, N] or [T, N, n] bool, the carry starts anew after this step.
    """
    if carry is None:
        return critic(inputs)[0], None, None
    empty = critic.empty(inputs.shape[1:3])

    def step(carry: Carry, row: tuple[jax.Array, jax.Array]) -> tuple[Carry, tuple]:
        inputs, restarts = row
        value, after = critic(inputs, carry)

        def restart(leaf: jax.Array, first: jax.Array) -> jax.Array:
            axes = range(restarts.ndim, leaf.ndim)
            return jnp.where(jnp.expand_dims(restarts, axes), first, leaf)

        return jax.tree.map(restart, after, empty), (value, after)

    carry, (value, after) = jax.lax.scan(step, carry, (inputs, restarts))
    return value, after, carry


def evaluate_critic(team: Team, _: Policy, state: PolicyState, batch: Batch) -> Evaluation:
    """Return the outputs of the critic for a batch whose observations are its inputs."""
    critic = team.module(state)
    if batch.carry is None:
        return Evaluation(value=critic(batch.obs)[0])
    return Evaluation(value=critic.unroll(batch.obs, batch.carry, batch.restart))


def to_rewards(shared: PolicyState, output: jax.Array) -> jax.Array:
    """Return outputs of the critic as values in units of rewards."""
    statistics = shared.own
    return output if statistics is None else output * deviation(statistics) + statistics.mean


def to_outputs(shared: PolicyState, value: jax.Array) -> jax.Array:
    """Return values in units of rewards as outputs of the critic."""
    statistics = shared.own
    return value if statistics is None else (value - statistics.mean) / deviation(statistics)


def deviation(statistics: RunningStatistics) -> jax.Array:
    """Return the standard deviation, () float32, which is positive."""
    return jnp.sqrt(statistics.variance + EPSILON)


def add_targets(shared: PolicyState, target: jax.Array, valid: jax.Array) -> PolicyState:
    """Add value targets to the statistics of the critic, and rescale its head to the same values.

        W' = W sigma / sigma',    b' = (b sigma + mu - mu') / sigma'

    Args:
        shared: state of the critic; without statistics it is returned unchanged.
        target: [T, N, n].
        valid: [T, N, n] bool.

    Source: van Hasselt et al., "Learning values across many orders of magnitude" (2016), eq. 3.
    """
    old = shared.own
    if old is None:
        return shared
    new, head = update_statistics(old, target, valid), shared.params["head"]
    kernel = head["kernel"] * (deviation(old) / deviation(new))
    bias = (head["bias"] * deviation(old) + old.mean - new.mean) / deviation(new)
    params = {**shared.params, "head": {"kernel": kernel, "bias": bias}}
    return shared.replace(params=params, own=new)


def add_global_states(shared: PolicyState, rollout: Rollout, counted: jax.Array) -> PolicyState:
    """Add the global states of a rollout to the normalizer of the critic, if it has one.

    Args:
        shared: state of the critic.
        rollout: the rollout, with global states.
        counted: [T, N] bool, states that count.
    """
    if shared.normalizer is None:
        return shared
    seen = update_observation_statistics(shared.normalizer.obs, rollout.global_state, counted)
    return shared.replace(normalizer=shared.normalizer.replace(obs=seen))
