"""Off-policy learning in a bounded box: an actor that maximizes the values of critics.

DDPG, TD3 and SAC share everything here. They differ in the actor, its loss and the target of the
critics.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, cast

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from wdjax.checks import require
from wdjax.spaces import Box
from wdjax.train.algorithms.critics import critic_error, mean_target, q_values
from wdjax.train.algorithms.off_policy import (
    COUNT,
    OffPolicy,
    OffPolicyOptions,
    soft_update,
    steps_taken,
)
from wdjax.train.learning import (
    Assignment,
    Hypers,
    Memory,
    Metrics,
    Policy,
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
from wdjax.train.networks.values import from_box, require_box
from wdjax.train.state.aliases import OptState, Params
from wdjax.train.state.normalization import new_normalizer
from wdjax.train.state.rollout_metrics import action_ranges


@dataclasses.dataclass(frozen=True)
class OffPolicyCriticOptions(OffPolicyOptions):
    """Options of DDPG and SAC."""

    critic_learning_rate: Schedule = traced(1e-3)
    """Learning rate of the critics. The actor uses the policy's learning_rate."""
    uniform_warmup: bool = True
    """Sample actions uniformly from the box during warmup. false: use the untrained actor."""
    policy_delay: int = static(1, allowed=COUNT)
    """Gradient steps of the critics per gradient step of the actor and the target networks."""
    critic: Literal["expected", "categorical"] = static("expected", read=True)
    """expected: critics predict the mean return, by squared errors. categorical: they predict its
    distribution on `num_atoms` values from `v_min` to `v_max`, by cross-entropy (C51, FastTD3)."""
    num_atoms: int = static(101, read=True, allowed="at least 2 and below 2**31")
    """Number of values of categorical critics."""
    v_min: float = traced(-10.0, allowed="finite")
    """Lowest value of categorical critics. Lower discounted returns count as this one."""
    v_max: float = traced(10.0, allowed="finite")
    """Highest value of categorical critics. Higher discounted returns count as this one."""


