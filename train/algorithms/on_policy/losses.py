"""The losses of A2C and PPO, the objective that they and their like make small, and its gradient: in plain XLA, or, of
what they take, by the kernels of train/kernels.

A new term with a coefficient is a traced field in config/schema.py, and here its name in OF_LOSS, the term in
`Objective.terms` and its weight in `Objective.total`.
"""

import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from wdjax.kernels.support import decide, why_not_lowered
from wdjax.train.algorithms.on_policy.minibatches import Batch
from wdjax.train.devices.collectives import total
from wdjax.train.kernels.gradient import gradient_kernel
from wdjax.train.kernels.gradient_wide import wide_gradient
from wdjax.train.kernels.layers import inputs_of, reaches, why_plain
from wdjax.train.state.hypers import Hypers, hyper_names
from wdjax.train.state.policy import Policy
from wdjax.train.state.state import PolicyState


def a2c_loss(
    log_prob: jax.Array, old_log_prob: jax.Array, advantage: jax.Array, live: jax.Array,
    hypers: Mapping[str, jax.Array],
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """A2C's loss of each row, the policy gradient's: -log pi(a) A.

    Arguments and results: `OnPolicy.policy_loss`; `old_log_prob` and `hypers` are not used (PPO's).

    Source: Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning" (2016), section 4.
    """
    return -log_prob * advantage, {}


def ppo_loss(
    log_prob: jax.Array, old_log_prob: jax.Array, advantage: jax.Array, live: jax.Array,
    hypers: Mapping[str, jax.Array],
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """PPO's loss of each row, the clipped surrogate,

        -min(rho A, clip(rho, 1 - eps, 1 + eps) A),  rho = pi(a) / pi_old(a).

    Arguments and results: `OnPolicy.policy_loss`; eps is "clip" of `hypers`, and of the metrics approx_kl the estimator
    (rho - 1) - log rho of Schulman (joschu.net, 2020).

    Source: Schulman et al., "Proximal Policy Optimization Algorithms" (2017), eq. 7.
    """
    clip = hypers["clip"]
    log_ratio = jnp.where(live, log_prob - old_log_prob, 0.0)  # a dead row's ratio must not overflow
    ratio = jnp.exp(log_ratio)
    # the same by comparisons: the derivatives of min and clip, which share out ties, are many operations
    gains = advantage > 0.0
    limit = jnp.where(gains, 1.0 + clip, 1.0 - clip)
    beyond = jnp.where(gains, ratio > limit, ratio < limit)
    loss = -jnp.where(beyond, limit, ratio) * advantage
    metrics = {
        "approx_kl": ratio - 1.0 - log_ratio,
        "clip_fraction": (jnp.abs(ratio - 1.0) > clip).astype(jnp.float32),
    }
    return loss, metrics


OF_ROWS = ("log_prob", "value", "advantage", "target", "live")  # what the loss knows of a row, beside obs and action
OF_LOSS = ("clip", "value_clip", "value_coefficient", "entropy_coefficient")  # hyperparameters in it, and all options


@dataclasses.dataclass(frozen=True)
class Objective:
    """What a policy makes small, policy_loss + c_v value_loss - c_e entropy, as functions of plain arrays: plain XLA
    takes their gradient here, and the kernels in theirs (train/kernels/gradient.py)."""

    policy_loss: Callable
    """the algorithm's: (log_prob, old_log_prob, advantage, live, hypers) -> (loss, metrics), of each row"""
    normalized: bool
    """whether advantages are normalised, and their mean therefore a metric"""

    def terms(
        self, log_prob: jax.Array, entropy: jax.Array, value: jax.Array, row: Mapping[str, jax.Array],
        hypers: Mapping[str, jax.Array],
    ) -> dict[str, jax.Array]:  # fmt: skip
        """Returns the terms of the loss and the metrics of each row, to be averaged over live ones; with

            value_loss = max((V - R)^2, (clip(V, V_old - eps_v, V_old + eps_v) - R)^2).

        Args:
            log_prob, entropy, value: [R], of the policy that learns.
            row: [R] each, OF_ROWS.
            hypers: () each, OF_LOSS, and "options.NAME" of what is traced of the algorithm's options.
        """
        policy_loss, metrics = self.policy_loss(log_prob, row.get("log_prob"), row["advantage"], row["live"], hypers)
        if self.normalized:
            metrics["normalized_advantage_mean"] = row["advantage"]
        clipped_value = row["value"] + jnp.clip(value - row["value"], -hypers["value_clip"], hypers["value_clip"])
        value_loss = jnp.maximum((value - row["target"]) ** 2, (clipped_value - row["target"]) ** 2)
        return {**metrics, "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}

    def total(self, terms: Mapping[str, jax.Array], hypers: Mapping[str, jax.Array]) -> jax.Array:
        """Returns policy_loss + c_v value_loss - c_e entropy, of rows or of their sums or means."""
        value_loss = hypers["value_coefficient"] * terms["value_loss"]
        return terms["policy_loss"] + value_loss - hypers["entropy_coefficient"] * terms["entropy"]


def objective_of(policy: Policy) -> Objective:
    """Returns the objective of a policy."""
    return Objective(policy.algorithm.policy_loss, policy.config.normalize_advantage)


def loss(policy: Policy, state: PolicyState, hypers: Hypers, batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns (the objective's loss (), its terms {name: ()}), each a sum over this device's live rows."""
    if batch.carry is None:
        outputs, value, _ = policy.apply(state, batch.obs)
    else:
        outputs, value = policy.unroll(state, batch.obs, batch.carry[0], batch.restart, batch.carry[1])
    log_prob = policy.distribution.log_prob(outputs, batch.action)
    entropy = policy.distribution.entropy(outputs)
    objective, numbers = objective_of(policy), _numbers_of(hypers)
    terms = objective.terms(log_prob, entropy, value, _row_of(batch), numbers)
    # `where` and not a product: the sum may be of dead rows with infinities. Its gradient may not
    sums = {name: jnp.sum(jnp.where(batch.live, values, 0.0)) for name, values in terms.items()}
    return objective.total(sums, numbers), sums


def gradient(
    policy: Policy, state: PolicyState, hypers: Hypers, batch: Batch,
    to_names: Callable[[PolicyState], PolicyState] = lambda state: state,
) -> tuple[Any, dict[str, jax.Array]]:  # fmt: skip
    """Returns (gradient in the parameters of the mean loss over the live rows of all devices, not clipped; metrics: the
    loss and its terms, likewise means, and the gradient's norm).

    The devices add up what they have once, gradients and numbers of rows: only then is there a mean. On NVIDIA GPUs
    kernels do it for networks that they take (`kernels.layers.shape_of`), in the default precision of matrix products;
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

    why = why_plain(policy)
    if why is None and not reaches(policy.kernels, batch.live.size):
        why = f"{batch.live.size:,} transitions: more than a kernel can index"
    elif why is None and policy.algorithm.policy_loss not in (a2c_loss, ppo_loss):  # of one's own: may hold anything
        why = why_not_lowered(by_kernel, state, hypers, batch)
    if not decide(f"learning of {policy.name}", why):
        own = simple(state, hypers, batch)
    else:
        own = jax.lax.platform_dependent(state, hypers, batch, cuda=by_kernel, default=simple)
    sums, count = total((own, jnp.sum(batch.live, dtype=jnp.float32)))
    grads, metrics = jax.tree.map(lambda values: values / jnp.maximum(count, 1.0), sums)
    metrics["loss"], norm = objective_of(policy).total(metrics, _numbers_of(hypers)), optax.tree.norm(grads)
    metrics |= {"grad_norm": norm, "grad_clip_fraction": (norm > hypers.max_grad_norm).astype(jnp.float32)}
    return grads, metrics


def kernel_gradient(
    policy: Policy, state: PolicyState, hypers: Hypers, batch: Batch, interpret: bool = False
) -> tuple[Any, dict[str, jax.Array]]:
    """The gradient of `loss` and its terms by a kernel. `interpret`: step by step in XLA, on any device, for tests."""
    kernel = gradient_kernel if policy.kernels.is_narrow else wide_gradient
    action = batch.action.reshape(batch.live.shape[0], -1)
    return kernel(
        policy.kernels, state.params, inputs_of(policy, state, batch.obs), action, _row_of(batch),
        objective_of(policy), _numbers_of(hypers), interpret,
    )  # fmt: skip


def _row_of(batch: Batch) -> dict[str, jax.Array]:
    return {name: getattr(batch, name) for name in OF_ROWS if getattr(batch, name) is not None}


def _numbers_of(hypers: Hypers) -> dict[str, jax.Array]:
    options = [name for name in hyper_names(hypers) if name.startswith("options.")]
    return {name: operator.attrgetter(name)(hypers) for name in (*OF_LOSS, *options)}
