"""How A2C and PPO act: in plain XLA, or, of what they take, by the kernel of train/kernels/act.py."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from wdjax.train.kernels.act import act_kernel
from wdjax.train.kernels.layers import inputs_of, towers_of, transposed
from wdjax.train.rollout.draws import draw_uniform, sample_blocks
from wdjax.train.state.policy import Policy
from wdjax.train.state.state import PolicyState


@struct.dataclass
class ByKernel:
    """What acting takes where a kernel does it."""

    state: PolicyState
    towers: Any  # the parameters as the kernel reads them


def for_kernel(policy: Policy, state: PolicyState) -> ByKernel:
    """Return the state for `draw_actions` with the parameters as the kernel reads them."""
    return ByKernel(state, transposed(towers_of(state.params, policy.kernels), policy.kernels))


def draw_actions(
    policy: Policy, state: PolicyState | ByKernel, carry: Any, obs: Any, keys: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array], Any]:
    """Draws actions to learn from, on NVIDIA GPUs by a kernel where there is one.

    Args:
        state: as it is, or from `for_kernel`.
        carry: of a recurrent policy.
        obs: leaves [N, n, ...].
        keys: [num_blocks], of the blocks of replicas, or what `draw_uniform` drew from them.

    Returns:
        (action [N, n, ...], {"value": [N, n], where the algorithm keeps it "log_prob": [N, n]}, carry).
    """
    if not isinstance(state, ByKernel):
        return _draw_simply(policy, state, carry, obs, keys)
    by_kernel = functools.partial(draw_by_kernel, policy)
    simple = lambda state, obs, keys: _draw_simply(policy, state.state, carry, obs, keys)[:2]  # noqa: E731
    action, notes = jax.lax.platform_dependent(state, obs, keys, cuda=by_kernel, default=simple)
    return action, notes, carry


def _draw_simply(
    policy: Policy, state: PolicyState, carry: Any, obs: Any, keys: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array], Any]:
    outputs, value, carry = policy.apply(state, obs, carry)
    action = sample_blocks(policy.distribution, keys, outputs)
    notes = {"value": value}
    if policy.algorithm.keeps_log_prob:
        notes["log_prob"] = policy.distribution.log_prob(outputs, action)
    return action, notes, carry


def draw_by_kernel(
    policy: Policy, state: ByKernel, obs: Any, keys: jax.Array, interpret: bool = False
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """`draw_actions` by the kernel, from the same random numbers. `interpret`: in XLA, on any device, for tests."""
    inputs, shape = inputs_of(policy, state.state, obs), policy.kernels
    replicas = jax.tree.leaves(obs)[0].shape[0]
    rows = (replicas, inputs.shape[0] // replicas)
    uniform = keys if keys.dtype == jnp.float32 else draw_uniform(policy.distribution, keys, *rows)
    uniform = uniform.reshape(inputs.shape[0], -1)
    with_log_prob = policy.algorithm.keeps_log_prob
    action, value, log_prob = act_kernel(shape, state.towers, inputs, uniform, with_log_prob, interpret)
    notes = {"value": value.reshape(rows)}
    if with_log_prob:
        notes["log_prob"] = log_prob.reshape(rows)
    return action.reshape(rows if shape.scalar else (*rows, -1)), notes
