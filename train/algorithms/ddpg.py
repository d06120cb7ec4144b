"""Deep deterministic policy gradient (DDPG), off-policy, for actions in a bounded box.

Sources: Lillicrap et al., "Continuous control with deep reinforcement learning" (2016); Fujimoto,
van Hoof, Meger, "Addressing Function Approximation Error in Actor-Critic Methods" (2018) for TD3:
twin critics, delayed policy updates and target policy smoothing.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Literal, cast

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from wdjax.checks import require
from wdjax.spaces import Box
from wdjax.train.algorithms.noise import explore, uniform_actions
from wdjax.train.learning import (
    Algorithm,
    Assignment,
    Context,
    Hypers,
    Memory,
    Metrics,
    Policy,
    PolicyConfig,
    PolicyState,
    Replay,
    ReplayBatch,
    Rollout,
    Schedule,
    Steps,
    Terms,
    TrainConfig,
    average,
    block_keys,
    descend,
    make_optimizer,
    new_replay,
    num_shards,
    smallest,
    static,
    total,
    traced,
)
from wdjax.train.networks.actor_critic import without_mask
from wdjax.train.networks.values import ActorActionValue, from_box, require_box, to_box
from wdjax.train.state.aliases import ActingState, Carry, Fields, Observation, OptState, Params
from wdjax.train.state.normalization import new_normalizer, update_observation_statistics
from wdjax.train.state.rollout_metrics import action_ranges, played_metrics

COUNT = "at least 1 and below 2**31"
ACTOR_METRICS = ("actor_loss", "grad_norm_actor")


@dataclasses.dataclass(frozen=True)
class DDPGOptions:
    """Options of DDPG. TD3: twin_critics, policy_delay 2, target_noise 0.2 and gaussian noise."""

    gamma: float = traced(0.99, allowed="between 0 and 1")
    """Discount factor."""
    critic_learning_rate: Schedule = traced(1e-3)
    """Learning rate of the critics. The actor uses the policy's learning_rate."""
    tau: float = traced(0.005, allowed="above 0 and at most 1")
    """Step size of the target networks' moving average, applied after each gradient step of the
    actor."""
    n_step: int = static(1, allowed=COUNT)
    """Number of rewards summed before bootstrapping from the target critic. Sums continue across
    rollouts."""
    buffer_size: int = static(100_000, allowed=COUNT)
    """Capacity of the replay buffer in transitions (one agent, one step). Must be a multiple of
    num_blocks."""
    batch_size: int = static(256, allowed=COUNT)
    """Transitions per gradient step, the same number from each block of replicas."""
    warmup: int = static(1_000, allowed=COUNT)
    """Transitions in the replay buffer before the first gradient step. Each block must hold its
    share."""
    uniform_warmup: bool = True
    """Sample actions uniformly from the box during warmup. false: use the untrained actor with
    noise."""
    updates_per_rollout: int = static(64, allowed=COUNT)
    """Gradient steps after each rollout."""
    twin_critics: bool = static(False, read=True)
    """Train two critics and use the lower of their targets."""
    policy_delay: int = static(1, allowed=COUNT)
    """Gradient steps of the critics per gradient step of the actor and the target networks."""
    target_noise: float = traced(0.0, allowed="finite and at least 0")
    """Standard deviation of the normal noise on the target actor's actions, in half-widths of the
    box. 0: no noise."""
    target_noise_clip: float = traced(0.5, allowed="finite and at least 0")
    """Clipping bound of target_noise, in half-widths of the box."""
    noise: Literal["ornstein_uhlenbeck", "gaussian", "none"] = "ornstein_uhlenbeck"
    """Exploration noise in training. ornstein_uhlenbeck: s <- (1 - damping) s + stddev N(0, 1),
    reset to 0 at the start of each episode. gaussian: stddev N(0, 1)."""
    noise_scale: Schedule = traced(1.0, explores=True)
    """Factor of the exploration noise. Opponents from the past and from other runs add no noise."""
    noise_stddev: float = traced(0.2, allowed="finite and at least 0")
    """Standard deviation of the noise, in half-widths of the box."""
    noise_damping: float = traced(0.15, allowed="between 0 and 1")
    """Damping of the Ornstein-Uhlenbeck process. Its stationary standard deviation is
    stddev / sqrt(1 - (1 - damping)^2)."""


