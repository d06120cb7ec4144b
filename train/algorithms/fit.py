"""Minimize a loss over epochs of shuffled minibatches: shared by PPO, A2C and custom on-policy algorithms."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from wdjax.train.algorithms.returns import Experience
from wdjax.train.config.schema import PolicyConfig
from wdjax.train.devices.blocks import block_keys
from wdjax.train.devices.collectives import any_of
from wdjax.train.devices.moments import normalize
from wdjax.train.state import Hypers, Policy, PolicyState, Rollout

Metrics = dict[str, jax.Array]
Mean = Callable[[Metrics], Metrics]
"""Averages the terms of a loss, {name: [B]}, over valid transitions. A loss must be linear in the result."""


@struct.dataclass
class Batch:
    """Transitions that a loss is computed on, leaves [B, ...]; of a recurrent policy M sequences, [T, M, ...].

    All fields are constants of the loss.
    """

    obs: Any  # observations, or whatever `evaluate` reads in their place
    action: jax.Array  # as sampled
    log_prob: (
        jax.Array | None
    )  # under the policy that acted; None if the algorithm does not keep it
    value: jax.Array  # under the parameters that acted
    advantage: jax.Array
    target: jax.Array  # of the value
    valid: jax.Array  # bool, the transitions that count
    extra: Any = None  # `Rows.own`, what the algorithm stored while acting; for `evaluate`
    restart: jax.Array | None = None  # bool, an episode starts here; recurrent policies only
    carry: Any = None  # [M, ...] before the first step; recurrent policies only
    start: Any = None  # [M, ...] carry at the start of an episode, from a custom `init_carry`

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
            rows.value,
            advantage,
            target,
            data.valid,
            rows.own,
        )
        if not policy.is_recurrent:
            return batch
        restart = jnp.concatenate(
            [jnp.zeros_like(data.over[:1]), data.over[:-1]]
        )  # the first step's reset is done
        restart = jnp.broadcast_to(restart[..., None], data.valid.shape)
        custom = policy.algorithm.overridden("init_carry")
        start = policy.algorithm.init_carry(policy, data.over.shape[1]) if custom else None
        return batch.replace(restart=restart, carry=rollout.first_carry[policy.name], start=start)

    def flat(self) -> "Batch":
        """Merge the leading axes [T, N, n] into [T * N * n]; of a recurrent policy into [T, N * n]."""
        if self.carry is None:
            return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), self)
        carries = {"carry": self.carry, "start": self.start}
        rows = jax.tree.map(
            lambda leaf: leaf.reshape(leaf.shape[0], -1, *leaf.shape[3:]),
            self.replace(carry=None, start=None),
        )
        return rows.replace(**jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), carries))

    def outputs(self, policy: Policy, state: PolicyState) -> tuple[jax.Array, jax.Array]:
        """Return (outputs [B, num_outputs], value [B]) of the policy's network on this batch.

        Those of a recurrent policy are [T, M, ...], from `policy.unroll`. Call `flat` before.

        Args:
            policy: static part of the policy.
            state: its state, with the parameters to evaluate.
        """
        if self.carry is None:
            return policy.apply(state, self.obs)[:2]
        return policy.unroll(state, self.obs, self.carry, self.restart, self.start)


def fit(
    loss: Callable, policy: Policy, state: PolicyState, hypers: Hypers, batch: Batch, key: jax.Array, num_blocks: int,
    *, evaluate: Callable | None = None, epochs: int = 1, minibatches: int = 1, normalize_advantage: bool = False,
    target_kl: jax.Array | None = None,
) -> tuple[PolicyState, Metrics]:  # fmt: skip
    """Take one optimizer step per minibatch, for several epochs.

    A minibatch without a valid transition takes no step: momentum alone would move the parameters. Once `approx_kl`
    exceeds `target_kl`, neither that step nor any later one is taken.

    Args:
        loss: loss(new, batch, options, mean) -> (loss, metrics), as `PPO.loss`.
        policy: static part of the policy whose engine, optimizer and options count.
        state: state with the parameters to train and their optimizer; the policy's, or what a team shares.
        hypers: hyperparameters of the policy at this point of the run.
        batch: leaves [T, N, n, ...], N replicas in `num_blocks` blocks, which are shuffled separately.
        key: () key for the order of the transitions.
        num_blocks: blocks of replicas on this device.
        evaluate: evaluate(policy, state, batch) -> Evaluation of a batch under the parameters of a state, by any
            network. By default that of the policy's actor-critic. Only this one has kernels.
        epochs, minibatches: passes over the batch, and steps per pass.
        normalize_advantage: standardize the advantages of each minibatch over its valid transitions.
        target_kl: (), or None: never stop early.

    Returns:
        (state, metrics): means over the steps taken, NaN if there were none; `approx_kl` includes the step that
        stopped the epochs.
    """
    engine, shape, batch = policy.engine, batch.valid.shape, batch.flat()

    if epochs == minibatches == 1:  # one step on everything: nothing to shuffle
        if normalize_advantage:
            batch = batch.replace(advantage=normalize(batch.advantage, batch.valid))
        any_valid, (grads, metrics) = (
            any_of(batch.valid),
            engine.gradient(loss, policy, state, hypers, batch, evaluate),
        )
        state = engine.apply_if(any_valid, apply_gradient(policy, hypers, grads), state)
        return state, jax.tree.map(lambda value: jnp.where(any_valid, value, jnp.nan), metrics)

    if batch.carry is not None:
        shape = (1, *shape[1:])  # shuffle whole sequences
    keys = jax.random.split(key, epochs)
    index = jax.vmap(lambda key: shuffle(key, shape, num_blocks, minibatches, engine.permutation))(
        keys
    )
    index = index.reshape(epochs * minibatches, -1)
    advantage = normalized_advantages(batch, index) if normalize_advantage else None

    def step(state: PolicyState, stopped: jax.Array, minibatch: Batch) -> tuple:
        any_valid = any_of(minibatch.valid)
        grads, metrics = engine.gradient(loss, policy, state, hypers, minibatch, evaluate)
        stop = (
            stopped
            if target_kl is None
            else stopped | (metrics.get("approx_kl", -jnp.inf) > target_kl)
        )
        take = any_valid & ~stop
        state = engine.apply_if(take, apply_gradient(policy, hypers, grads), state)
        return state, stop, (metrics, any_valid & ~stopped, take)

    state, steps = engine.scan_minibatches(step, state, batch, index, advantage)
    return state, mean_over_steps(*steps)


def normalized_mean(batch: Batch, options: Any) -> Metrics:
    """Return the term whose mean shows that advantages are normalized, [B], for options that normalize them."""
    return {"normalized_advantage_mean": batch.advantage} if options.normalize_advantage else {}


def mean_over_steps(metrics: Metrics, evaluated: jax.Array, taken: jax.Array) -> Metrics:
    """Return the means over the gradient steps taken, of `approx_kl` over those evaluated, and their number.

    Args:
        metrics: [steps] each.
        evaluated, taken: [steps] bool.
    """
    counted = jnp.stack([evaluated if name == "approx_kl" else taken for name in metrics])
    sums = jnp.sum(jnp.where(counted, jnp.stack(list(metrics.values())), 0.0), axis=1)
    means = jnp.where(
        jnp.any(counted, axis=1), sums / jnp.maximum(jnp.sum(counted, axis=1), 1), jnp.nan
    )
    return dict(zip(metrics, means, strict=True)) | {"gradient_steps": jnp.sum(taken)}


def shuffle(
    key: jax.Array,
    shape: tuple[int, int, int],
    num_blocks: int,
    minibatches: int,
    permutation: Callable,
) -> jax.Array:
    """Return [minibatches, R / minibatches] indices into the R = T * N * n transitions of a rollout, each once.

    Each block of N / num_blocks replicas is permuted with its own key and contributes equally to each minibatch, so
    the random numbers do not depend on the number of devices.
    """
    steps, replicas, agents = shape
    width = replicas // num_blocks * agents  # transitions of a block in one step
    keys = block_keys(key, num_blocks)
    order = jax.vmap(lambda key: permutation(key, steps * width))(
        keys
    )  # [num_blocks, T * width], within the block
    time, place = order // width, order % width
    index = time * (replicas * agents) + jnp.arange(num_blocks)[:, None] * width + place
    return jnp.swapaxes(index.reshape(num_blocks, minibatches, -1), 0, 1).reshape(minibatches, -1)


def normalized_advantages(batch: Batch, index: jax.Array) -> jax.Array:
    """Return the advantages of each minibatch, standardized over its valid transitions: [minibatches, r] or [., T, r].

    All minibatches at once, before the gradient steps: the sums then run side by side.

    Args:
        index: [minibatches, r] int32, the transitions (of a recurrent policy: the sequences) of each minibatch.
    """
    take = lambda leaf, index: jnp.take(leaf, index, axis=-1, mode="clip")  # noqa: E731
    return jax.vmap(
        lambda index: normalize(take(batch.advantage, index), take(batch.valid, index))
    )(index)


def make_optimizer(
    config: PolicyConfig, max_grad_norm: jax.Array | float
) -> optax.GradientTransformation:
    """Return the optimizer of a policy: global-norm clipping, and its scaling without the learning rate.

    The learning rate is traced: subtract it times the updates, as `descend` does.

    Args:
        config: configuration of the policy.
        max_grad_norm: () or a number, maximum global norm of the gradient.
    """
    shape = {
        "adam": optax.scale_by_adam(eps=config.optimizer_epsilon),
        "rmsprop": optax.scale_by_rms(decay=0.99, eps=config.optimizer_epsilon, eps_in_sqrt=False),
        "sgd": optax.identity(),
    }[config.optimizer]
    return optax.chain(optax.clip_by_global_norm(max_grad_norm), shape)


def descend(
    config: PolicyConfig,
    hypers: Hypers,
    learning_rate: jax.Array,
    grads: Any,
    opt_state: Any,
    params: Any,
) -> tuple[Any, Any]:
    """Take one step of the optimizer of a policy, params - learning_rate * update(grads).

    Args:
        config: configuration of the policy.
        hypers: hyperparameters at this point of the run; max_grad_norm is read.
        learning_rate: ().
        grads: gradient, structured like params.
        opt_state: state of the optimizer (`make_optimizer`).
        params: parameters.

    Returns:
        (params, opt_state).
    """
    updates, opt_state = make_optimizer(config, hypers["max_grad_norm"]).update(
        grads, opt_state, params
    )
    return jax.tree.map(
        lambda param, update: param - learning_rate * update, params, updates
    ), opt_state


def apply_gradient(
    policy: Policy, hypers: Hypers, grads: Any
) -> Callable[[PolicyState], PolicyState]:
    """Return the function that takes one optimizer step: clip, precondition, subtract."""

    def step(state: PolicyState) -> PolicyState:
        rate = hypers["learning_rate"]
        params, opt_state = descend(
            policy.config, hypers, rate, grads, state.opt_state, state.params
        )
        return state.replace(params=params, opt_state=opt_state)

    return step
