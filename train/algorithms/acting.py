"""How A2C and PPO act: in plain XLA, or, of what they take, by the kernel of train/kernels/act.py."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.train.kernels.act import act_kernel
from wdjax.train.kernels.towers import are_used, inputs_of, towers_of, transposed
from wdjax.train.rollout import draw_uniform, sample_blocks
from wdjax.train.state import Policy, PolicyState


def with_towers(policy: Policy, state: PolicyState) -> PolicyState:
    """Returns a state that holds its parameters as the kernel reads them, too, where there is one for the policy."""
    if policy.kernels is None or not are_used():
        return state
    return state.replace(towers=transposed(towers_of(state.params, policy.kernels), policy.kernels))


def draw_actions(
    policy: Policy, state: PolicyState, carry: Any, obs: Any, keys: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array], Any]:
    """Draws actions to learn from, on NVIDIA GPUs by a kernel where the state has towers.

    Args:
        state: from `with_towers`.
        carry: of a recurrent policy.
        obs: leaves [N, n, ...].
        keys: [num_blocks], of the blocks of replicas, or what `draw_uniform` drew from them.

    Returns:
        (action [N, n, ...], {"value": [N, n], of PPO "log_prob": [N, n]}, carry).
    """
    if state.towers is None:
        return _draw_simply(policy, state, carry, obs, keys)
    by_kernel = functools.partial(draw_by_kernel, policy)
    simple = lambda state, obs, keys: _draw_simply(policy, state, carry, obs, keys)[:2]  # noqa: E731
    action, notes = jax.lax.platform_dependent(state, obs, keys, cuda=by_kernel, default=simple)
    return action, notes, carry


def _draw_simply(
    policy: Policy, state: PolicyState, carry: Any, obs: Any, keys: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array], Any]:
    outputs, value, carry = policy.apply(state, obs, carry)
    action = sample_blocks(policy.distribution, keys, outputs)
    notes = {"value": value}
    if _keeps_log_prob(policy):
        notes["log_prob"] = policy.distribution.log_prob(outputs, action)
    return action, notes, carry


def draw_by_kernel(
    policy: Policy, state: PolicyState, obs: Any, keys: jax.Array, interpret: bool = False
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """`draw_actions` by the kernel, from the same random numbers. `interpret`: in XLA, on any device, for tests."""
    inputs, shape = inputs_of(policy, state, obs), policy.kernels
    replicas = jax.tree.leaves(obs)[0].shape[0]
    rows = (replicas, inputs.shape[0] // replicas)
    uniform = keys if keys.dtype == jnp.float32 else draw_uniform(policy.distribution, keys, *rows)
    uniform = uniform.reshape(inputs.shape[0], -1)
    with_log_prob = _keeps_log_prob(policy)
    action, value, log_prob = act_kernel(shape, state.towers, inputs, uniform, with_log_prob, interpret)
    notes = {"value": value.reshape(rows)}
    if with_log_prob:
        notes["log_prob"] = log_prob.reshape(rows)
    return action.reshape(rows if shape.scalar else (*rows, -1)), notes


def _keeps_log_prob(policy: Policy) -> bool:
    return policy.config.algorithm == "PPO"  # A2C has no ratio
