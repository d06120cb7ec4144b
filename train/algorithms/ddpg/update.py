"""Deep deterministic policy gradient, and TD3 by its options: off-policy, for actions in a bounded box.

Sources: Lillicrap et al., "Continuous control with deep reinforcement learning" (2016); Fujimoto, van Hoof, Meger,
"Addressing Function Approximation Error in Actor-Critic Methods" (2018) for twin critics, delay and smoothing.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from wdjax.checks import require
from wdjax.spaces import Box, sample_shapes
from wdjax.train.algorithms.ddpg.networks import ActorActionValue, from_box, to_box
from wdjax.train.algorithms.ddpg.noise import explore, uniform_actions
from wdjax.train.algorithms.ddpg.replay import Ring, Steps, Transition, empty_replay, remember, take
from wdjax.train.algorithms.fit import descend, make_optimizer
from wdjax.train.config.facts import Schedule, static, traced
from wdjax.train.config.schema import PolicyConfig, TrainConfig
from wdjax.train.devices.blocks import block_keys
from wdjax.train.devices.collectives import average, num_shards, smallest, total
from wdjax.train.networks.actor_critic import without_mask
from wdjax.train.state.agents import Assignment
from wdjax.train.state.algorithm import Algorithm
from wdjax.train.state.context import Context
from wdjax.train.state.hypers import Hypers
from wdjax.train.state.normalization import new_normalizer, update_observation_statistics
from wdjax.train.state.policy import Policy
from wdjax.train.state.rollout_metrics import action_ranges, played_metrics
from wdjax.train.state.rows import Rollout
from wdjax.train.state.state import Memory, PolicyState

ACTOR_METRICS = ("actor_loss", "grad_norm_actor")


COUNT = "at least 1 and below 2**31"


@dataclasses.dataclass(frozen=True)
class DDPGOptions:
    """Options of DDPG. For TD3 set twin_critics, policy_delay 2, target_noise 0.2 and gaussian noise."""

    gamma: float = traced(0.99, allowed="between 0 and 1")
    """Discount factor."""
    critic_learning_rate: Schedule = traced(1e-3)
    """Learning rate of the critics. The actor uses the policy's learning_rate."""
    tau: float = traced(0.005, allowed="above 0 and at most 1")
    """Step size of the target networks' moving average, applied after each gradient step of the actor."""
    n_step: int = static(1, allowed=COUNT)
    """Number of rewards summed before bootstrapping from the target critic. Sums continue across rollouts."""
    buffer_size: int = static(100_000, allowed=COUNT)
    """Capacity of the replay buffer in transitions (one agent, one step). Must be a multiple of num_blocks."""
    batch_size: int = static(256, allowed=COUNT)
    """Transitions per gradient step, the same number from each block of replicas."""
    warmup: int = static(1_000, allowed=COUNT)
    """Transitions in the replay buffer before the first gradient step. Each block must hold its share."""
    uniform_warmup: bool = True
    """Sample actions uniformly from the box during warmup. false: use the untrained actor with noise."""
    updates_per_rollout: int = static(64, allowed=COUNT)
    """Gradient steps after each rollout."""
    twin_critics: bool = static(False, read=True)
    """Train two critics and use the lower of their targets."""
    policy_delay: int = static(1, allowed=COUNT)
    """Gradient steps of the critics per gradient step of the actor and the target networks."""
    target_noise: float = traced(0.0, allowed="finite and at least 0")
    """Standard deviation of the normal noise on the target actor's actions, in half-widths of the box. 0: no noise."""
    target_noise_clip: float = traced(0.5, allowed="finite and at least 0")
    """Clipping bound of target_noise, in half-widths of the box."""
    noise: Literal["ornstein_uhlenbeck", "gaussian", "none"] = "ornstein_uhlenbeck"
    """Exploration noise in training. ornstein_uhlenbeck: s <- (1 - damping) s + stddev N(0, 1), reset to 0 at the start
    of each episode. gaussian: stddev N(0, 1)."""
    noise_scale: Schedule = traced(1.0)
    """Factor of the exploration noise."""
    noise_stddev: float = traced(0.2, allowed="finite and at least 0")
    """Standard deviation of the noise, in half-widths of the box."""
    noise_damping: float = traced(0.15, allowed="between 0 and 1")
    """Damping of the Ornstein-Uhlenbeck process. Its stationary standard deviation is stddev / sqrt(1 - (1 -
    damping)^2)."""


