"""Minimize a loss over epochs of shuffled minibatches, for PPO, A2C and custom algorithms."""

import functools
from collections.abc import Callable
from typing import TypeAlias, cast

import jax
import jax.numpy as jnp
import optax
from flax import struct

from wdjax.kernels.backend import cuda_or_default
from wdjax.train.algorithms.returns import Experience
from wdjax.train.algorithms.shuffle import shuffle
from wdjax.train.config.schema import PolicyConfig
from wdjax.train.devices.collectives import any_of
from wdjax.train.devices.moments import normalize
from wdjax.train.state import Hypers, Policy, PolicyState, Rollout
from wdjax.train.state.aliases import Carry, Extra, Observation, OptState, Params

Terms: TypeAlias = dict[str, jax.Array]
"""terms of a loss by name, [B] each, or their means, ()"""
Mean: TypeAlias = Callable[[Terms], Terms]
"""averages terms over the valid transitions; a loss must be linear in the result"""


class Batch(struct.PyTreeNode):
    """The transitions of a loss, leaves [B, ...]; for recurrent policies M sequences [T, M, ...].

    All fields are constants of the loss.

    Attributes:
        obs: observations, or another input of a custom `evaluate`.
        action: actions as sampled.
        log_prob: [B] float32, log-probability under the policy that acted; None if it is not
            stored.
        value: [B] float32, value under the parameters that acted.
        advantage: [B] float32, advantage of the action.
        target: [B] float32, target of the value.
        valid: [B] bool, transitions that count in the loss.
        extra: `Rows.own`, arrays that the algorithm stored while acting, for a custom `evaluate`
            and, if they contain one number per transition, for `loss`; or None.
        restart: [T, M] bool, the carry starts anew with this step; None for a feed-forward policy.
        carry: carry before the first step, leaves [M, ...]; None for a feed-forward policy.
        start: carry at the start of an episode, leaves [M, ...]; None unless `init_carry` is
            custom.
    """

    obs: Observation
    action: jax.Array
    log_prob: jax.Array | None
    value: jax.Array
    advantage: jax.Array
    target: jax.Array
    valid: jax.Array
    extra: Extra = None
    restart: jax.Array | None = None
    carry: Carry = None
    start: Carry = None

    @classmethod
    def of(
        cls,
        policy: Policy,
        rollout: Rollout,
        data: Experience,
        advantage: jax.Array,
        target: jax.Array,
    ) -> "Batch":
        """Return a rollout as a batch with leaves [T, N, n, ...]."""
        rows = data.rows
        batch = cls(
            rows.obs,
            rows.action,
            rows.log_prob,
            data.value,
            advantage,
            target,
            data.valid,
            rows.own,
        )
        if not policy.is_recurrent:
            return batch
        custom = policy.algorithm.overridden("init_carry")
        start = policy.algorithm.init_carry(policy, data.over.shape[1]) if custom else None
        return batch.in_sequences(rows.restarts(data.over), rollout.first_carry[policy.name], start)

    @classmethod
    def of_values(
        cls, obs: Observation, value: jax.Array, target: jax.Array, valid: jax.Array
    ) -> "Batch":
        """Return a batch to fit values alone, without actions; leaves [T, N, n, ...]."""
        return cls(obs, None, None, value, None, target, valid)  # type: ignore[arg-type]

    def in_sequences(self, restarts: jax.Array, carry: Carry, start: Carry = None) -> "Batch":
        """Return the batch of a recurrent network, leaves [T, N, n, ...].

        Args:
            restarts: [T, N] or [T, N, n] bool, the carry starts anew after this step:
                `Rows.restarts`.
            carry: before the first step, where it has been reset, leaves [N, n, ...].
            start: at the start of an episode, leaves [N, n, ...]; None: as the network's memory.
        """
        restart = jnp.concatenate([jnp.zeros_like(restarts[:1]), restarts[:-1]])
        restart = restart[..., None] if restart.ndim == 2 else restart
        restart = jnp.broadcast_to(restart, self.valid.shape)
        return self.replace(restart=restart, carry=carry, start=start)

    def flat(self) -> "Batch":
        """Merge the axes [T, N, n] into [T * N * n]; for recurrent policies into [T, N * n]."""
        if self.carry is None:
            return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), self)
        carries = {"carry": self.carry, "start": self.start}
        rows = jax.tree.map(
            lambda leaf: leaf.reshape(leaf.shape[0], -1, *leaf.shape[3:]),
            self.replace(carry=None, start=None),
        )
        return rows.replace(**jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), carries))

    def outputs(self, policy: Policy, state: PolicyState) -> tuple[jax.Array, jax.Array]:
        """Return (outputs [B, num_outputs + num_free], value [B]) of the policy's network.

        For a recurrent policy they are [T, M, ...], from `policy.unroll`. Call `flat` before.

        Args:
            policy: static part of the policy.
            state: its state, with the parameters to evaluate.
        """
        if self.carry is None:
            return policy.apply(state, self.obs)[:2]
        restart = cast(jax.Array, self.restart)
        return policy.unroll(state, self.obs, self.carry, restart, self.start)


