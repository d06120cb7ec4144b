"""The update that A2C and PPO share: advantages, then epochs of minibatches, each one gradient step."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from wdjax.train.algorithms import POLICY_LOSSES
from wdjax.train.config import PolicyConfig
from wdjax.train.masked import masked_mean, masked_variance, normalize
from wdjax.train.returns import gae
from wdjax.train.rollout import Rows, next_values
from wdjax.train.state import Hypers, Policy, PolicyState


@struct.dataclass
class Batch:
    """Rows to learn from, leaves [R, ...]; everything but the parameters is a constant of the loss."""

    obs: Any
    action: jax.Array
    log_prob: jax.Array  # under the policy that acted
    value: jax.Array  # under the parameters that acted
    advantage: jax.Array
    target: jax.Array  # the return that the value should predict
    live: jax.Array  # bool, the rows that count


def update_policy(
    policy: Policy,
    state: PolicyState,
    hypers: Hypers,
    rows: Rows,
    last_value: jax.Array,
    over: jax.Array,
    key: jax.Array,
    num_blocks: int,
) -> tuple[PolicyState, dict[str, jax.Array]]:
    """Learns from one rollout.

    Args:
        hypers: with schedules read off.
        rows: [T, N, n, ...].
        last_value: [N, n] V of the observations after the last row.
        over: [T, N] bool.
        key: for the shuffling.
        num_blocks: rows are shuffled within their block of replicas, and every minibatch takes equally from each.

    Returns:
        (state, metrics): scalars, means over live rows; of losses and gradients, means over the gradient steps.
    """
    advantage, target = gae(
        rows.reward, rows.value, next_values(rows, last_value, over), rows.terminated, over[..., None],
        hypers.gamma, hypers.gae_lambda,
    )  # fmt: skip
    batch = Batch(rows.obs, rows.action, rows.log_prob, rows.value, advantage, target, rows.live)
    metrics = rollout_metrics(rows, advantage, target)
    shape = rows.live.shape
    batch = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), batch)

    def step(state: PolicyState, batch: Batch) -> tuple[PolicyState, dict[str, jax.Array]]:
        return gradient_step(policy, state, hypers, batch)

    config = policy.config
    if config.epochs == config.minibatches == 1:  # all rows at once: nothing to shuffle
        state, losses = step(state, batch)
        return state, {**metrics, **losses}

    def epoch(state: PolicyState, key: jax.Array) -> tuple[PolicyState, dict[str, jax.Array]]:
        rows_of = shuffle(key, shape, num_blocks, config.minibatches)
        return jax.lax.scan(lambda s, index: step(s, jax.tree.map(lambda leaf: leaf[index], batch)), state, rows_of)

    state, losses = jax.lax.scan(epoch, state, jax.random.split(key, config.epochs))
    return state, {**metrics, **jax.tree.map(jnp.mean, losses)}


def gradient_step(
    policy: Policy, state: PolicyState, hypers: Hypers, batch: Batch
) -> tuple[PolicyState, dict[str, jax.Array]]:
    """One step down the clipped gradient of the loss. Returns (state, metrics of the loss and the gradient)."""
    (_, metrics), grads = jax.value_and_grad(loss, argnums=1, has_aux=True)(policy, state.params, hypers, batch)
    updates, opt_state = make_optimizer(policy.config, hypers).update(grads, state.opt_state, state.params)
    params = jax.tree.map(lambda param, update: param - hypers.learning_rate * update, state.params, updates)
    return PolicyState(params, opt_state), {**metrics, "grad_norm": optax.tree.norm(grads)}


def loss(policy: Policy, params: Any, hypers: Hypers, batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
    """policy_loss + c_v value_loss - c_e entropy, each a mean over live rows; with

        value_loss = mean(max((V - R)^2, (clip(V, V_old - eps_v, V_old + eps_v) - R)^2)).

    Returns:
        (loss (), metrics).
    """
    outputs, value = policy.apply(params, batch.obs)
    log_prob = policy.distribution.log_prob(outputs, batch.action)
    entropy = masked_mean(policy.distribution.entropy(outputs), batch.live)
    advantage = normalize(batch.advantage, batch.live) if policy.config.normalize_advantage else batch.advantage
    policy_loss, metrics = POLICY_LOSSES[policy.config.algorithm](
        log_prob, batch.log_prob, advantage, batch.live, hypers.clip
    )
    clipped_value = batch.value + jnp.clip(value - batch.value, -hypers.value_clip, hypers.value_clip)
    error = jnp.maximum((value - batch.target) ** 2, (clipped_value - batch.target) ** 2)
    value_loss = masked_mean(error, batch.live)
    total = policy_loss + hypers.value_coefficient * value_loss - hypers.entropy_coefficient * entropy
    return total, {
        **metrics, "loss": total, "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy
    }  # fmt: skip


def make_optimizer(config: PolicyConfig, hypers: Hypers) -> optax.GradientTransformation:
    """Returns global-norm clipping and the optimizer up to, not including, the learning rate: that is traced."""
    shape = {
        "adam": optax.scale_by_adam(eps=config.optimizer_epsilon),
        "rmsprop": optax.scale_by_rms(decay=0.99, eps=config.optimizer_epsilon, eps_in_sqrt=False),
        "sgd": optax.identity(),
    }[config.optimizer]
    return optax.chain(optax.clip_by_global_norm(hypers.max_grad_norm), shape)


def shuffle(key: jax.Array, shape: tuple[int, int, int], num_blocks: int, minibatches: int) -> jax.Array:
    """Returns [minibatches, R / minibatches] indices into the R = T * N * n rows of a rollout, each row once.

    Every block of N / num_blocks replicas is permuted on its own, with a key of its own, and every minibatch takes
    equally from each, so that the numbers drawn do not depend on how blocks are spread over devices.
    """
    steps, replicas, agents = shape
    width = replicas // num_blocks * agents  # rows of a block in one step
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(num_blocks))
    order = jax.vmap(lambda key: jax.random.permutation(key, steps * width))(keys)  # [B, T * width], within the block
    time, place = order // width, order % width
    index = time * (replicas * agents) + jnp.arange(num_blocks)[:, None] * width + place
    return jnp.swapaxes(index.reshape(num_blocks, minibatches, -1), 0, 1).reshape(minibatches, -1)


def rollout_metrics(rows: Rows, advantage: jax.Array, target: jax.Array) -> dict[str, jax.Array]:
    """Returns means over the live rows of a rollout, before any gradient step.

    explained_variance = 1 - Var(R - V) / Var(R): 1 is a perfect value function, 0 one as good as a constant.
    """
    live = rows.live
    return {
        "reward_mean": masked_mean(rows.reward, live),
        "value_mean": masked_mean(rows.value, live),
        "return_mean": masked_mean(target, live),
        "advantage_mean": masked_mean(advantage, live),
        "explained_variance": 1.0 - masked_variance(advantage, live) / (masked_variance(target, live) + 1e-8),
        "live_fraction": jnp.mean(live.astype(jnp.float32)),
    }