class DDPG(Algorithm):
    """A deterministic actor that climbs the value of a critic, both taught from a replay buffer."""

    Options = DDPGOptions

    def check(self, name: str, run: TrainConfig, assignment: Assignment) -> None:
        config = run.policy(name)
        require_bounded_box(f"policies.{name}.algorithm = 'DDPG'", assignment.action_space)
        size = config.network.recurrent_size
        require(
            size == 0,
            f"policies.{name}.network.recurrent_size",
            size,
            "0: DDPG has no recurrent networks",
        )
        heads = list(config.network.head_hidden_sizes)
        require(
            not heads,
            f"policies.{name}.network.head_hidden_sizes",
            heads,
            "[]: DDPG has no such layers",
        )
        options, path = config.options, f"policies.{name}"
        for field in ("buffer_size", "batch_size"):
            value = getattr(options, field)
            require(
                value % run.blocks == 0,
                f"{path}.{field}",
                value,
                f"a multiple of num_blocks = {run.blocks}",
            )
        batch, size = options.batch_size, options.buffer_size
        require(size >= batch, f"{path}.buffer_size", size, f"at least batch_size = {batch}")
        allowed = f"between batch_size = {batch} and buffer_size = {size}"
        require(batch <= options.warmup <= size, f"{path}.warmup", options.warmup, allowed)
        require(
            options.n_step <= size,
            f"{path}.n_step",
            options.n_step,
            f"at most buffer_size = {size}",
        )

    def make_network(
        self, context: Context, config: PolicyConfig, assignment: Assignment, rngs: nnx.Rngs
    ) -> ActorActionValue:
        observation_space = without_mask(assignment.observation_space)
        num_actions, twin = math.prod(assignment.action_space.shape), config.options.twin_critics
        return ActorActionValue(observation_space, num_actions, config.network, twin, rngs=rngs)

    def init(self, policy: Policy, params: Any) -> PolicyState:
        config, space = policy.config, policy.assignment.observation_space
        normalizer = new_normalizer(config.normalize_observation, False, space)
        if not config.trainable:
            return PolicyState(params, None, normalizer)
        optimizer = make_optimizer(config, config.max_grad_norm)
        opt_state = {
            "actor": optimizer.init(params["actor"]),
            "critic": optimizer.init(critics_of(params)),
        }
        target_params = jax.tree.map(jnp.copy, params)
        return PolicyState(
            params, opt_state, normalizer, target_params, gradient_steps=jnp.int32(0)
        )

    def init_carry(self, policy: Policy, num_envs: int) -> Any:
        if not policy.config.trainable or policy.config.options.noise != "ornstein_uhlenbeck":
            return None
        num_actions = math.prod(policy.assignment.action_space.shape)
        return jnp.zeros((num_envs, policy.assignment.num_agents, num_actions), jnp.float32)

    def init_memory(self, policy: Policy, run: TrainConfig) -> Memory:
        carry = self.init_carry(policy, run.num_envs)
        if not policy.config.trainable:
            return Memory(carry, None)
        options, space = policy.config.options, policy.assignment.action_space
        obs = sample_shapes(policy.assignment.observation_space)
        number, flag = jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct((), bool)
        action = jax.ShapeDtypeStruct((math.prod(space.shape),), jnp.float32)
        step = Steps(obs, action, number, obs, terminated=flag, over=flag, live=flag)
        replay = empty_replay(
            step, run.num_envs, policy.assignment.num_agents, run.blocks, options.buffer_size // run.blocks,
            options.n_step, run.rollout_length,
        )  # fmt: skip
        return Memory(carry, None, replay)

    def act(
        self,
        policy: Policy,
        state: PolicyState,
        carry: Any,
        obs: Any,
        keys: jax.Array,
        hypers: Hypers,
    ) -> tuple[jax.Array, dict[str, Any], Any]:
        """The actor's action and noise, clipped to the box; uniform until the first gradient step, where so asked.

        What is not trainable has nothing to explore for, and acts without noise.
        """
        unit, options = actor_of(policy, state, obs), policy.config.options
        if policy.config.trainable:
            keys = jax.vmap(jax.random.split)(keys)
            noise, carry = explore(
                options.noise, carry, keys[:, 0], unit.shape, policy.options(hypers)
            )
            unit = jnp.clip(unit + noise, -1.0, 1.0)
            if options.uniform_warmup:
                unit = jnp.where(
                    state.gradient_steps == 0, uniform_actions(keys[:, 1], unit.shape), unit
                )
        return to_box(policy.assignment.action_space, unit), {}, carry

    def play(
        self,
        policy: Policy,
        state: PolicyState,
        carry: Any,
        obs: Any,
        keys: jax.Array,
        greedy: bool,
    ) -> tuple[jax.Array, Any]:
        """The actor's action, greedy or not: noise belongs to training, and what is learned is without it."""
        return to_box(policy.assignment.action_space, actor_of(policy, state, obs)), carry

    def end_of_step(
        self,
        policy: Policy,
        state: PolicyState,
        carry: Any,
        final_obs: Any,
        truncated: jax.Array | None,
    ) -> dict[str, Any]:
        return {"next_obs": final_obs}

    def update(
        self, policy: Policy, state: PolicyState, memory: Memory, hypers: Hypers, rollout: Rollout, key: jax.Array,
        num_blocks: int,
    ) -> tuple[PolicyState, Memory, dict[str, jax.Array]]:  # fmt: skip
        """Puts the rollout into the buffer, then gradient steps once it is warm; normalisers change last.

        Metrics of losses and gradients are means over the gradient steps, NaN where there was none.
        """
        options, rows = policy.config.options, rollout.rows[policy.name]
        action = from_box(policy.assignment.action_space, rows.action)  # in [-1, 1]
        over = jnp.broadcast_to(rows.ends(rollout.over), rows.live.shape)
        steps = Steps(
            rows.obs, action, rows.reward, rows.next_obs, rows.terminated, over, rows.live
        )
        replay = remember(memory.replay, steps, hypers["gamma"], options.n_step)
        ring = replay.ring
        warm = smallest(jnp.min(ring.size)) * (num_blocks * num_shards()) >= options.warmup
        study = functools.partial(gradient_steps, policy, hypers=hypers, ring=ring, key=key)
        nothing = jax.tree.map(
            lambda metric: jnp.full_like(metric, jnp.nan), jax.eval_shape(study, state)[1]
        )
        state, metrics = jax.lax.cond(warm, study, lambda state: (state, nothing), state)
        if state.normalizer is not None:
            seen = update_observation_statistics(state.normalizer.obs, rows.obs, rows.live)
            state = state.replace(normalizer=state.normalizer.replace(obs=seen))
        metrics["buffer_rows"] = total(jnp.sum(ring.size))
        metrics |= {**played_metrics(rows), **action_ranges(rows.action, rows.live)}
        return state, memory.replace(replay=replay), metrics

    def losses(
        self,
        policy: Policy,
        before: PolicyState,
        after: PolicyState,
        metrics: Mapping[str, jax.Array],
    ) -> tuple[jax.Array, jax.Array]:
        delay = policy.config.options.policy_delay
        took_steps = after.gradient_steps > before.gradient_steps
        moved = after.gradient_steps // delay > before.gradient_steps // delay  # the actor

        def both(critic: str, actor: str) -> jax.Array:
            return jnp.where(took_steps, metrics[critic], 0.0) + jnp.where(
                moved, metrics[actor], 0.0
            )

        return both("critic_loss", "actor_loss"), both("grad_norm_critic", "grad_norm_actor")


