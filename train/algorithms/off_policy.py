"""Off-policy learning: a replay buffer, warmup, and gradient steps on replayed transitions."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp

from wdjax.checks import require
from wdjax.spaces import Space
from wdjax.train.learning import (
    Algorithm,
    Assignment,
    Hypers,
    Memory,
    Metrics,
    Policy,
    PolicyState,
    Replay,
    ReplayBatch,
    Rollout,
    Steps,
    Terms,
    TrainConfig,
    block_keys,
    new_replay,
    num_shards,
    played_metrics,
    smallest,
    static,
    total,
    traced,
)
from wdjax.train.state.aliases import ActingState, Carry, Fields, Observation, Params
from wdjax.train.state.normalization import update_observation_statistics

COUNT = "at least 1 and below 2**31"
State = TypeVar("State", bound=PolicyState)


@dataclasses.dataclass(frozen=True)
class OffPolicyOptions:
    """Options of all algorithms with a replay buffer."""

    gamma: float = traced(0.99, allowed="between 0 and 1")
    """Discount factor."""
    tau: float = traced(0.005, allowed="above 0 and at most 1")
    """Step size of the target networks' moving average, applied after each gradient step (DDPG: of
    the actor)."""
    n_step: int = static(1, allowed=COUNT)
    """Number of rewards summed before bootstrapping from the target network. Sums continue across
    rollouts."""
    buffer_size: int = static(100_000, allowed=COUNT)
    """Capacity of the replay buffer in transitions (one agent, one step). Must be a multiple of
    num_blocks."""
    batch_size: int = static(256, allowed=COUNT)
    """Transitions per gradient step, the same number from each block of replicas."""
    warmup: int = static(1_000, allowed=COUNT)
    """Transitions in the replay buffer before the first gradient step. Each block must hold its
    share."""
    updates_per_rollout: int = static(64, allowed=COUNT)
    """Gradient steps after each rollout."""


class OffPolicy(Algorithm):
    """Base class of algorithms that learn from a replay buffer, with target networks.

    A subclass has `gradient_step`, and `stored_space` and `stored` if its networks take actions in
    another form than the distribution.
    """

    Options = OffPolicyOptions

    def check(self, name: str, run: TrainConfig, assignment: Assignment) -> None:
        config, path = run.policy(name), f"policies.{name}"
        options, network = config.options, config.network
        batch, size, warmup = options.batch_size, options.buffer_size, options.warmup
        memory, shared = network.recurrent_size, f"a multiple of num_blocks = {run.blocks}"
        between = f"between batch_size = {batch} and buffer_size = {size}"
        words = f"0: {type(self).__name__} has no recurrent networks"
        for field, value, valid, allowed in (
            ("network.recurrent_size", memory, memory == 0, words),
            ("buffer_size", size, size % run.blocks == 0, shared),
            ("batch_size", batch, batch % run.blocks == 0, shared),
            ("buffer_size", size, size >= batch, f"at least batch_size = {batch}"),
            ("warmup", warmup, batch <= warmup <= size, between),
            ("n_step", options.n_step, options.n_step <= size, f"at most buffer_size = {size}"),
        ):
            require(valid, f"{path}.{field}", value, allowed)
        super().check(name, run, assignment)

    def stored_space(self, policy: Policy) -> Space:
        """Return the space of actions in the replay buffer."""
        return policy.assignment.action_space

    def stored(self, policy: Policy, action: jax.Array) -> jax.Array:
        """Return actions [..., *action] as the replay buffer contains them."""
        return action

    def init_memory(self, policy: Policy, run: TrainConfig) -> Memory:
        carry = self.init_carry(policy, run.num_envs)
        if not policy.config.trainable:
            return Memory(carry, None)
        step = Steps.shapes(policy.assignment.observation_space, self.stored_space(policy))
        return Memory(carry, None, self.empty_replay(policy, run, step))

    def empty_replay(self, policy: Policy, run: TrainConfig, step: Steps, **unit: Any) -> Replay:
        """Return an empty replay buffer for steps of these shapes."""
        options = policy.config.options
        shape = (run.rollout_length, run.num_envs, policy.assignment.num_agents)
        return new_replay(
            step, options.buffer_size, options.n_step, shape=shape, num_blocks=run.blocks, **unit
        )

    def end_of_step(
        self,
        policy: Policy,
        state: ActingState,
        carry: Carry,
        final_obs: Observation,
        truncated: jax.Array | None,
    ) -> Fields:
        return {"next_obs": final_obs}

    def update(
        self,
        policy: Policy,
        state: PolicyState,
        memory: Memory,
        hypers: Hypers,
        rollout: Rollout,
        key: jax.Array,
        num_blocks: int,
    ) -> tuple[PolicyState, Memory, Metrics]:
        """Store the rollout, then take gradient steps after `warmup`. Normalizers change last.

        Metrics of losses and gradients are means over the gradient steps, NaN without any.
        """
        rows = rollout.rows[policy.name]
        action = self.stored(policy, rows.action)
        replay = memory.replay.add(
            Steps.of(rows.replace(action=action), rollout.over), hypers["gamma"]
        )

        def step(state: PolicyState, batch: ReplayBatch, drawn: Any) -> tuple[PolicyState, Terms]:
            return self.gradient_step(policy, state, hypers, batch, drawn)

        def draw(keys: jax.Array, shape: tuple[int, int]) -> Any:
            return self.draw(policy, keys, shape)

        options = policy.config.options
        state, losses = learn(options, state, replay, key, step, draw, self.mean_metrics)
        state = with_observations(state, rows.obs, rows.live)
        stored: Terms = {"buffer_rows": total(jnp.sum(replay.size))}
        return state, memory.replace(replay=replay), {**losses, **stored, **played_metrics(rows)}

    def draw(self, policy: Policy, keys: jax.Array, shape: tuple[int, int]) -> Any:
        """Return random numbers of all gradient steps, leaves [steps, B, ...]; None by default.

        Args:
            policy: static part of the policy.
            keys: [num_blocks].
            shape: (steps, transitions of a block per gradient step).
        """
        return None

    def gradient_step(
        self, policy: Policy, state: PolicyState, hypers: Hypers, batch: ReplayBatch, drawn: Any
    ) -> tuple[PolicyState, Terms]:
        """Take one gradient step. Return (state, metrics).

        Args:
            policy: static part of the policy.
            state: its state, with the number of gradient steps.
            hypers: hyperparameters at this point of the run.
            batch: leaves [B, ...].
            drawn: random numbers from `draw`, leaves [B, ...].
        """
        raise NotImplementedError(f"{type(self).__name__} has no gradient_step")

    def mean_metrics(self, options: Any, before: PolicyState, metrics: Terms) -> Terms:
        """Return means of metrics [steps] over the gradient steps.

        Args:
            options: options of the policy.
            before: its state before the gradient steps.
            metrics: [steps] each.
        """
        return {name: jnp.sum(own) / own.shape[0] for name, own in metrics.items()}

    def losses(
        self,
        policy: Policy,
        before: PolicyState,
        after: PolicyState,
        metrics: Mapping[str, jax.Array],
    ) -> tuple[jax.Array, jax.Array]:
        took = steps_taken(after) > steps_taken(before)
        return jnp.where(took, metrics["loss"], 0.0), jnp.where(took, metrics["grad_norm"], 0.0)


def learn(
    options: Any,
    state: PolicyState,
    replay: Replay,
    key: jax.Array,
    step: Callable[[PolicyState, ReplayBatch, Any], tuple[PolicyState, Terms]],
    draw: Callable[[jax.Array, tuple[int, int]], Any],
    mean_metrics: Callable[[Any, PolicyState, Terms], Terms],
) -> tuple[PolicyState, Terms]:
    """Take `updates_per_rollout` gradient steps if the replay buffer contains `warmup` rows.

    Args:
        options: `OffPolicyOptions`, static.
        state: state to train.
        replay: the replay buffer.
        key: () key, equal on all devices.
        step: step(state, batch, drawn) -> (state, metrics).
        draw: draw(keys, shape) -> random numbers of all steps, see `OffPolicy.draw`.
        mean_metrics: see `OffPolicy.mean_metrics`.

    Returns:
        (state, metrics): metrics are NaN without gradient steps.
    """
    num_blocks, steps = replay.size.shape[0], options.updates_per_rollout
    blocks = num_blocks * num_shards()
    warm = smallest(jnp.min(replay.size)) * blocks >= options.warmup

    def train(state: PolicyState) -> tuple[PolicyState, Terms]:
        shape = steps, options.batch_size // blocks
        # all draws before the scan, since each costs kernels in every step inside
        keys = jax.vmap(jax.random.split)(block_keys(key, num_blocks))
        rows = replay.draw(keys[:, 0], shape), draw(keys[:, 1], shape)
        take = lambda state, row: step(state, replay.take(row[0]), row[1])  # noqa: E731
        after, metrics = jax.lax.scan(take, state, rows)
        return after, mean_metrics(options, state, metrics)

    names = jax.eval_shape(train, state)[1]
    missing = jax.tree.map(lambda metric: jnp.full_like(metric, jnp.nan), names)
    return jax.lax.cond(warm, train, lambda state: (state, missing), state)


def draw_normal(keys: jax.Array, shape: tuple[int, int, int]) -> jax.Array:
    """Draw standard normal numbers, [steps, num_blocks * rows, A], with one key per block.

    Args:
        keys: [num_blocks].
        shape: (steps, rows of a block per step, A).
    """
    draw = lambda key: jax.random.normal(key, shape, jnp.float32)  # noqa: E731
    normal = jax.vmap(draw, out_axes=1)(keys)
    return normal.reshape(shape[0], -1, shape[2])


def with_observations(state: State, obs: Observation, live: jax.Array) -> State:
    """Add the observations of a rollout to the normalizer of a policy, if it has one."""
    if state.normalizer is None:
        return state
    seen = update_observation_statistics(state.normalizer.obs, obs, live)
    return state.replace(normalizer=state.normalizer.replace(obs=seen))


def soft_update(target: Params, params: Params, tau: jax.Array) -> Params:
    """Return (1 - tau) target + tau params."""
    return jax.tree.map(lambda old, new: old + tau * (new - old), target, params)


def steps_taken(state: PolicyState) -> jax.Array:
    """Return the number of gradient steps of a trainable policy, () int32."""
    return cast(jax.Array, state.gradient_steps)