def fit(
    loss: Callable,
    policy: Policy,
    state: PolicyState,
    hypers: Hypers,
    batch: Batch,
    key: jax.Array,
    num_blocks: int,
    *,
    evaluate: Callable | None = None,
    epochs: int = 1,
    minibatches: int = 1,
    normalize_advantage: bool = False,
    target_kl: jax.Array | None = None,
) -> tuple[PolicyState, Terms]:
    """Take one optimizer step per minibatch, for several epochs.

    A minibatch without valid transitions takes no step, because momentum alone would change the
    parameters. If `approx_kl` exceeds `target_kl`, neither this step nor any later one is taken.

    Args:
        loss: loss(new, batch, options, mean) -> (loss, metrics), as `PPO.loss`.
        policy: static part of the policy, with the engine, optimizer and options to use.
        state: parameters to train and their optimizer, of the policy or shared by a team.
        hypers: hyperparameters of the policy at this point of the run.
        batch: leaves [T, N, n, ...]: N replicas in `num_blocks` blocks, each shuffled separately.
        key: () key for the order of the transitions.
        num_blocks: blocks of replicas on this device.
        evaluate: evaluate(policy, state, batch) -> Evaluation of a batch by any network, under the
            parameters of `state`. None: by the policy's actor-critic; only this has kernels.
        epochs: passes over the batch.
        minibatches: steps per pass.
        normalize_advantage: standardize the advantages of each minibatch over valid transitions.
        target_kl: () limit of `approx_kl`; None: no limit.

    Returns:
        (state, metrics): means over the steps taken, NaN without any; `approx_kl` includes the
        step that exceeded `target_kl`.
    """
    engine, shape, batch = policy.engine, batch.valid.shape, batch.flat()
    if epochs == minibatches == 1:
        return full_step(loss, policy, state, hypers, batch, evaluate, normalize_advantage)
    if batch.carry is not None:
        shape = (1, *shape[1:])  # shuffle whole sequences
    order = lambda key: shuffle(key, shape, num_blocks, minibatches)  # noqa: E731
    index = jax.vmap(order)(jax.random.split(key, epochs)).reshape(epochs * minibatches, -1)
    # Without the barrier, XLA computes the order again inside gathers. LLVM of jaxlib 0.12 does not
    # finish some of these loops on a CPU: it visits each path through the chain of operations.
    index = cuda_or_default(lambda index: index, jax.lax.optimization_barrier, index)
    advantage = normalized_advantages(batch, index) if normalize_advantage else None

    def step(state: PolicyState, stopped: jax.Array, minibatch: Batch) -> tuple:
        any_valid = any_of(minibatch.valid)
        grads, metrics = engine.gradient(loss, policy, state, hypers, minibatch, evaluate)
        kl = metrics.get("approx_kl", -jnp.inf)
        stop = stopped if target_kl is None else stopped | (kl > target_kl)
        take, improve = any_valid & ~stop, functools.partial(apply_gradient, policy, hypers, grads)
        state = engine.apply_if(take, improve, state)
        return state, stop, (metrics, any_valid & ~stopped, take)

    state, steps = engine.scan_minibatches(step, state, batch, index, advantage)
    return state, mean_over_steps(*steps)


def full_step(
    loss: Callable,
    policy: Policy,
    state: PolicyState,
    hypers: Hypers,
    batch: Batch,
    evaluate: Callable | None,
    normalize_advantage: bool,
) -> tuple[PolicyState, Terms]:
    """Take one optimizer step on all transitions, whose order does not matter.

    It has the arguments and results of `fit`, with a flat batch.
    """
    if normalize_advantage:
        batch = batch.replace(advantage=normalize(batch.advantage, batch.valid))
    any_valid = any_of(batch.valid)
    grads, metrics = policy.engine.gradient(loss, policy, state, hypers, batch, evaluate)
    improve = functools.partial(apply_gradient, policy, hypers, grads)
    state = policy.engine.apply_if(any_valid, improve, state)
    return state, jax.tree.map(lambda value: jnp.where(any_valid, value, jnp.nan), metrics)