def require_bounded_box(field: str, space: Any) -> None:
    """Raises TypeError or ValueError where an action space is no Box of real numbers with two bounds for each."""
    if not (isinstance(space, Box) and jnp.issubdtype(space.dtype, jnp.floating)):
        raise TypeError(
            f"{field}: requires a Box of floats as action space, not {space}. Use A2C or PPO."
        )
    low, high = (np.broadcast_to(bound, space.shape) for bound in (space.low, space.high))
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise ValueError(
            f"{field}: requires an action space with finite bounds, low < high, not {space}"
        )


def actor_of(policy: Policy, state: PolicyState, obs: Any) -> jax.Array:
    """Returns mu(obs), [..., A] in [-1, 1], for observations with any leading axes."""
    return nnx.merge(policy.graphdef, state.params).actor(policy.inputs(state, obs)[0])


def critics_of(params: dict[str, Any]) -> dict[str, Any]:
    """Returns the parameters of the critics alone."""
    return {name: part for name, part in params.items() if name != "actor"}


def gradient_steps(
    policy: Policy, state: PolicyState, hypers: Hypers, ring: Ring, key: jax.Array
) -> tuple[PolicyState, dict[str, jax.Array]]:
    """`updates_per_rollout` gradient steps, each on `batch_size` rows drawn with replacement, equally from each block.

    Returns:
        (state, metrics): means over the steps; of the actor, over those in which it moved.
    """
    options = policy.config.options
    num_blocks, steps = ring.size.shape[0], options.updates_per_rollout
    share = options.batch_size // (num_blocks * num_shards())
    num_actions = ring.rows.action.shape[-1]

    def draw(key: jax.Array, size: jax.Array) -> tuple[jax.Array, jax.Array]:
        index_key, noise_key = jax.random.split(key)
        index = jax.random.randint(index_key, (steps, share), 0, size, jnp.int32)
        return index, jax.random.normal(noise_key, (steps, share, num_actions), jnp.float32)

    # all at once, before the scan: a draw inside it costs kernels in every step
    keys = block_keys(key, num_blocks)
    index, normal = jax.vmap(draw, out_axes=1)(keys, ring.size)  # [steps, num_blocks, share, ...]
    normal = normal.reshape(steps, -1, num_actions)
    step = lambda state, row: gradient_step(policy, state, hypers, take(ring, row[0]), row[1])  # noqa: E731
    before = state.gradient_steps
    state, metrics = jax.lax.scan(step, state, (index, normal))
    moved = state.gradient_steps // options.policy_delay - before // options.policy_delay
    count = {name: moved if name in ACTOR_METRICS else steps for name in metrics}
    return state, {name: jnp.sum(values) / count[name] for name, values in metrics.items()}