class OffPolicyCritic(OffPolicy):
    """Base class of algorithms with an actor and critics in the box [-1, 1]^A.

    A subclass has `make_network` with the parts "actor" and "critic", `bellman_target` and
    `actor_loss`.
    """

    Options = OffPolicyCriticOptions
    actor_metrics: ClassVar[tuple[str, ...]] = ("actor_loss", "grad_norm_actor")
    """metrics of the gradient steps of the actor"""

    def check(self, name: str, run: TrainConfig, assignment: Assignment) -> None:
        path, algorithm = f"policies.{name}", type(self).__name__
        require_box(f"{path}.algorithm = {algorithm!r}", assignment.action_space)
        heads = list(run.policy(name).network.head_hidden_sizes)
        allowed = f"[]: {algorithm} has no such layers"
        require(not heads, f"{path}.network.head_hidden_sizes", heads, allowed)
        options = run.policy(name).options
        above = f"above v_min = {options.v_min}"
        require(options.v_max > options.v_min, f"{path}.v_max", options.v_max, above)
        super().check(name, run, assignment)

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
        target = jax.tree.map(jnp.copy, self.targets_of(params))
        return PolicyState(params, opt_state, normalizer, target, gradient_steps=jnp.int32(0))

    def targets_of(self, params: Params) -> Params:
        """Return the parameters that have target networks: all by default."""
        return params

    def stored_space(self, policy: Policy) -> Box:
        return Box(-1.0, 1.0, (num_actions(policy),))

    def stored(self, policy: Policy, action: jax.Array) -> jax.Array:
        return from_box(box_of(policy), action)

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

    def bellman_target(
        self,
        policy: Policy,
        state: PolicyState,
        hypers: Hypers,
        batch: ReplayBatch,
        drawn: jax.Array,
    ) -> jax.Array:
        """Return the targets of the critics, from `critic_target`.

        The arguments are as in `gradient_step`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no bellman_target")

    def actor_loss(
        self,
        policy: Policy,
        state: PolicyState,
        actor: Params,
        hypers: Hypers,
        batch: ReplayBatch,
        drawn: jax.Array,
    ) -> tuple[jax.Array, Terms]:
        """Return (mean loss of the actor over the batch on this device, further metrics)."""
        raise NotImplementedError(f"{type(self).__name__} has no actor_loss")

    def gradient_step(
        self,
        policy: Policy,
        state: PolicyState,
        hypers: Hypers,
        batch: ReplayBatch,
        drawn: jax.Array,
    ) -> tuple[PolicyState, Terms]:
        """Take a step of the critics and, every `policy_delay` steps, of actor and targets.

        Args:
            policy: static part of the policy.
            state: its state.
            hypers: hyperparameters at this point of the run.
            batch: leaves [B, ...].
            drawn: [B, ...] standard normal numbers.

        Returns:
            (state, metrics): metrics of the actor are 0 if it took no step.
        """
        target = self.bellman_target(policy, state, hypers, batch, drawn)
        state, metrics = critic_step(policy, state, hypers, batch, target)
        improve = functools.partial(
            self.actor_step, policy, hypers=hypers, batch=batch, drawn=drawn
        )
        skip = lambda state: (state, dict.fromkeys(self.actor_metrics, jnp.float32(0)))  # noqa: E731
        delay = policy.config.options.policy_delay
        if delay == 1:
            state, actor_metrics = improve(state)
        else:
            now = steps_taken(state) % delay == 0
            state, actor_metrics = jax.lax.cond(now, improve, skip, state)
        return state, metrics | actor_metrics

    def actor_step(
        self,
        policy: Policy,
        state: PolicyState,
        hypers: Hypers,
        batch: ReplayBatch,
        drawn: jax.Array,
    ) -> tuple[PolicyState, Terms]:
        """Take a step of the actor, then one of the target networks. Return (state, metrics)."""
        actor, optimizers = state.params["actor"], cast(dict[str, OptState], state.opt_state)
        (loss, metrics), grads = jax.value_and_grad(self.actor_loss, argnums=2, has_aux=True)(
            policy, state, actor, hypers, batch, drawn
        )
        loss, metrics, grads = average((loss, metrics, grads))
        actor, opt_state = descend(
            policy.config, hypers, hypers["learning_rate"], grads, optimizers["actor"], actor
        )
        params = {**state.params, "actor": actor}
        state = state.replace(
            params=params,
            opt_state={**optimizers, "actor": opt_state},
            target_params=soft_update(state.target_params, self.targets_of(params), hypers["tau"]),
        )
        norm = optax.tree.norm(grads)
        return state, {**metrics, "actor_loss": loss, "grad_norm_actor": norm}

    def mean_metrics(self, options: Any, before: PolicyState, metrics: Terms) -> Terms:
        """Return means over the gradient steps; metrics of the actor over its own steps."""
        first, delay = steps_taken(before), options.policy_delay
        steps = metrics["critic_loss"].shape[0]
        moved = (first + steps) // delay - first // delay
        count = {name: moved if name in self.actor_metrics else steps for name in metrics}
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


def critic_step(
    policy: Policy, state: PolicyState, hypers: Hypers, batch: ReplayBatch, target: jax.Array
) -> tuple[PolicyState, Terms]:
    """Take a step of the critics towards the targets. Return (state, metrics)."""
    (_, metrics), grads = jax.value_and_grad(critic_loss, argnums=2, has_aux=True)(
        policy, state, critics_of(state.params), hypers, batch, target
    )
    grads, metrics = average((grads, metrics))
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
    return state, metrics


def critic_loss(
    policy: Policy,
    state: PolicyState,
    critics: Params,
    hypers: Hypers,
    batch: ReplayBatch,
    target: jax.Array,
) -> tuple[jax.Array, Terms]:
    """Return (sum_i mean(error_i), metrics) of the batch on this device, see `critic_error`."""
    networks = nnx.merge(policy.graphdef, {**state.params, **critics})
    outputs = networks.values(policy.inputs(state, batch.obs)[0], batch.action)
    loss = jnp.sum(jnp.mean(critic_error(policy, outputs, target), axis=1))
    q_mean = jnp.mean(q_values(policy, hypers, outputs)[0])
    means = {"q_mean": q_mean, "target_mean": mean_target(policy, hypers, target)}
    return loss, {"critic_loss": loss, **means}


def critics_of(params: Params) -> Params:
    """Return the parameters of the critics alone."""
    return {name: part for name, part in params.items() if name.startswith("critic")}


def box_of(policy: Policy) -> Box:
    """Return the action space of a policy."""
    return cast(Box, policy.assignment.action_space)


def num_actions(policy: Policy) -> int:
    """Return the size A of an action."""
    return math.prod(box_of(policy).shape)