def normalized_mean(batch: Batch, normalize_advantage: bool) -> Terms:
    """Return the metric `normalized_advantage_mean` as a term, [B], or {} without normalization.

    Args:
        batch: the transitions, leaves [B, ...].
        normalize_advantage: as for `fit`.
    """
    return {"normalized_advantage_mean": batch.advantage} if normalize_advantage else {}


def mean_over_steps(metrics: Terms, evaluated: jax.Array, taken: jax.Array) -> Terms:
    """Return the means of metrics over gradient steps, and the number of steps taken.

    Args:
        metrics: [steps] each.
        evaluated: [steps] bool, steps with a gradient, over which `approx_kl` is averaged.
        taken: [steps] bool, steps that changed the parameters, for all other metrics.
    """
    counted = jnp.stack([evaluated if name == "approx_kl" else taken for name in metrics])
    sums = jnp.sum(jnp.where(counted, jnp.stack(list(metrics.values())), 0.0), axis=1)
    means = jnp.where(
        jnp.any(counted, axis=1), sums / jnp.maximum(jnp.sum(counted, axis=1), 1), jnp.nan
    )
    return dict(zip(metrics, means, strict=True)) | {"gradient_steps": jnp.sum(taken)}


def normalized_advantages(batch: Batch, index: jax.Array) -> jax.Array:
    """Return the advantages of each minibatch, standardized over its valid transitions.

    All minibatches are computed in parallel, before the gradient steps.

    Args:
        batch: leaves [B, ...], or sequences [T, M, ...].
        index: [minibatches, r] int32, the transitions or sequences of each minibatch.

    Returns:
        [minibatches, r], or [minibatches, T, r].
    """
    take = lambda leaf, index: jnp.take(leaf, index, axis=-1, mode="clip")  # noqa: E731
    return jax.vmap(
        lambda index: normalize(take(batch.advantage, index), take(batch.valid, index))
    )(index)


def make_optimizer(
    config: PolicyConfig, max_grad_norm: jax.Array | float
) -> optax.GradientTransformation:
    """Return the optimizer of a policy, without the learning rate, after clipping by global norm.

    The learning rate is traced. Subtract the updates times the learning rate, as `descend` does.

    Args:
        config: configuration of the policy.
        max_grad_norm: () or a number, maximum global norm of the gradient.
    """
    shape = {
        "adam": optax.scale_by_adam(eps=config.optimizer_epsilon),
        "radam": optax.scale_by_radam(eps=config.optimizer_epsilon),
        "rmsprop": optax.scale_by_rms(decay=0.99, eps=config.optimizer_epsilon, eps_in_sqrt=False),
        "sgd": optax.identity(),
    }[config.optimizer]
    return optax.chain(optax.clip_by_global_norm(max_grad_norm), shape)


def descend(
    config: PolicyConfig,
    hypers: Hypers,
    learning_rate: jax.Array,
    grads: Params,
    opt_state: OptState,
    params: Params,
) -> tuple[Params, OptState]:
    """Take one step of the optimizer of a policy: params - learning_rate * update(grads).

    Args:
        config: configuration of the policy.
        hypers: hyperparameters at this point of the run; max_grad_norm is read.
        learning_rate: () learning rate.
        grads: gradient, structured like params.
        opt_state: state of the optimizer (`make_optimizer`).
        params: parameters.

    Returns:
        (params, opt_state).
    """
    optimizer = make_optimizer(config, hypers["max_grad_norm"])
    updates, opt_state = optimizer.update(grads, opt_state, params)
    step = lambda param, update: param - learning_rate * update  # noqa: E731
    return jax.tree.map(step, params, updates), opt_state


def apply_gradient(
    policy: Policy, hypers: Hypers, grads: Params, state: PolicyState
) -> PolicyState:
    """Take one optimizer step.

    Args:
        policy: static part of the policy.
        hypers: hyperparameters at this point of the run.
        grads: gradient, structured like the parameters.
        state: parameters and state of the optimizer.
    """
    params, opt_state = descend(
        policy.config, hypers, hypers["learning_rate"], grads, state.opt_state, state.params
    )
    return state.replace(params=params, opt_state=opt_state)