def gradient_step(
    policy: Policy, state: PolicyState, hypers: Hypers, batch: Transition, normal: jax.Array
) -> tuple[PolicyState, dict[str, jax.Array]]:
    """One step of the critics, and in every `policy_delay`-th call one of the actor and of the target networks.

    The loss of the critics is differentiated in their parameters only, that of the actor in its own only.

    Args:
        batch: leaves [R, ...].
        normal: [R, A] standard normal numbers, to smooth the target with.

    Returns:
        (state, metrics): those of the actor are 0 where it did not move.
    """
    target = bellman_target(policy, state, hypers, batch, normal)
    (_, metrics), grads = jax.value_and_grad(critic_loss, argnums=2, has_aux=True)(
        policy, state, critics_of(state.params), batch, target
    )
    grads, metrics = average((grads, {**metrics, "target_mean": jnp.mean(target)}))
    critics, opt_state = descend(
        policy.config, hypers, hypers["critic_learning_rate"], grads, state.opt_state["critic"],
        critics_of(state.params),
    )  # fmt: skip
    metrics["grad_norm_critic"] = optax.tree.norm(grads)
    state = state.replace(
        params={**state.params, **critics},
        opt_state={**state.opt_state, "critic": opt_state},
        gradient_steps=state.gradient_steps + 1,
    )
    improve = functools.partial(actor_step, policy, hypers=hypers, batch=batch)
    skip = lambda state: (state, dict.fromkeys(ACTOR_METRICS, jnp.float32(0)))  # noqa: E731
    delay = policy.config.options.policy_delay
    state, own = (
        improve(state)
        if delay == 1
        else jax.lax.cond(state.gradient_steps % delay == 0, improve, skip, state)
    )
    return state, metrics | own


