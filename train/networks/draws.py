"""Actions sampled from network outputs, with keys by block of replicas or from uniform numbers."""

import functools

import jax
import jax.numpy as jnp

from wdjax.overrides import overridden
from wdjax.train.devices.blocks import draw_blocks
from wdjax.train.networks.distributions import Categorical, Distribution


def sample_blocks(distribution: Distribution, keys: jax.Array, outputs: jax.Array) -> jax.Array:
    """Sample actions, each block of replicas with its own key.

    Args:
        distribution: parametrized by `outputs`.
        keys: [B] keys, or the uniform numbers from `draw_uniform`.
        outputs: [N, n, K] network outputs.

    Returns:
        Actions [N, n, ...].
    """
    if isinstance(distribution, Categorical) and keys.dtype == jnp.float32:
        return distribution.choose(keys, outputs)
    blocks = outputs.reshape(keys.shape[0], -1, *outputs.shape[1:])
    actions = jax.vmap(distribution.sample)(keys, blocks)
    return actions.reshape(outputs.shape[0], *actions.shape[2:])


def draws_by_uniform(distribution: Distribution) -> bool:
    """Return whether `choose` returns the actions of `sample` from uniform numbers."""
    return isinstance(distribution, Categorical) and not overridden(
        distribution, Categorical, ["sample"]
    )


def draw_uniform(
    distribution: Categorical, keys: jax.Array, num_envs: int, num_agents: int
) -> jax.Array:
    """Draw the numbers in [0, 1) for `sample_blocks`, [N, n, components], from [B] keys."""
    draw = functools.partial(jax.random.uniform, dtype=jnp.float32)
    return draw_blocks(draw, keys, (num_envs, num_agents, len(distribution.sizes)))