class DDPG(Algorithm):
    """A deterministic actor that maximizes the value of a critic, both with replayed data."""

    Options = DDPGOptions

    def check(self, name: str, run: TrainConfig, assignment: Assignment) -> None:
        config, path = run.policy(name), f"policies.{name}"
        options, network = config.options, config.network
        require_box(f"{path}.algorithm = 'DDPG'", assignment.action_space)
        batch, size, warmup = options.batch_size, options.buffer_size, options.warmup
        memory, heads = network.recurrent_size, list(network.head_hidden_sizes)
        shared = f"a multiple of num_blocks = {run.blocks}"
        between = f"between batch_size = {batch} and buffer_size = {size}"
        for field, value, valid, allowed in (
            ("network.recurrent_size", memory, memory == 0, "0: DDPG has no recurrent networks"),
            ("network.head_hidden_sizes", heads, not heads, "[]: DDPG has no such layers"),
            ("buffer_size", size, size % run.blocks == 0, shared),
            ("batch_size", batch, batch % run.blocks == 0, shared),
            ("buffer_size", size, size >= batch, f"at least batch_size = {batch}"),
            ("warmup", warmup, batch <= warmup <= size, between),
            ("n_step", options.n_step, options.n_step <= size, f"at most buffer_size = {size}"),
        ):
            require(valid, f"{path}.{field}", value, allowed)

    def make_network(
        self, context: Context, config: PolicyConfig, assignment: Assignment, rngs: nnx.Rngs
    ) -> ActorActionValue:
        space, twin = without_mask(assignment.observation_space), config.options.twin_critics
        num_actions = math.prod(assignment.action_space.shape)
        return ActorActionValue(space, num_actions, config.network, twin, rngs=rngs)

    def init(self, policy: Policy, params: Params) -> PolicyState:
        config, space = policy.config, policy.assignment.observation_space
        normalizer = new_normalizer(config.normalize_observation, False, space)
        if not config.trainable:
            return PolicyState(params, None, normalizer)
        optimizer = make_optimizer(config, config.max_grad_norm)
        opt_state = {
            "actor": optimizer.init(params["actor"]),
            "critic": optimizer.init(critics_of(params)),
        }
        target = jax.tree.map(jnp.copy, params)
        return PolicyState(params, opt_state, normalizer, target, gradient_steps=jnp.int32(0))

    def init_carry(self, policy: Policy, num_envs: int) -> jax.Array | None:
        if not policy.config.trainable or policy.config.options.noise != "ornstein_uhlenbeck":
            return None
        shape = (num_envs, policy.assignment.num_agents, math.prod(box_of(policy).shape))
        return jnp.zeros(shape, jnp.float32)

    def init_memory(self, policy: Policy, run: TrainConfig) -> Memory:
        carry = self.init_carry(policy, run.num_envs)
        if not policy.config.trainable:
            return Memory(carry, None)
        options, unit = policy.config.options, Box(-1.0, 1.0, (math.prod(box_of(policy).shape),))
        step = Steps.shapes(policy.assignment.observation_space, unit)
        shape = (run.rollout_length, run.num_envs, policy.assignment.num_agents)
        replay = new_replay(
            step, options.buffer_size, options.n_step, shape=shape, num_blocks=run.blocks
        )
        return Memory(carry, None, replay)

    def act(
        self,
        policy: Policy,
        state: ActingState,
        carry: Carry,
        obs: Observation,
        keys: jax.Array,
        hypers: Hypers,
    ) -> tuple[jax.Array, Fields, Carry]:
        """Choose the actor's action with noise, clipped to the box.

        With `uniform_warmup`, actions are uniform until the first gradient step. A policy that is
        not trainable acts without noise.
        """
        unit, options = actor_of(policy, state, obs), policy.options(hypers)
        if policy.config.trainable:
            keys = jax.vmap(jax.random.split)(keys)
            scale, stddev = options.noise_scale, options.noise_stddev
            noise, carry = explore(
                options.noise, carry, keys[:, 0], unit.shape, scale, stddev, options.noise_damping
            )
            unit = jnp.clip(unit + noise, -1.0, 1.0)
            if options.uniform_warmup:
                uniform = uniform_actions(keys[:, 1], unit.shape)
                unit = jnp.where(state.gradient_steps == 0, uniform, unit)
        return to_box(box_of(policy), unit), {}, carry

    def play(
        self,
        policy: Policy,
        state: PolicyState,
        carry: Carry,
        obs: Observation,
        keys: jax.Array,
        greedy: bool,
    ) -> tuple[jax.Array, Carry]:
        """Choose the actor's action without noise, whether greedy or not."""
        return to_box(box_of(policy), actor_of(policy, state, obs)), carry

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
        options, rows = policy.config.options, rollout.rows[policy.name]
        unit = from_box(box_of(policy), rows.action)
        steps = Steps.of(rows.replace(action=unit), rollout.over)
        replay = memory.replay.add(steps, hypers["gamma"])
        warm = smallest(jnp.min(replay.size)) * (num_blocks * num_shards()) >= options.warmup
        learn = functools.partial(gradient_steps, policy, hypers=hypers, replay=replay, key=key)
        names = jax.eval_shape(learn, state)[1]
        missing = jax.tree.map(lambda metric: jnp.full_like(metric, jnp.nan), names)
        state, metrics = jax.lax.cond(warm, learn, lambda state: (state, missing), state)
        if state.normalizer is not None:
            seen = update_observation_statistics(state.normalizer.obs, rows.obs, rows.live)
            state = state.replace(normalizer=state.normalizer.replace(obs=seen))
        metrics["buffer_rows"] = total(jnp.sum(replay.size))
        metrics |= {**played_metrics(rows), **action_ranges(rows.action, rows.live)}
        return state, memory.replace(replay=replay), metrics

    def losses(
        self,
        policy: Policy,
        before: PolicyState,
        after: PolicyState,
        metrics: Mapping[str, jax.Array],
    ) -> tuple[jax.Array, jax.Array]:
        first, last = steps_taken(before), steps_taken(after)
        delay = policy.config.options.policy_delay

        def both(critic: str, actor: str) -> jax.Array:
            critic_value = jnp.where(last > first, metrics[critic], 0.0)
            return critic_value + jnp.where(last // delay > first // delay, metrics[actor], 0.0)

        return both("critic_loss", "actor_loss"), both("grad_norm_critic", "grad_norm_actor")


def gradient_steps(
    policy: Policy, state: PolicyState, hypers: Hypers, replay: Replay, key: jax.Array
) -> tuple[PolicyState, Terms]:
    """Take `updates_per_rollout` gradient steps, each on `batch_size` transitions of the replay.

    The key is equal on all devices. Metrics are means over the steps; metrics of the actor are
    means over its own steps.
    """
    options = policy.config.options
    num_blocks, steps = replay.size.shape[0], options.updates_per_rollout
    share = options.batch_size // (num_blocks * num_shards())
    num_actions = math.prod(box_of(policy).shape)
    # all draws before the scan, since each costs kernels in every step inside
    keys = jax.vmap(jax.random.split)(block_keys(key, num_blocks))
    draw = functools.partial(jax.random.normal, dtype=jnp.float32)
    index = replay.draw(keys[:, 0], (steps, share))
    normal = jax.vmap(lambda key: draw(key, (steps, share, num_actions)), out_axes=1)(keys[:, 1])
    normal = normal.reshape(steps, -1, num_actions)  # [steps, num_blocks * share, A]
    step = lambda state, row: gradient_step(policy, state, hypers, replay.take(row[0]), row[1])  # noqa: E731
    before, delay = steps_taken(state), options.policy_delay
    state, metrics = jax.lax.scan(step, state, (index, normal))
    moved = steps_taken(state) // delay - before // delay
    count = {name: moved if name in ACTOR_METRICS else steps for name in metrics}
    return state, {name: jnp.sum(values) / count[name] for name, values in metrics.items()}


def gradient_step(
    policy: Policy, state: PolicyState, hypers: Hypers, batch: ReplayBatch, normal: jax.Array
) -> tuple[PolicyState, Terms]:
    """Take a step of the critics and, every `policy_delay` steps, of actor and target networks.

    `batch` has leaves [B, ...]. `normal` [B, A] are standard normal numbers for target policy
    smoothing. Metrics of the actor are 0 if it took no step.
    """
    target = bellman_target(policy, state, hypers, batch, normal)
    (_, metrics), grads = jax.value_and_grad(critic_loss, argnums=2, has_aux=True)(
        policy, state, critics_of(state.params), batch, target
    )
    grads, metrics = average((grads, {**metrics, "target_mean": jnp.mean(target)}))
    rate, optimizers = hypers["critic_learning_rate"], cast(dict[str, OptState], state.opt_state)
    critics, opt_state = descend(
        policy.config, hypers, rate, grads, optimizers["critic"], critics_of(state.params)
    )
    metrics["grad_norm_critic"] = optax.tree.norm(grads)
    state = state.replace(
        params={**state.params, **critics},
        opt_state={**optimizers, "critic": opt_state},
        gradient_steps=steps_taken(state) + 1,
    )
    improve = functools.partial(actor_step, policy, hypers=hypers, batch=batch)
    skip = lambda state: (state, dict.fromkeys(ACTOR_METRICS, jnp.float32(0)))  # noqa: E731
    delay = policy.config.options.policy_delay
    if delay == 1:
        state, actor_metrics = improve(state)
    else:
        now = steps_taken(state) % delay == 0
        state, actor_metrics = jax.lax.cond(now, improve, skip, state)
    return state, metrics | actor_metrics


def bellman_target(
    policy: Policy, state: PolicyState, hypers: Hypers, batch: ReplayBatch, normal: jax.Array
) -> jax.Array:
    """Return the targets y of the critics, [B], by the target networks Q'_i and mu'.

    action = clip(mu'(next_obs) + clip(sigma N, -c, c), -1, 1)
    y      = reward + discount min_i Q'_i(next_obs, action)
    """
    target = nnx.merge(policy.graphdef, state.target_params)
    next_obs = policy.inputs(state, batch.next_obs)[0]
    limit = hypers["target_noise_clip"]
    noise = jnp.clip(hypers["target_noise"] * normal, -limit, limit)
    action = jnp.clip(target.actor(next_obs) + noise, -1.0, 1.0)
    return batch.reward + batch.discount * jnp.min(target.values(next_obs, action), axis=0)


def critic_loss(
    policy: Policy, state: PolicyState, critics: Params, batch: ReplayBatch, target: jax.Array
) -> tuple[jax.Array, Terms]:
    """Return (sum_i mean((Q_i(obs, action) - target)^2), metrics) of the batch on this device."""
    networks = nnx.merge(policy.graphdef, {**state.params, **critics})
    values = networks.values(policy.inputs(state, batch.obs)[0], batch.action)
    loss = jnp.sum(jnp.mean((values - target[None]) ** 2, axis=1))
    return loss, {"critic_loss": loss, "q_mean": jnp.mean(values[0])}


def actor_loss(policy: Policy, state: PolicyState, actor: Params, batch: ReplayBatch) -> jax.Array:
    """Return -mean(Q_1(obs, mu(obs))) of the batch on this device."""
    networks = nnx.merge(policy.graphdef, {**state.params, "actor": actor})
    obs = policy.inputs(state, batch.obs)[0]
    return -jnp.mean(networks.critic(obs, networks.actor(obs)))


def actor_step(
    policy: Policy, state: PolicyState, hypers: Hypers, batch: ReplayBatch
) -> tuple[PolicyState, Terms]:
    """Take a step of the actor, then one of the target networks. Return (state, metrics)."""
    actor, optimizers = state.params["actor"], cast(dict[str, OptState], state.opt_state)
    loss, grads = jax.value_and_grad(actor_loss, argnums=2)(policy, state, actor, batch)
    loss, grads = average((loss, grads))
    actor, opt_state = descend(
        policy.config, hypers, hypers["learning_rate"], grads, optimizers["actor"], actor
    )
    params = {**state.params, "actor": actor}
    state = state.replace(
        params=params,
        opt_state={**optimizers, "actor": opt_state},
        target_params=soft_update(state.target_params, params, hypers["tau"]),
    )
    return state, {"actor_loss": loss, "grad_norm_actor": optax.tree.norm(grads)}


def soft_update(target: Params, params: Params, tau: jax.Array) -> Params:
    """Return (1 - tau) target + tau params."""
    return jax.tree.map(lambda old, new: old + tau * (new - old), target, params)


def actor_of(policy: Policy, state: PolicyState, obs: Observation) -> jax.Array:
    """Return mu(obs), [..., A] in [-1, 1], for observations with any leading axes."""
    return nnx.merge(policy.graphdef, state.params).actor(policy.inputs(state, obs)[0])


def critics_of(params: Params) -> Params:
    """Return the parameters of the critics alone."""
    return {name: part for name, part in params.items() if name != "actor"}


def steps_taken(state: PolicyState) -> jax.Array:
    """Return the number of gradient steps of a trainable policy, () int32."""
    return cast(jax.Array, state.gradient_steps)


def box_of(policy: Policy) -> Box:
    """Return the action space of a policy."""
    return cast(Box, policy.assignment.action_space)