def bellman_target(
    policy: Policy, state: PolicyState, hypers: Hypers, batch: Transition, normal: jax.Array
) -> jax.Array:
    """Returns y [R], a constant of the loss, by the target networks Q'_i and mu':

    y = reward + discount min_i Q'_i(next_obs, clip(mu'(next_obs) + clip(sigma N, -c, c), -1, 1)).
    """
    target = nnx.merge(policy.graphdef, state.target_params)
    next_obs = policy.inputs(state, batch.next_obs)[0]
    limit = hypers["target_noise_clip"]
    noise = jnp.clip(hypers["target_noise"] * normal, -limit, limit)
    action = jnp.clip(target.actor(next_obs) + noise, -1.0, 1.0)
    return batch.reward + batch.discount * jnp.min(target.values(next_obs, action), axis=0)


def critic_loss(
    policy: Policy, state: PolicyState, critics: Any, batch: Transition, target: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns (sum_i mean((Q_i(obs, action) - target)^2), metrics) of this device's rows, for the critics alone."""
    networks = nnx.merge(policy.graphdef, {**state.params, **critics})
    values = networks.values(policy.inputs(state, batch.obs)[0], batch.action)
    loss = jnp.sum(jnp.mean((values - target[None]) ** 2, axis=1))
    return loss, {"critic_loss": loss, "q_mean": jnp.mean(values[0])}


def actor_loss(policy: Policy, state: PolicyState, actor: Any, batch: Transition) -> jax.Array:
    """Returns -mean(Q_1(obs, mu(obs))) of this device's rows, for the parameters of the actor."""
    networks = nnx.merge(policy.graphdef, {**state.params, "actor": actor})
    obs = policy.inputs(state, batch.obs)[0]
    return -jnp.mean(networks.critic(obs, networks.actor(obs)))


def actor_step(
    policy: Policy, state: PolicyState, hypers: Hypers, batch: Transition
) -> tuple[PolicyState, dict[str, jax.Array]]:
    """One step of the actor, after which the target networks follow. Returns (state, metrics)."""
    loss, grads = jax.value_and_grad(actor_loss, argnums=2)(
        policy, state, state.params["actor"], batch
    )
    loss, grads = average((loss, grads))
    actor, opt_state = descend(
        policy.config,
        hypers,
        hypers["learning_rate"],
        grads,
        state.opt_state["actor"],
        state.params["actor"],
    )
    params = {**state.params, "actor": actor}
    state = state.replace(
        params=params,
        opt_state={**state.opt_state, "actor": opt_state},
        target_params=soft_update(state.target_params, params, hypers["tau"]),
    )
    return state, {"actor_loss": loss, "grad_norm_actor": optax.tree.norm(grads)}


def soft_update(target: Any, params: Any, tau: jax.Array) -> Any:
    """Returns (1 - tau) target + tau params."""
    return jax.tree.map(lambda old, new: old + tau * (new - old), target, params)
