"""Deep deterministic policy gradient (DDPG), off-policy, for actions in a bounded box.

Sources: Lillicrap et al., "Continuous control with deep reinforcement learning" (2016); Fujimoto,
van Hoof, Meger, "Addressing Function Approximation Error in Actor-Critic Methods" (2018) for TD3:
twin critics, delayed policy updates and target policy smoothing.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from wdjax.checks import require
from wdjax.spaces import Box
from wdjax.train.algorithms.noise import explore, uniform_actions
from wdjax.train.algorithms.off_policy import (
    COUNT,
    OffPolicy,
    OffPolicyOptions,
    draw_normal,
    soft_update,
    steps_taken,
)
from wdjax.train.learning import (
    Assignment,
    Context,
    Hypers,
    Memory,
    Metrics,
    Policy,
    PolicyConfig,
    PolicyState,
    ReplayBatch,
    Rollout,
    Schedule,
    Terms,
    TrainConfig,
    average,
    descend,
    make_optimizer,
    static,
    traced,
)
from wdjax.train.networks.actor_critic import without_mask
from wdjax.train.networks.values import ActorActionValue, from_box, require_box, to_box
from wdjax.train.state.aliases import ActingState, Carry, Fields, Observation, OptState, Params
from wdjax.train.state.normalization import new_normalizer
from wdjax.train.state.rollout_metrics import action_ranges

ACTOR_METRICS = ("actor_loss", "grad_norm_actor")


@dataclasses.dataclass(frozen=True)
class DDPGOptions(OffPolicyOptions):
    """Options of DDPG. TD3: twin_critics, policy_delay 2, target_noise 0.2 and gaussian noise."""

    critic_learning_rate: Schedule = traced(1e-3)
    """Learning rate of the critics. The actor uses the policy's learning_rate."""
    uniform_warmup: bool = True
    """Sample actions uniformly from the box during warmup. false: use the untrained actor with
    noise."""
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


class DDPG(OffPolicy):
    """A deterministic actor that maximizes the value of a critic, both with replayed data."""

    Options = DDPGOptions

    def check(self, name: str, run: TrainConfig, assignment: Assignment) -> None:
        require_box(f"policies.{name}.algorithm = 'DDPG'", assignment.action_space)
        heads = list(run.policy(name).network.head_hidden_sizes)
        allowed = "[]: DDPG has no such layers"
        require(not heads, f"policies.{name}.network.head_hidden_sizes", heads, allowed)
        super().check(name, run, assignment)

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

    def stored_space(self, policy: Policy) -> Box:
        return Box(-1.0, 1.0, (math.prod(box_of(policy).shape),))

    def stored(self, policy: Policy, action: jax.Array) -> jax.Array:
        return from_box(box_of(policy), action)

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
        rows = rollout.rows[policy.name]
        state, memory, metrics = super().update(
            policy, state, memory, hypers, rollout, key, num_blocks
        )
        return state, memory, {**metrics, **action_ranges(rows.action, rows.live)}

    def draw(self, policy: Policy, keys: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """Return standard normal numbers for target policy smoothing, [steps, B, A]."""
        return draw_normal(keys, (*shape, math.prod(box_of(policy).shape)))

    def gradient_step(
        self,
        policy: Policy,
        state: PolicyState,
        hypers: Hypers,
        batch: ReplayBatch,
        drawn: jax.Array,
    ) -> tuple[PolicyState, Terms]:
        return gradient_step(policy, state, hypers, batch, drawn)

    def mean_metrics(self, options: Any, before: PolicyState, metrics: Terms) -> Terms:
        """Return means over the gradient steps; metrics of the actor over its own steps."""
        first, delay = steps_taken(before), options.policy_delay
        steps = metrics["critic_loss"].shape[0]
        moved = (first + steps) // delay - first // delay
        count = {name: moved if name in ACTOR_METRICS else steps for name in metrics}
        return {name: jnp.sum(values) / count[name] for name, values in metrics.items()}

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


def actor_of(policy: Policy, state: PolicyState, obs: Observation) -> jax.Array:
    """Return mu(obs), [..., A] in [-1, 1], for observations with any leading axes."""
    return nnx.merge(policy.graphdef, state.params).actor(policy.inputs(state, obs)[0])


def critics_of(params: Params) -> Params:
    """Return the parameters of the critics alone."""
    return {name: part for name, part in params.items() if name != "actor"}


def box_of(policy: Policy) -> Box:
    """Return the action space of a policy."""
    return cast(Box, policy.assignment.action_space)
