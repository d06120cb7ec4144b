"""The loss of A2C and PPO and its gradient: in plain XLA, or, of what they take, by the kernels of train/kernels."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.train.algorithms import a2c, ppo
from wdjax.train.collectives import total
from wdjax.train.config import PolicyConfig
from wdjax.train.kernels.gradient import gradient_kernel, total_loss
from wdjax.train.kernels.towers import are_used, inputs_of, reaches
from wdjax.train.kernels.wide import wide_gradient
from wdjax.train.minibatches import Batch
from wdjax.train.state import Hypers, Policy, PolicyState

# Name -> policy_loss(log_prob, old_log_prob, advantage, live, clip) -> (loss, metrics), of each row.
POLICY_LOSSES = {"A2C": a2c.policy_loss, "PPO": ppo.policy_loss}

OF_ROWS = ("log_prob", "value", "advantage", "target", "live")  # what the loss knows of a row, beside obs and action
OF_LOSS = ("clip", "value_clip", "value_coefficient", "entropy_coefficient")  # hyperparameters in it


def loss_terms(
    config: PolicyConfig, log_prob: jax.Array, entropy: jax.Array, value: jax.Array, row: Mapping[str, jax.Array],
    hypers: Mapping[str, jax.Array],
) -> dict[str, jax.Array]:  # fmt: skip
    """Returns the terms of the loss and the metrics of each row, to be averaged over live ones; with

        value_loss = max((V - R)^2, (clip(V, V_old - eps_v, V_old + eps_v) - R)^2).

    Args:
        log_prob, entropy, value: [R], of the policy that learns.
        row: [R] each, OF_ROWS.
        hypers: () each, OF_LOSS.
    """
    policy_loss, metrics = POLICY_LOSSES[config.algorithm](
        log_prob, row.get("log_prob"), row["advantage"], row["live"], hypers["clip"]
    )
    if config.normalize_advantage:
        metrics["normalized_advantage_mean"] = row["advantage"]
    clipped_value = row["value"] + jnp.clip(value - row["value"], -hypers["value_clip"], hypers["value_clip"])
    value_loss = jnp.maximum((value - row["target"]) ** 2, (clipped_value - row["target"]) ** 2)
    return {**metrics, "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}


def loss(policy: Policy, state: PolicyState, hypers: Hypers, batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
    """policy_loss + c_v value_loss - c_e entropy, each a sum over this device's live rows.

    Returns:
        (loss (), {name: ()} of `loss_terms`).
    """
    if batch.carry is None:
        outputs, value, _ = policy.apply(state, batch.obs)
    else:
        outputs, value = policy.unroll(state, batch.obs, batch.carry, batch.restart)
    log_prob = policy.distribution.log_prob(outputs, batch.action)
    entropy = policy.distribution.entropy(outputs)
    numbers = _numbers_of(hypers)
    terms = loss_terms(policy.config, log_prob, entropy, value, _row_of(batch), numbers)
    # `where` and not a product: the sum may be of dead rows with infinities. Its gradient may not
    sums = {name: jnp.sum(jnp.where(batch.live, values, 0.0)) for name, values in terms.items()}
    return total_loss(sums, numbers), sums


def loss_gradient(
    policy: Policy, state: PolicyState, hypers: Hypers, batch: Batch, to_names: Callable[[PolicyState], PolicyState]
) -> tuple[Any, dict[str, jax.Array]]:
    """Returns (gradient in the parameters of the mean loss over the live rows of all devices, metrics: the loss and its
    terms, likewise means).

    The devices add up what they have once, gradients and numbers of rows: only then is there a mean. On NVIDIA GPUs
    kernels do it for networks that they take (`kernels.towers.shape_of`), in the default precision of matrix products;
    the rest is XLA's.

    Args:
        state: as it is, or in vectors with `to_names` (optimizer.to_vectors); so is the gradient.
    """

    def simple(state: PolicyState, hypers: Hypers, batch: Batch) -> tuple[Any, dict[str, jax.Array]]:
        def loss_of(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            return loss(policy, to_names(state.replace(params=params)), hypers, batch)

        return jax.grad(loss_of, has_aux=True)(state.params)

    def by_kernel(state: PolicyState, hypers: Hypers, batch: Batch) -> tuple[Any, dict[str, jax.Array]]:
        params, back = jax.vjp(lambda params: to_names(state.replace(params=params)).params, state.params)
        grads, sums = kernel_gradient(policy, to_names(state).replace(params=params), hypers, batch)
        return back(grads)[0], sums

    if policy.kernels is None or not are_used() or not reaches(policy.kernels, batch.live.size):
        own = simple(state, hypers, batch)
    else:
        own = jax.lax.platform_dependent(state, hypers, batch, cuda=by_kernel, default=simple)
    sums, count = total((own, jnp.sum(batch.live, dtype=jnp.float32)))
    grads, metrics = jax.tree.map(lambda values: values / jnp.maximum(count, 1.0), sums)
    return grads, {**metrics, "loss": total_loss(metrics, _numbers_of(hypers))}


def kernel_gradient(
    policy: Policy, state: PolicyState, hypers: Hypers, batch: Batch, interpret: bool = False
) -> tuple[Any, dict[str, jax.Array]]:
    """The gradient of `loss` and its terms by a kernel. `interpret`: step by step in XLA, on any device, for tests."""
    gradient = gradient_kernel if policy.kernels.is_narrow else wide_gradient
    terms = functools.partial(loss_terms, policy.config)
    action = batch.action.reshape(batch.live.shape[0], -1)
    return gradient(
        policy.kernels, state.params, inputs_of(policy, state, batch.obs), action, _row_of(batch), terms,
        _numbers_of(hypers), interpret,
    )  # fmt: skip


def _row_of(batch: Batch) -> dict[str, jax.Array]:
    row = {name: getattr(batch, name) for name in OF_ROWS}
    return {name: values for name, values in row.items() if values is not None}


def _numbers_of(hypers: Hypers) -> dict[str, jax.Array]:
    return {name: getattr(hypers, name) for name in OF_LOSS}
