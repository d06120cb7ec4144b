"""What a rollout draws: keys for every step and block of replicas, and the numbers that stand for actions."""

import functools

import jax
import jax.numpy as jnp

from wdjax.overrides import overridden
from wdjax.train.devices.blocks import block_keys, draw_blocks
from wdjax.train.networks.distributions import Categorical, Distribution


def step_keys(key: jax.Array, num_steps: int, num_draws: int, num_blocks: int) -> jax.Array:
    """Returns [num_steps, num_draws, num_blocks] keys, those of a block from fold_in(key, block) alone.

    They are drawn at once, before the scan: a split inside it costs kernels in every step.
    """
    keys_of_blocks = block_keys(key, num_blocks)
    keys = jax.vmap(lambda key: jax.random.split(key, (num_steps, num_draws)))(keys_of_blocks)
    # the axes of the data are moved: jax.debug_key_reuse takes a transposition of typed keys for their use
    data = jnp.moveaxis(jax.random.key_data(keys), 0, 2)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(key))


def sample_blocks(distribution: Distribution, keys: jax.Array, outputs: jax.Array) -> jax.Array:
    """Sample actions, each block of replicas with its own key.

    Args:
        distribution: parametrized by `outputs`.
        keys: [B] keys, or the uniform numbers from `draw_uniform`.
        outputs: [N, n, K] network outputs.

    Returns:
        Actions [N, n, ...].
    """
    if keys.dtype == jnp.float32:
        return distribution.choose(keys, outputs)
    blocks = outputs.reshape(keys.shape[0], -1, *outputs.shape[1:])
    actions = jax.vmap(distribution.sample)(keys, blocks)
    return actions.reshape(outputs.shape[0], *actions.shape[2:])


def draws_by_uniform(distribution: Distribution) -> bool:
    """Return whether `choose` gives the actions of `sample`, from numbers that are drawn before."""
    return isinstance(distribution, Categorical) and not overridden(distribution, Categorical, ["sample"])


def draw_uniform(distribution: Categorical, keys: jax.Array, num_envs: int, num_agents: int) -> jax.Array:
    """Returns the numbers in [0, 1) by which `sample_blocks` chooses actions, [N, n, components], from [B] keys."""
    draw = functools.partial(jax.random.uniform, dtype=jnp.float32)
    return draw_blocks(draw, keys, (num_envs, num_agents, len(distribution.sizes)))
